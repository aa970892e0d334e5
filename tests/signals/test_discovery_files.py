"""Files as a source: three formats, rewritten, half-written, removed, swapped as a ConfigMap is."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefixroute import ConfigurationError, Endpoint, Router, SourceUnavailable
from prefixroute.signals import Discovery, FileSource, Listing
from tests.signals.support import until

FORMATS = ("toml", "json", "yaml", "yml")
SECRET = "sk-do-not-show"


def written(kind: str, *items: dict[str, Any] | str) -> str:
    """A file of endpoints in one of the formats."""
    match kind:
        case "json":
            return json.dumps({"endpoints": list(items)})
        case "yaml" | "yml":
            return str(yaml.safe_dump({"endpoints": list(items)}))
        case _:
            if any(isinstance(item, str) for item in items):
                return f"endpoints = {json.dumps(items)}\n"
            tables = (
                "\n".join(f"{key} = {json.dumps(value)}" for key, value in item.items())
                for item in items
                if isinstance(item, dict)
            )
            return "".join(f"[[endpoints]]\n{table}\n" for table in tables)


def put(path: Path, text: str) -> None:
    """Replace a file as editors do: it is never half there."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def told(path: Path) -> str:
    """What is said of a file that cannot be read."""
    with pytest.raises(SourceUnavailable) as refused:
        FileSource(path).endpoints()
    return str(refused.value).removeprefix(f"{path}: ")


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"endpoints.{request.param}"


def kind_of(path: Path) -> str:
    return path.suffix[1:]


# -- what a file says ------------------------------------------------------------------------


def test_tables_have_what_endpoints_have(path: Path) -> None:
    table = {
        "url": "https://gpu-0:8443", "id": "gpu-0", "weight": 2.5, "models": ["a", "b"], "tier": 1,
        "max_in_flight": 8, "api_key": SECRET, "auth_header": "x-key",
    }  # fmt: skip
    path.write_text(written(kind_of(path), table, {"url": "http://gpu-1"}), encoding="utf-8")
    first, second = FileSource(path).endpoints()
    assert first == Endpoint(**table)  # type: ignore[arg-type]
    assert second == Endpoint("http://gpu-1")


def test_a_list_of_urls_is_enough(path: Path) -> None:
    path.write_text(written(kind_of(path), "http://gpu-0", "http://gpu-1"), encoding="utf-8")
    assert [e.url for e in FileSource(path).endpoints()] == ["http://gpu-0/v1", "http://gpu-1/v1"]


def test_the_file_may_be_the_list_itself(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text('\ufeff["http://gpu-0"]', encoding="utf-8")  # as some editors start it
    assert [e.url for e in FileSource(path).endpoints()] == ["http://gpu-0/v1"]


def test_settings_are_for_those_that_do_not_say_otherwise(path: Path) -> None:
    text = written(kind_of(path), {"url": "http://a", "weight": 3}, {"url": "http://b"})
    path.write_text(text, encoding="utf-8")
    source = FileSource(path, settings={"weight": 2.0, "api_key": SECRET})
    assert [(e.weight, e.api_key) for e in source.endpoints()] == [(3.0, SECRET), (2.0, SECRET)]
    assert SECRET not in repr(source)


def test_a_key_may_be_in_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"url": "http://a", "api_key_env": "KEY_4711"}
    path.write_text(written(kind_of(path), table, {"url": "http://b"}), encoding="utf-8")
    source = FileSource(path, settings={"api_key": "other"})
    monkeypatch.delenv("KEY_4711", raising=False)
    assert "endpoints[0].api_key_env='KEY_4711' must name an environment variable" in told(path)
    monkeypatch.setenv("KEY_4711", SECRET)
    assert [e.api_key for e in source.endpoints()] == [SECRET, "other"]


def test_tls_settings_are_for_those_that_have_tls(path: Path) -> None:
    path.write_text(written(kind_of(path), "http://a", "https://b"), encoding="utf-8")
    context = ssl.create_default_context()
    found = FileSource(path, settings={"ssl_context": context}).endpoints()
    assert [e.ssl_context for e in found] == [None, context]


def test_draining_sends_no_new_requests(path: Path) -> None:
    text = written(kind_of(path), {"url": "http://a", "draining": True}, {"url": "http://b"})
    path.write_text(text, encoding="utf-8")
    listing = FileSource(path).open().read()
    assert [e.url for e in listing.endpoints] == ["http://b/v1"]
    assert [e.url for e in listing.resting] == ["http://a/v1"]


def test_nobody_is_an_answer_of_its_own(path: Path) -> None:
    path.write_text("{}" if path.suffix != ".toml" else "", encoding="utf-8")
    assert FileSource(path).open().read() == Listing(endpoints=(), note="the file has no endpoints")


# -- what is wrong is said, and nothing more --------------------------------------------------


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"url": "http://a", "wieght": 2},
            "endpoints[1] has no key 'wieght'; did you mean 'weight'",
        ),
        ({"weight": 2}, "endpoints[1].url is missing"),
        ({"url": 5}, "endpoints[1].url is of type int"),
        ({"url": "gpu-0:8000"}, "endpoints[1]: endpoint URL 'gpu-0:8000': it needs a scheme"),
        ({"url": "http://a", "weight": -2}, "endpoints[1]: Endpoint(weight=-2) must be"),
        ({"url": "http://a", "draining": "no"}, "endpoints[1].draining='no' must be true or false"),
        ({"url": "http://a", "api_key": 5}, "api_key='int' must be a str"),
        ({"url": "http://b"}, "endpoints 'http://b/v1' and 'http://b/v1' are the same"),
    ],
)
def test_an_error_names_the_place_the_value_and_the_rule(
    path: Path, item: Any, message: str
) -> None:
    path.write_text(written(kind_of(path), {"url": "http://b"}, item), encoding="utf-8")
    assert message in told(path)


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        (
            "toml",
            f'[[endpoints]]\nurl = "http://a"\napi_key = "{SECRET}',
            "not TOML, end of document",
        ),
        ("json", f'{{"endpoints": [\n{{"api_key": "{SECRET}" "url"', "not JSON, line 2, column 30"),
        ("yaml", f"endpoints:\n- api_key: *{SECRET}\n", "not YAML, line 2, column 12"),
        ("yaml", f"endpoints:\n- api_key: !{SECRET} 5\n", "not YAML, line 2, column 12"),
        ("yaml", f"endpoints: [{{api_key: {SECRET}\n", "not YAML, line 2, column 1"),
        ("yaml", "2026-13-41", "not YAML, in some place"),
        ("toml", f'endpoints = [{{api_key = "{SECRET}" url', "not TOML, line 1, column 42"),
        ("json", "[" * 100_000, "not JSON"),
        ("json", "[[1]]", "endpoints[0] is of type list; it must be a URL or a table"),
        ("json", '{"endpoint": []}', "'endpoint' is no key of the file; did you mean 'endpoints'"),
        ("json", '{"endpoints": "http://a"}', "endpoints is of type str; it must be a list"),
        ("json", '{"endpoints": [{"url": "http://a", "api_key": "\\n"}]}', "api_key"),
    ],
)
def test_a_malformed_file_shows_no_secret(
    tmp_path: Path, suffix: str, text: str, message: str
) -> None:
    path = tmp_path / f"endpoints.{suffix}"
    path.write_text(text, encoding="utf-8")
    said = told(path)
    assert message in said
    assert SECRET not in said


def test_what_is_no_text_is_said_so(path: Path) -> None:
    assert told(path) == "No such file or directory"
    path.write_bytes(b"\xff\xfe\x00")
    assert told(path) == "byte 0 is not UTF-8"
    path.write_bytes(b" " * (4 << 20) + b"x")
    assert "larger than 4194304 bytes" in told(path)


@pytest.mark.parametrize("given", ["endpoints.ini", "endpoints", "", 5, None])
def test_another_suffix_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ends with one of \.toml, \.json, \.yaml, \.yml"):
        FileSource(given)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'api_key'"):
        FileSource(tmp_path / "a.json", settings={"apikey": SECRET})  # type: ignore[typeddict-unknown-key]


def test_a_missing_extra_is_named(without: Callable[[str], None]) -> None:
    without("yaml")
    FileSource("endpoints.toml")
    with pytest.raises(ConfigurationError, match=r"pip install 'prefixroute\[yaml\]'"):
        FileSource("endpoints.yaml")


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = FileSource("endpoints.json")
    (tmp_path / "endpoints.json").write_text('["http://a"]', encoding="utf-8")
    monkeypatch.chdir("/")
    assert source.endpoints()


# -- a file that changes ----------------------------------------------------------------------


def test_a_change_is_believed_when_it_stays(path: Path) -> None:
    kind = kind_of(path)
    path.write_text(written(kind, "http://a", "http://b"), encoding="utf-8")
    reader = FileSource(path).open()
    first = reader.read()
    assert reader.read() is first
    path.write_text(written(kind, "http://a"), encoding="utf-8")  # half of what is being written
    seen = reader.read()
    assert (seen.endpoints, seen.again_in_s) == (first.endpoints, 0.25)
    path.write_text(written(kind, "http://a", "http://c"), encoding="utf-8")
    assert reader.read().endpoints == first.endpoints
    settled = reader.read()
    assert [e.url for e in settled.endpoints] == ["http://a/v1", "http://c/v1"]
    assert settled.again_in_s is None


def test_one_broken_text_after_another_is_one_trouble(path: Path) -> None:
    kind = kind_of(path)
    path.write_text(written(kind, "http://a"), encoding="utf-8")
    reader = FileSource(path).open()
    reader.read()
    path.write_text("{[", encoding="utf-8")
    reader.read()
    for text in ("{[", "{[[", "{[["):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SourceUnavailable):
            reader.read()
    path.write_text(written(kind, "http://a"), encoding="utf-8")  # as it was at first
    assert [e.url for e in reader.read().endpoints] == ["http://a/v1"]


def urls(router: Router) -> set[str]:
    return {endpoint.url for endpoint in router.endpoints}


def test_a_router_follows_its_file_through_everything(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = kind_of(path)
    put(path, written(kind, {"url": "http://a", "api_key": SECRET}, {"url": "http://b"}))
    source = FileSource(path)
    with (
        caplog.at_level("INFO", "prefixroute"),
        Router(source.endpoints()) as router,
        Discovery(router, source, every_s=0.02) as follow,
    ):
        put(path, written(kind, "http://b", "http://c"))
        until(lambda: urls(router) == {"http://b/v1", "http://c/v1"})
        path.write_text("{[" + SECRET, encoding="utf-8")
        until(lambda: follow.trouble)
        path.unlink()
        until(lambda: "No such file" in str(follow.trouble))
        assert urls(router) == {"http://b/v1", "http://c/v1"}
        put(path, written(kind, {"url": "http://c", "weight": 4.0}))
        until(lambda: [e.weight for e in router.endpoints] == [4.0])
        assert follow.trouble is None
        put(path, "{}" if path.suffix != ".toml" else "")
        until(lambda: follow.trouble)
        assert urls(router) == {"http://c/v1"}
    lines = [record.getMessage() for record in caplog.records]
    assert "endpoints joined: http://c/v1; left: http://a/v1" in lines
    assert "endpoints joined: none; left: http://b/v1; changed: http://c/v1" in lines
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert SECRET not in caplog.text


def test_a_config_map_is_swapped_behind_two_links(tmp_path: Path) -> None:
    """As the kubelet does it: the file is a link into ``..data``, itself a link that is renamed."""

    def publish(number: int, *items: str) -> None:
        folder = tmp_path / f"..2026_{number}"
        folder.mkdir()
        (folder / "endpoints.yaml").write_text(written("yaml", *items), encoding="utf-8")
        link = tmp_path / "..data_tmp"
        link.symlink_to(folder.name)
        link.replace(tmp_path / "..data")

    publish(1, "http://a", "http://b")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to(os.path.join("..data", "endpoints.yaml"))
    source = FileSource(path)
    with Router(source.endpoints()) as router, Discovery(router, source, every_s=0.02):
        publish(2, "http://b", "http://c")
        until(lambda: urls(router) == {"http://b/v1", "http://c/v1"})
