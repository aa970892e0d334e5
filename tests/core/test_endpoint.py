from __future__ import annotations

import copy
import dataclasses
import pickle
import ssl
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.urls import normalise_url, split_url
from prefixroute.errors import ConfigurationError, PrefixrouteError, UnknownEndpointError
from tests.core.support import make_router


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("http://H:80/v1", "http://h/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("http://h", "http://h/v1"),
        ("http://h/", "http://h/v1"),
        ("HTTP://h:080/v1//", "http://h/v1"),
        ("https://H:443", "https://h/v1"),
        ("https://h:80", "https://h:80/v1"),
        ("http://h:/v1", "http://h/v1"),
        (" http://h:8000/v1\n", "http://h:8000/v1"),
        ("http://h/v1?", "http://h/v1"),
        ("http://h/v1/?api-version=1", "http://h/v1?api-version=1"),
        ("http://h/proxy/Gpu0", "http://h/proxy/Gpu0"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("http://[0:0:0:0:0:0:0:1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://user:pass@H:80/v1", "http://h/v1"),
        ("http://10.0.0.1", "http://10.0.0.1/v1"),
    ],
)
def test_case_23_every_spelling_of_a_url_is_one(given_url: str, url: str) -> None:
    endpoint = Endpoint(given_url)
    assert endpoint.url == endpoint.id == url
    assert normalise_url(url) == url


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://h/v1", "https://h/v1"),
        ("http://h/v1", "http://h:8000/v1"),
        ("http://h/a", "http://h/b"),
        ("http://h/A", "http://h/a"),
        ("http://h/v1?a=1", "http://h/v1?a=2"),
        ("http://h", "http://h2"),
    ],
)
def test_different_servers_stay_different(one: str, other: str) -> None:
    assert normalise_url(one) != normalise_url(other)


@pytest.mark.parametrize(
    "url",
    [
        "h:8000",
        "//h/v1",
        "://h",
        "",
        "ftp://h",
        "unix:///run/vllm.sock",
        "http://",
        "http:///v1",
        "http://:8000",
        "http://h:port",
        "http://h:99999",
        "http://h:-1",
        "http://h:0",
        "http://[::1",
        "http://a b/v1",
        "http://h/v1 x",
        "http://h/v1#top",
        None,
        5,
        b"http://h",
        ["http://h"],
    ],
)
def test_case_52_a_url_that_cannot_work_is_refused_with_the_remedy(url: object) -> None:
    with pytest.raises(ConfigurationError, match="write it like 'http://gpu-0:8000/v1'") as raised:
        Endpoint(url)  # type: ignore[arg-type]
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, PrefixrouteError)


@pytest.mark.parametrize(
    "url",
    ["http://user:hunter2@", "user:hunter2@h:80", "http://user:hunter2@h:x", "ftp://u:hunter2@h"],
)
def test_case_50_a_password_is_in_no_message(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Endpoint(url)
    assert "hunter2" not in str(raised.value)


def test_an_httpx_url_is_a_url() -> None:
    assert Endpoint(httpx.URL("http://H:80/v1/")).url == "http://h/v1"  # type: ignore[arg-type]


# -- fields --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", -1),
        ("weight", -0.001),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", 1e300),
        ("weight", 10**400),
        ("weight", "2"),
        ("weight", None),
        ("weight", True),
        ("weight", 1j),
        ("id", 5),
        ("id", ["a"]),
        ("id", b"a"),
        ("models", "llama"),
        ("models", b"llama"),
        ("models", 5),
        ("models", []),
        ("models", [""]),
        ("models", ["a", 5]),
        ("models", [None]),
        ("tier", -1),
        ("tier", 0.5),
        ("tier", "0"),
        ("tier", None),
        ("tier", True),
        ("max_in_flight", 0),
        ("max_in_flight", -1),
        ("max_in_flight", 1.5),
        ("max_in_flight", "8"),
        ("max_in_flight", True),
        ("max_in_flight", float("inf")),
        ("api_key", 5),
        ("api_key", b"key"),
        ("api_key", ""),
        ("api_key", "a\nb"),
        ("auth_header", 5),
        ("auth_header", ""),
        ("auth_header", "X\r\nY"),
        ("headers", 5),
        ("headers", "a: b"),
        ("headers", [("a", "b")]),
        ("headers", {"a": 5}),
        ("headers", {5: "a"}),
        ("headers", {"": "a"}),
        ("headers", {"a": "b\r\nc: d"}),
        ("prepare", "sign"),
        ("prepare", 5),
    ],
)
def test_a_field_that_cannot_work_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s){field}.*must be .*") as raised:
        Endpoint("http://h", **{field: value})  # type: ignore[arg-type]
    assert "http://h/v1" in str(raised.value)  # says which of many


def test_a_secret_is_in_no_message_and_no_repr() -> None:
    endpoint = Endpoint(
        "http://user:hunter2@h", api_key="hunter2", headers={"X-Key": "hunter2"}, prepare=print
    )
    assert "hunter2" not in repr(endpoint)
    fields: list[dict[str, Any]] = [{"api_key": "hunter2\n"}, {"headers": {"X-Key": "hunter2\n"}}]
    for field in fields:
        with pytest.raises(ConfigurationError) as raised:
            Endpoint("http://h", **field)
        assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("bad", ["hunter2\r\nx: 1", "hunter2\x0b", "hunter2\x7f", "\x01hunter2"])
def test_a_secret_that_no_header_can_carry_is_refused_unseen(bad: str) -> None:
    """The HTTP library would show it in an error."""
    for field in ("api_key", "headers"):
        given: Any = {"x-own": bad} if field == "headers" else bad
        with pytest.raises(ConfigurationError, match=field) as refused:
            Endpoint("http://h", **{field: given})
        assert "hunter2" not in str(refused.value)
    assert Endpoint("http://h", headers={"x-own": " v\t"}).headers["x-own"] == "v"


def test_user_and_password_become_a_header() -> None:
    headers = Endpoint("http://user:p%40ss@h/v1").headers
    assert headers == {"Authorization": "Basic dXNlcjpwQHNz"}


@pytest.mark.parametrize("own", ["Authorization", "authorization", "AUTHORIZATION"])
def test_an_own_authorization_header_goes_before_user_and_password(own: str) -> None:
    assert Endpoint("http://user:pass@h", headers={own: "Bearer x"}).headers == {own: "Bearer x"}


def test_an_own_key_goes_before_user_and_password() -> None:
    assert Endpoint("http://user:pass@h", api_key="k").headers == {}


def test_models_may_be_any_collection() -> None:
    names = {"a", "b"}
    for models in (
        ["a", "b"],
        ("a", "b"),
        names,
        frozenset(names),
        dict.fromkeys(names),
        iter("ab"),
    ):
        assert Endpoint("http://h", models=models).models == frozenset(names)  # type: ignore[arg-type]


def test_equal_endpoints_are_equal_and_hash_alike() -> None:
    one = Endpoint("http://H:80", weight=2, models=["a", "b"])
    other = Endpoint("http://h/v1/", weight=2.0, models=("b", "a"))
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one.weight) == repr(other.weight)


def test_endpoints_can_be_copied_pickled_and_replaced() -> None:
    endpoint = Endpoint("http://h", id="gpu-0", weight=3, models=["m"], headers={"A": "b"})
    assert copy.deepcopy(endpoint) == endpoint
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert dataclasses.replace(endpoint, weight=0.0).id == "gpu-0"
    with pytest.raises(dataclasses.FrozenInstanceError):
        endpoint.weight = 1.0  # type: ignore[misc]


def test_an_endpoint_keeps_its_own_headers() -> None:
    headers = {"A": "b"}
    endpoint = Endpoint("http://h", headers=headers)
    headers["A"] = "c"
    assert endpoint.headers["A"] == "b"


# -- where requests go ---------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "asked", "target"),
    [
        ("http://h", "/v1/chat/completions", "/v1/chat/completions"),
        ("http://h/v1", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("http://h/v1", "/health", "/health"),
        ("http://h/v1", "/v1", "/v1"),
        ("http://h/v1", "/v1/", "/v1/"),
        ("http://h/v1", "/v10/x", "/v10/x"),
        ("http://h/v1", "/", "/"),
        ("http://h/v1", "/generate?x=1", "/generate?x=1"),
        ("http://h/openai/v1", "/v1/models", "/openai/v1/models"),
        ("http://h/openai/v1", "/metrics", "/openai/metrics"),
        ("http://h/openai", "/v1/models", "/openai/models"),
        ("http://h/openai", "/metrics", "/openai/metrics"),
        ("http://h/v1?key=1", "/v1/models", "/v1/models?key=1"),
        ("http://h/v1?key=1", "/v1/models?limit=2", "/v1/models?key=1&limit=2"),
        ("http://h/notv1", "/x", "/notv1/x"),
    ],
)
def test_case_47_paths_are_joined_without_doubling_v1(url: str, asked: str, target: str) -> None:
    assert split_url(url).target(asked) == target


@given(st.sampled_from(["", "/v1", "/a/v1", "/a"]), st.text("v1/ab", max_size=12))
def test_no_target_doubles_v1(path: str, rest: str) -> None:
    target = split_url(f"http://h{path}").target(f"/v1/{rest.lstrip('/')}")
    if "v1/v1" not in rest and not rest.lstrip("/").startswith("v1"):
        assert "/v1/v1" not in target


def test_case_50_a_key_in_a_query_shows_nowhere() -> None:
    url = "https://user:hunter2@h/v1?key=s3cret"
    endpoint = Endpoint(url)
    assert endpoint.url == "https://h/v1?key=s3cret"  # it is sent, of course
    router = make_router([endpoint, Endpoint("https://h/v1?key=other", id="b")])
    shown = [repr(endpoint), endpoint.id, repr(router.stats()), str(router.explain("x"))]
    with pytest.raises(ConfigurationError) as duplicate:
        make_router([endpoint, Endpoint(url, id="c")])
    with pytest.raises(UnknownEndpointError) as unknown:
        router.remove("https://h/v1?key=s3cret2")
    with pytest.raises(ConfigurationError) as malformed:
        Endpoint("ftp://h/v1?key=s3cret")
    shown += [str(one.value) for one in (duplicate, unknown, malformed)]
    assert not [text for text in shown if "s3cret" in text or "hunter2" in text]
    assert router.in_flight("https://h/v1?key=s3cret") == 0  # and names it


def test_case_50_a_pickled_decision_holds_no_key() -> None:
    url = "https://h/v1?key=s3cret"
    router = make_router([Endpoint(url, api_key="hunter2", headers={"x-a": "hunter3"}), "http://b"])
    body = {"messages": [{"role": "user", "content": "the treasure"}]}
    with router.acquire(body) as lease:
        decision = lease.decision
    text = pickle.dumps([decision, router.stats()])
    assert not [word for word in (b"hunter", b"s3cret", b"treasure") if word in text]
    again, _ = pickle.loads(text)
    assert again.endpoint.id == decision.endpoint.id
    assert again.reason is decision.reason
    assert {one.id for one in again.candidates} == {one.id for one in decision.candidates}


def test_queries_tell_endpoints_apart() -> None:
    ids = {Endpoint(f"http://h/v1?{query}").id for query in ("a=1", "a=2", "key=1", "key=2")}
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("api-version=2024-10-21", "api-version=2024-10-21"),
        ("subscription-key=abc", "subscription-key=0c138d78"),
        ("a=1&X-Sig=abc&b=2", "a=1&X-Sig=0c138d78&b=2"),
        ("access_token=abc;b", "access_token=0c138d78;b"),
    ],
)
def test_what_is_shown_of_a_query(query: str, shown: str) -> None:
    assert Endpoint(f"http://h?{query}").id == f"http://h/v1?{shown}"


def test_a_repr_says_what_was_set() -> None:
    assert repr(Endpoint("http://h")) == "Endpoint('http://h/v1')"
    endpoint = Endpoint("http://h", id="a", weight=2, api_key="x", headers={"a": "b"})
    assert repr(endpoint) == "Endpoint('http://h/v1', id='a', weight=2.0)"


# -- TLS -----------------------------------------------------------------------


def test_a_context_is_part_of_no_text_and_no_name() -> None:
    context = ssl.create_default_context()
    endpoint = Endpoint("https://h", ssl_context=context)
    assert endpoint.ssl_context is context
    assert repr(endpoint) == repr(Endpoint("https://h"))
    assert endpoint.id == "https://h/v1"
    assert endpoint != Endpoint("https://h")
    assert endpoint == Endpoint("https://h", ssl_context=context)
    assert hash(endpoint) == hash(Endpoint("https://h", ssl_context=context))
    assert endpoint.without_secrets().ssl_context is None
    assert copy.copy(endpoint).ssl_context is context


def test_a_context_that_would_do_nothing_is_refused() -> None:
    context = ssl.create_default_context()
    with pytest.raises(ConfigurationError, match="https://"):
        Endpoint("http://h", ssl_context=context)
    for value in (True, "ca.pem", False):
        with pytest.raises(ConfigurationError, match=r"ssl\.SSLContext"):
            Endpoint("https://h", ssl_context=value)  # type: ignore[arg-type]
