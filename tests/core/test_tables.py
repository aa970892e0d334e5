"""Files of settings as data, and endpoints as they write them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from prefixroute import ConfigurationError, Endpoint
from prefixroute.core.checks import need, suggestion
from prefixroute.core.documents import MalformedDocument, check_document_path, parse_document
from prefixroute.core.tables import read_endpoint

SECRET = "sk-secret-4711"
FORMATS = ("a.toml", "a.json", "a.yaml", "A.YML")


def test_the_suffix_tells_the_format() -> None:
    assert parse_document("a.toml", b"a = [1]") == {"a": [1]}
    assert parse_document(Path("b.json"), b'{"a": [1]}') == {"a": [1]}
    for name in ("c.yaml", "d.YML"):
        check_document_path("X", name)
        assert parse_document(name, b"a: [1]") == {"a": [1]}
    assert parse_document("a.json", b"\xef\xbb\xbf[]") == []  # as some editors start it


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", f"key = '{SECRET}' x", "not TOML, line 1, column "),
        ("a.toml", f"key = '{SECRET}", "not TOML, "),
        ("a.json", f'{{"key": "{SECRET}",,}}', "not JSON, line 1, column "),
        ("a.json", "[" * 100_000, "not JSON, nested too deeply"),
        ("a.yaml", f"key: '{SECRET}\n", "not YAML, line "),
        ("a.yaml", "a: 2026-99-99", "not YAML, in some place"),
        ("a.yaml", f"!{SECRET} x", "not YAML, line 1"),
    ],
)
def test_what_is_malformed_is_placed_and_not_shown(name: str, text: str, said: str) -> None:
    with pytest.raises(MalformedDocument) as refused:
        parse_document(name, text.encode())
    assert str(refused.value).startswith(said)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(MalformedDocument, match="byte 1 is not UTF-8"):
        parse_document(name, b"a\xff")


@pytest.mark.parametrize("path", ["a.ini", "toml", 5, None])
def test_other_files_are_refused(path: object) -> None:
    with pytest.raises(ConfigurationError, match=r"X\(path=.*\) must be a path that ends with"):
        check_document_path("X", path)


def test_yaml_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_document_path("X", "a.toml")
    with pytest.raises(ConfigurationError, match=r"X\('a.yml'\) needs PyYAML: pip install"):
        check_document_path("X", "a.yml")


def test_an_extra_that_is_there_is_let_pass() -> None:
    need("X", "json", "JSON", "json")


def test_the_nearest_name_is_suggested_if_there_is_one() -> None:
    assert (
        suggestion("wieght", ["weight", "url"]) == "did you mean 'weight'? There are: url, weight"
    )
    assert suggestion("zzz", ["weight", "url"]) == "There are: url, weight"


# -- endpoints ---------------------------------------------------------------------------


def read(item: object, **settings: Any) -> tuple[Endpoint, bool]:
    return read_endpoint(item, "endpoints[3]", settings, environ={"KEY": SECRET})


def test_urls_and_tables_become_endpoints() -> None:
    assert read("http://a") == (Endpoint("http://a"), False)
    assert read({"url": "http://a", "tier": 1, "draining": True}, tier=2, weight=3) == (
        Endpoint("http://a", tier=1, weight=3), True,
    )  # fmt: skip


def test_tls_settings_are_for_those_that_have_tls() -> None:
    import ssl

    context = ssl.create_default_context()
    assert read("http://a", ssl_context=context)[0].ssl_context is None
    assert read("https://a", ssl_context=context)[0].ssl_context is context


def test_keys_come_from_the_environment() -> None:
    assert read({"url": "http://a", "api_key_env": "KEY"})[0].api_key == SECRET
    assert read({"url": "http://a", "api_key_env": "KEY"}, api_key="other")[0].api_key == SECRET
    assert read("http://a", api_key_env="KEY")[0].api_key == SECRET
    assert read({"url": "http://a", "api_key": "own"}, api_key_env="NOT")[0].api_key == "own"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (5, "endpoints[3] is of type int"),
        ({"url": "http://a", "wieght": 1}, "[3] has no key 'wieght'; did you mean 'weight'"),
        ({"url": "http://a", 5: 1}, "endpoints[3] has no key 5"),
        ({"url": "http://a", "draining": "yes"}, "[3].draining='yes' must be true or false"),
        ({}, "endpoints[3].url is missing"),
        ({"url": 5}, "endpoints[3].url is of type int"),
        ({"url": "http://a", "tier": -1}, "endpoints[3]: Endpoint('http://a/v1'): tier=-1 must be"),
        ({"url": "http://a", "api_key_env": 5}, "endpoints[3].api_key_env is of type int"),
        ({"url": "http://a", "api_key_env": ""}, "endpoints[3].api_key_env is empty"),
        ({"url": "http://a", "api_key_env": "NOT"}, "endpoints[3].api_key_env='NOT' must name"),
        ({"url": "http://a", "api_key_env": "KEY", "api_key": SECRET}, "has both api_key and"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_named(item: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(item)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_list_without_sources_has_nobody_that_drains() -> None:
    with pytest.raises(ConfigurationError, match="has no key 'draining'"):
        read_endpoint({"url": "http://a", "draining": True}, "x", {}, environ={}, may_drain=False)
