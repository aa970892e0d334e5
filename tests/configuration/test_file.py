"""Settings in a file: what they come to, and what is said of one that cannot work."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prefixroute import Endpoint, Failover, Fixed, HealthPolicy, Nested, Router
from prefixroute import Random as RandomPlacement
from prefixroute.configuration import Configuration, read_file
from prefixroute.configuration.description import document_type, keys_of, schema
from prefixroute.core.tables import ENDPOINT_KEYS
from prefixroute.errors import ConfigurationError

SECRET = "sk-secret-4711"

FULL = """
seed = 7
peers = 4
inject_usage = true
ask_load = true
holdout = 0.05
holdout_placement = "random"
shadow = { kind = "nested", target = 0.5 }
remember_bodies = 1_000_000

[endpoint_defaults]
max_in_flight = 32
api_key_env = "GPU_KEY"

[[endpoints]]
url = "http://gpu-0:8000/v1"
id = "gpu-0"
weight = 2
models = ["llama"]

[[endpoints]]
url = "https://api.example.com/v1"
tier = 1
api_key_env = "HOSTED_KEY"
auth_header = "X-Key"
max_in_flight = 4
headers = { "X-Team" = "search" }

[placement]
kind = "fixed"
prefix_bytes = 512

[failover]
max_attempts = 2
statuses = [503]
deadline_s = 30

[health]
failures = 3
probe_every_s = 5
"""


def written(folder: Path, text: str, name: str = "prefixroute.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(ConfigurationError) as raised:
        read_file(path, {"SET": SECRET}).make(Router)
    said = str(raised.value)
    assert said.startswith(f"{path}: ")
    assert SECRET not in said
    return said


def test_everything_that_is_data_can_be_said(tmp_path: Path) -> None:
    environ = {"GPU_KEY": "one", "HOSTED_KEY": "two"}
    found = read_file(written(tmp_path, FULL), environ)
    assert isinstance(found.holdout_placement, RandomPlacement)
    assert found == Configuration(
        endpoints=(
            Endpoint(
                "http://gpu-0:8000/v1",
                id="gpu-0",
                weight=2,
                models=["llama"],
                max_in_flight=32,
                api_key="one",
            ),
            Endpoint(
                "https://api.example.com/v1",
                tier=1,
                api_key="two",
                auth_header="X-Key",
                max_in_flight=4,
                headers={"X-Team": "search"},
            ),
        ),
        placement=Fixed(prefix_bytes=512),
        failover=Failover(max_attempts=2, statuses={503}, deadline_s=30),
        health=HealthPolicy(failures=3, probe_every_s=5),
        inject_usage=True,
        ask_load=True,
        peers=4,
        seed=7,
        holdout=0.05,
        holdout_placement=found.holdout_placement,
        shadow=Nested(target=0.5),
        remember_bodies=1_000_000,
    )


def test_a_router_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "one")
    monkeypatch.setenv("HOSTED_KEY", "two")
    events: list[object] = []

    class Told:
        def on_event(self, event: object) -> None:
            events.append(event)

    router = Router.from_file(written(tmp_path, FULL), observers=[Told()])
    same = Router(
        [
            Endpoint("http://gpu-0:8000/v1", id="gpu-0", weight=2, models=["llama"]),
            Endpoint("https://api.example.com/v1", tier=1),
        ],
        placement=Fixed(prefix_bytes=512),
        seed=7,
        holdout=0.05,
        holdout_placement=RandomPlacement(),
    )
    assert router.inject_usage
    assert router.fingerprint == same.fingerprint
    with router.acquire({"prompt": "hello", "model": "llama"}) as lease:
        assert lease.endpoint.api_key == "one"
    assert events


def test_urls_alone_give_the_defaults(tmp_path: Path) -> None:
    urls = ["http://gpu-0:8000", "http://gpu-1:8000"]
    router = Router.from_file(str(written(tmp_path, json.dumps({"endpoints": urls}), "c.json")))
    assert router.fingerprint == Router(urls).fingerprint


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ('placement = "random"', RandomPlacement),
        ('placement = "nested"', Nested),
        ('placement = { kind = "nested", block_bytes = 512 }', Nested),
    ],
)
def test_a_placement_is_a_kind_or_a_table(tmp_path: Path, text: str, placement: type) -> None:
    found = read_file(written(tmp_path, f'endpoints = ["http://a"]\n{text}'), {})
    assert type(found.placement) is placement


def test_yaml_says_the_same(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = "endpoints: [http://a, {url: http://b, weight: 3}]\nhealth: {failures: 2}\n"
    found = read_file(written(tmp_path, text, "c.yml"), {})
    assert [endpoint.weight for endpoint in found.endpoints] == [1.0, 3.0]
    assert found.health == HealthPolicy(failures=2)


def test_what_is_read_can_be_sent_to_another_process(tmp_path: Path) -> None:
    found = read_file(written(tmp_path, FULL), {"GPU_KEY": "one", "HOSTED_KEY": "two"})
    assert pickle.loads(pickle.dumps(found)).endpoints == found.endpoints


URL = 'endpoints = ["http://a"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no endpoints"),
        ("endpoints = []", "there are no endpoints"),
        ("endpoints = 5", "endpoints is of type int; it must be a list"),
        ('endpoint = ["http://a"]', "the file has no key 'endpoint'; did you mean 'endpoints'?"),
        (URL + "[helth]\nfailures = 2", "no key 'helth'; did you mean 'health'?"),
        (URL + "[health]\nfailure = 2", "health has no key 'failure'; did you mean 'failures'?"),
        (URL + "[health]\nfailures = 0", "health: HealthPolicy(failures=0) must be an int, 1"),
        (URL + '[health]\njitter = "x"', "HealthPolicy(jitter='x') must be a finite number"),
        (URL + "health = 5", "health is of type int; it must be a table"),
        (URL + "[failover]\nstop = 3", "failover has no key 'stop'"),
        (URL + "[failover]\nhedge_after_s = 1", "failover: Failover(hedge_after_s=1.0) must be"),
        (URL + "placement = 5", "placement is of type int"),
        (URL + 'placement = "nestd"', "the kind 'nestd', which is none; did you mean 'nested'"),
        (URL + "[placement]\nblock_bytes = 512", "placement has no kind; There are: fixed, "),
        (URL + "[placement]\nkind = 'fixed'\ntarget = 0.5", "placement has no key 'target'"),
        (URL + "[placement]\nkind = ['x']", "placement has the kind ['x'], which is none"),
        (URL + "[placement]\nkind = 'nested'\ntarget = 2.0", "placement: Nested(target=2.0) must"),
        (URL + "peers = 0", "Router(peers=0) must be an int, 1 or greater"),
        (URL + "seed = 1.5", "Router(seed=1.5) must be an int"),
        (URL + "holdout = 2", "Router(holdout=2) must be"),
        (URL + "remember_bodies = -1", "Router(remember_bodies=-1) must be an int, 0 or greater"),
        (URL + "ask_load = 'x'", "Router(ask_load='x') must be true or false"),
        (URL + "shadow = 'nestd'", "shadow has the kind 'nestd', which is none; did you mean"),
        (URL + "inject_usage = 1", "Router(inject_usage=1) must be true or false"),
        (URL + "[endpoint_defaults]\nurl = 'http://b'", "endpoint_defaults has no key 'url'"),
        (URL + "[endpoint_defaults]\ntier = -1", "endpoints[0]: Endpoint('http://a/v1'): tier=-1"),
        ("endpoints = [5]", "endpoints[0] is of type int"),
        ("endpoints = [{ weight = 1 }]", "endpoints[0].url is missing"),
        ("[[endpoints]]\nurl = 'http://a'\nwieght = 2", "no key 'wieght'; did you mean 'weight'?"),
        ("[[endpoints]]\nurl = 'http://a'\ndraining = true", "endpoints[0] has no key 'draining'"),
        ("endpoints = ['gpu-0']", "it needs a scheme, http:// or https://"),
        ("endpoints = ['http://a', 'http://a/v1/']", "are the same"),
        ("[[endpoints]]\nurl = 'http://a'\napi_key_env = 'NOT'", "endpoints[0].api_key_env='NOT'"),
        ("[[endpoints]]\nurl = 'http://a'\napi_key_env = ''", "api_key_env is empty"),
        ("[[endpoints]]\nurl = 'http://a'\napi_key_env = 5", "api_key_env is of type int"),
        (
            f"[[endpoints]]\nurl='http://a'\napi_key='{SECRET}'\napi_key_env='SET'",
            "both api_key and api_key_env; leave out api_key",
        ),
        (f"[[endpoints]]\nurl='http://a'\nheaders='{SECRET}'", "headers='str' must be a mapping"),
        (f"[[endpoints]]\nurl='http://a'\napi_key=['{SECRET}']", "api_key='list' must be"),
        (f"endpoints = ['http://user:{SECRET}@gpu-0:0']", "port 0 is no server's"),
        (f"api_key = '{SECRET}' x", "not TOML, line 1, column"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


def test_a_default_key_gives_way_to_a_key_of_ones_own(tmp_path: Path) -> None:
    text = """
    endpoint_defaults = { api_key_env = "NOT_SET" }
    endpoints = [{ url = "http://a", api_key = "own" }]
    """
    assert read_file(written(tmp_path, text), {}).endpoints[0].api_key == "own"


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: No such file"):
        Router.from_file(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match=r"must be a path that ends with one of \.toml"):
        Router.from_file(tmp_path / "prefixroute.ini")
    with pytest.raises(ConfigurationError, match="is of type list; it must be a table"):
        Router.from_file(written(tmp_path, "[]", "list.json"))
    path = written(tmp_path, URL, "closed.toml")
    path.chmod(0)
    if not os.access(path, os.R_OK):  # root may
        with pytest.raises(ConfigurationError, match="Permission denied"):
            Router.from_file(path)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


# -- the schema ---------------------------------------------------------------------------


def test_the_tables_have_what_the_values_have() -> None:
    assert set(keys_of(Endpoint)) == set(ENDPOINT_KEYS)
    assert "failures" in keys_of(HealthPolicy)
    assert {"stop", "wait"}.isdisjoint(keys_of(Failover))
    for cls in (Endpoint, Failover, HealthPolicy, Nested, Fixed):
        assert all(key.text for key in keys_of(cls).values()), cls


def test_every_setting_of_a_router_can_be_said_but_for_objects() -> None:
    objects = {"self", "tokenizer", "observers", "clock", "wall_clock"}
    said = {one.name for one in dataclasses.fields(Configuration)} - {"source"}
    assert said == set(inspect.signature(Router.__init__).parameters) - objects


def test_the_schema_describes_every_setting() -> None:
    made: Any = json.loads(json.dumps(schema()))
    top = made["$defs"]["Prefixroute"]
    assert top["required"] == ["endpoints"]
    assert top["additionalProperties"] is False
    assert all(setting.get("description") for setting in top["properties"].values())
    failures = made["$defs"]["HealthPolicy"]["properties"]["failures"]
    assert failures == {
        "type": "integer",
        "default": 5,
        "description": "Counted failures in a row that eject.",
    }
    assert made["$defs"]["Failover"]["properties"]["statuses"]["default"] == [429, 502, 503, 504]


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        ({"endpoints": ["http://a", {"url": "http://b", "models": ["m"]}]}, True),
        ({"endpoints": ["http://a"], "placement": "random"}, True),
        ({"endpoints": ["http://a"], "placement": {"kind": "fixed", "prefix_bytes": 9}}, True),
        ({"endpoints": ["http://a"], "health": {"error_rate": None}, "peers": 2}, True),
        ({"endpoints": ["http://a"], "failover": {"statuses": [503]}}, True),
        ({}, False),
        ({"endpoints": [5]}, False),
        ({"endpoints": [{"weight": 1.0}]}, False),
        ({"endpoints": ["http://a"], "placement": {"kind": "fixed", "target": 1}}, False),
        ({"endpoints": ["http://a"], "placement": "nestd"}, False),
        ({"endpoints": ["http://a"], "health": {"failure": 1}}, False),
        ({"endpoints": ["http://a"], "health": {"failures": "1"}}, False),
        ({"endpoints": ["http://a"], "unknown": 1}, False),
    ],
    ids=str,
)
def test_schema_and_reader_agree(tmp_path: Path, document: dict[str, Any], *, fits: bool) -> None:
    path = written(tmp_path, json.dumps(document), "c.json")
    for read in (lambda: read_file(path, {}), lambda: msgspec.convert(document, document_type())):
        if fits:
            read()
        else:
            with pytest.raises((ConfigurationError, msgspec.ValidationError)):
                read()


def test_the_whole_example_fits_the_schema() -> None:
    tomllib = pytest.importorskip("tomllib")
    msgspec.convert(tomllib.loads(FULL), document_type())
