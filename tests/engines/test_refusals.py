"""What real replicas refuse: handed on as it is, and what it says about the endpoint."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from prefixroute import Router
from prefixroute.core.health import HealthState
from tests.engines.llama import MODEL_NAME
from tests.engines.placements import endpoint_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(60)]

HELLO: dict[str, Any] = {
    "model": MODEL_NAME,
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 1,
}


def post(client: httpx.Client, url: str, content: bytes) -> httpx.Response:
    return client.post(url, content=content, headers={"content-type": "application/json"})


def states(router: Router) -> set[HealthState]:
    return {endpoint.state for endpoint in router.stats().endpoints}


def assert_as_it_was(answer: httpx.Response, direct: httpx.Client, path: str) -> None:
    """The endpoint that refused says the same, to the byte, when it is asked without the router."""
    endpoint = answer.extensions["prefixroute"].endpoint
    own = post(direct, f"{endpoint.url}/{path}", answer.request.content)
    assert answer.status_code == own.status_code
    assert answer.headers.raw == own.headers.raw
    assert answer.content == own.content


def test_a_wrong_model_name_is_the_engines_business(router: Router, http: httpx.Client) -> None:
    answer = http.post("chat/completions", json=HELLO | {"model": "no-such-model"})
    assert answer.status_code == 200  # llama.cpp has one model, whatever it is called
    assert answer.json()["model"] == MODEL_NAME
    assert router.stats().failures == 0


def test_a_hundred_prompts_that_are_too_long(
    router: Router, http: httpx.Client, direct: httpx.Client
) -> None:
    bodies = (
        HELLO | {"messages": [{"role": "user", "content": f"{n} " * 600}]} for n in range(100)
    )
    for number, body in enumerate(bodies):
        answer = http.post("chat/completions", json=body)
        assert answer.json()["error"]["type"] == "exceed_context_size_error"
        if number % 25 == 0:
            assert_as_it_was(answer, direct, "chat/completions")
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (100, 0, 0)  # one attempt each
    assert states(router) == {HealthState.HEALTHY}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", b'{"messages": "Hello"}', 400),
        ("chat/completions", b"{}", 400),
        ("completions", b'{"prompt": [999999]}', 400),
        ("no/such/path", b"{}", 404),
        ("embeddings", b'{"input": "Hello"}', 501),
    ],
)
def test_what_an_engine_does_not_do_says_nothing_about_it(
    router: Router, http: httpx.Client, direct: httpx.Client, path: str, body: bytes, status: int
) -> None:
    for _ in range(20):
        answer = post(http, path, body)
        assert answer.status_code == status
    assert_as_it_was(answer, direct, path)
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (20, 0, 0)
    assert states(router) == {HealthState.HEALTHY}


def test_one_broken_body_counts_once_however_often_it_comes(
    router: Router, http: httpx.Client, direct: httpx.Client
) -> None:
    used = set()
    for _ in range(30):
        answer = post(http, "chat/completions", b'{"messages": [')
        assert answer.status_code == 500
        used.add(endpoint_of(answer.extensions))
    assert_as_it_was(answer, direct, "chat/completions")
    assert len(used) == 3
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (30, 1, 0)
    assert states(router) == {HealthState.HEALTHY}


def test_many_different_broken_bodies_count_once_together(
    router: Router, http: httpx.Client
) -> None:
    for number in range(15):
        assert post(http, "chat/completions", b'{"messages": [%d' % number).status_code == 500
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (15, 1, 0)
    assert states(router) == {HealthState.HEALTHY}
