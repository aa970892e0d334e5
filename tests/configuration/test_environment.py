"""Settings in environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixroute import Failover, Fixed, HealthPolicy, Nested, Router
from prefixroute.configuration import read_environment
from prefixroute.configuration.environment import variables
from prefixroute.errors import ConfigurationError

ONE = {"PREFIXROUTE_ENDPOINTS": "http://a"}


def test_variables_become_settings() -> None:
    found = read_environment(
        {
            "PREFIXROUTE_ENDPOINTS": "http://a, http://b\nhttp://c,",
            "PREFIXROUTE_ENDPOINT_DEFAULTS__API_KEY_ENV": "GPU_KEY",
            "PREFIXROUTE_ENDPOINT_DEFAULTS__MODELS": "llama,qwen",
            "PREFIXROUTE_ENDPOINT_DEFAULTS__MAX_IN_FLIGHT": "8",
            "PREFIXROUTE_PLACEMENT": "fixed",
            "PREFIXROUTE_PLACEMENT__PREFIX_BYTES": "512",
            "PREFIXROUTE_FAILOVER__STATUSES": "429, 503",
            "PREFIXROUTE_FAILOVER__REPLAY_SENT": "true",
            "PREFIXROUTE_HEALTH__ERROR_RATE": "null",
            "PREFIXROUTE_HEALTH__EJECT_FOR_S": "2.5",
            "PREFIXROUTE_HEALTH__PROBE_PATH": "/ready",
            "PREFIXROUTE_INJECT_USAGE": "1",
            "PREFIXROUTE_PEERS": "3",
            "PREFIXROUTE_SHADOW": "nested",
            "PREFIXROUTE_SHADOW__TARGET": "0.5",
            "PREFIXROUTE_HOLDOUT": "0.05",
            "PREFIXROUTE_SEED": "",
            "GPU_KEY": "k",
            "HOME": "/",
        }
    )
    assert [endpoint.url for endpoint in found.endpoints] == [
        "http://a/v1", "http://b/v1", "http://c/v1",
    ]  # fmt: skip
    assert {endpoint.api_key for endpoint in found.endpoints} == {"k"}
    assert {endpoint.models for endpoint in found.endpoints} == {frozenset({"llama", "qwen"})}
    assert {endpoint.max_in_flight for endpoint in found.endpoints} == {8}
    assert found.placement == Fixed(prefix_bytes=512)
    assert found.failover == Failover(statuses={429, 503}, replay_sent=True)
    assert found.health == HealthPolicy(error_rate=None, eject_for_s=2.5, probe_path="/ready")
    assert (found.inject_usage, found.peers, found.seed) == (True, 3, None)
    assert (found.shadow, found.holdout) == (Nested(target=0.5), 0.05)


def test_a_router_is_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_ENDPOINTS", "http://a,http://b")
    monkeypatch.setenv("OTHER_SEED", "5")
    router = Router.from_env(prefix="OTHER_")
    assert router.fingerprint == Router(["http://a", "http://b"], seed=5).fingerprint


def test_they_override_the_file_that_one_of_them_names(tmp_path: Path) -> None:
    path = tmp_path / "prefixroute.toml"
    path.write_text(
        "seed = 1\npeers = 2\nendpoints = ['http://a']\nplacement = 'nested'\n"
        "[health]\nfailures = 2\njitter = 0.5\n"
    )
    environ = {
        "PREFIXROUTE_CONFIG": str(path),
        "PREFIXROUTE_SEED": "9",
        "PREFIXROUTE_HEALTH__FAILURES": "7",
        "PREFIXROUTE_PLACEMENT__TARGET": "0.5",
    }
    found = read_environment(environ)
    assert (found.seed, found.peers) == (9, 2)
    assert found.health == HealthPolicy(failures=7, jitter=0.5)
    assert found.placement == Nested(target=0.5)
    path.write_text("health = 5\nendpoints = ['http://a']")
    with pytest.raises(ConfigurationError, match="health is of type int; it must be a table"):
        read_environment(environ)
    path.write_text("endpoints = ['http://a']\npeers = 0")
    with pytest.raises(ConfigurationError) as raised:
        Router.from_env({"PREFIXROUTE_CONFIG": str(path)})
    assert str(raised.value).startswith(f"environment and {path}: Router(peers=0)")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ENDPOINT", "http://b", "PREFIXROUTE_ENDPOINT is no setting; did you mean"),
        ("HEALTH__FAILURE", "3", "did you mean 'PREFIXROUTE_HEALTH__FAILURES'?"),
        ("HEALTH_FAILURES", "3", "PREFIXROUTE_HEALTH_FAILURES is no setting"),
        ("SEED", "x", "PREFIXROUTE_SEED='x' must be of type int"),
        ("HEALTH__FAILURES", "2.5", "PREFIXROUTE_HEALTH__FAILURES='2.5' must be of type int"),
        ("HEALTH__FAILURES", "0", "health: HealthPolicy(failures=0) must be an int, 1 or greater"),
        ("HEALTH__JITTER", "nan", "HealthPolicy(jitter=nan) must be a finite number"),
        ("INJECT_USAGE", "maybe", "PREFIXROUTE_INJECT_USAGE='maybe' must be of type bool"),
        ("FAILOVER__STATUSES", "429,x", "PREFIXROUTE_FAILOVER__STATUSES='429,x' must be"),
        ("PLACEMENT", "nestd", "the kind 'nestd', which is none; did you mean 'nested'?"),
        ("PLACEMENT__TARGET", "0.5", "placement has no kind"),
        ("ENDPOINT_DEFAULTS__API_KEY_ENV", "NOT_SET", "'NOT_SET' must name an environment"),
        ("ENDPOINT_DEFAULTS__HEADERS", "a=b", "PREFIXROUTE_ENDPOINT_DEFAULTS__HEADERS is no"),
        ("CONFIG", "/none/here.toml", "/none/here.toml: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_named(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Router.from_env({**ONE, f"PREFIXROUTE_{name}": text})
    assert said in str(raised.value)


def test_no_endpoints_are_said_so() -> None:
    with pytest.raises(ConfigurationError, match="environment: there are no endpoints"):
        Router.from_env({})


def test_no_key_is_shown() -> None:
    secret = "sk-secret-4711\n"
    environ = {"PREFIXROUTE_ENDPOINT_DEFAULTS__API_KEY": secret, "PREFIXROUTE_ENDPOINTS": "x"}
    with pytest.raises(ConfigurationError) as raised:
        read_environment(environ)
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(read_environment({**environ, **ONE}))


def test_the_variables_of_a_service_of_that_name_are_no_settings() -> None:
    kubernetes = {
        "PREFIXROUTE_SERVICE_HOST": "10.0.0.1",
        "PREFIXROUTE_SERVICE_PORT_HTTP": "80",
        "PREFIXROUTE_PORT": "tcp://10.0.0.1:80",
        "PREFIXROUTE_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert read_environment({**ONE, **kubernetes}).endpoints[0].url == "http://a/v1"


def test_every_setting_but_headers_has_a_variable() -> None:
    names = set(variables())
    assert {"ENDPOINTS", "PLACEMENT", "PLACEMENT__BLOCK_BYTES", "HEALTH__FAILURES"} <= names
    assert not any("HEADERS" in name for name in names)
