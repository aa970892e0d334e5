"""Asserts about where requests went: what they let pass, and what they say of the rest."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from prefixroute import Router
from prefixroute.core.decision import Decision
from prefixroute.testing import (
    FakeCluster,
    assert_all_finished,
    assert_hit_rate,
    assert_same_endpoint,
    assert_spread,
    endpoint_of,
)

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello " * 100}], "max_tokens": 2}


def placed(*names: str) -> list[Decision]:
    """Decisions for endpoints of these names."""
    decisions = {name: Router([f"http://{name}"]).route("x") for name in set(names)}
    return [decisions[name] for name in names]


def named(*names: str) -> list[str]:
    return [f"http://{name}/v1" for name in names]


def test_whatever_was_sent_tells_its_endpoint() -> None:
    cluster = FakeCluster(2, time_scale=0)
    router = Router(cluster.urls)
    with httpx.Client(
        base_url=router.base_url, transport=router.transport(cluster.transport())
    ) as http:
        response = http.post("/chat/completions", json=BODY)
    with router.acquire(BODY) as lease:
        told = {endpoint_of(one) for one in (response, lease, lease.decision, router.explain(BODY))}
    assert told == {router.route(BODY).endpoint.id}
    assert endpoint_of(cluster.requests[0]) in told.pop()


@pytest.mark.parametrize("sent", [None, "http://a", httpx.Response(200)], ids=str)
def test_what_does_not_tell_it_is_refused(sent: object) -> None:
    with pytest.raises(TypeError, match="must be a response of a routed client"):
        assert_same_endpoint([sent])


def test_one_endpoint() -> None:
    assert assert_same_endpoint(placed("a", "a")) == "http://a/v1"
    with pytest.raises(AssertionError) as failed:
        assert_same_endpoint(placed("a", "b", "a"))
    assert str(failed.value) == (
        "requests went to 2 endpoints, not one: http://a/v1: 2, http://b/v1: 1"
    )
    with pytest.raises(AssertionError, match="there are no requests"):
        assert_same_endpoint([])


def test_several_endpoints() -> None:
    assert_spread(placed("a", "b"))
    assert_spread(placed("a", "b", "c", "a"), endpoints=3, at_most_share=0.5)
    with pytest.raises(AssertionError, match="went to 2 endpoints, not to 3 or more: http://a"):
        assert_spread(placed("a", "b"), endpoints=3)
    with pytest.raises(AssertionError, match="http://a/v1 got 67% of the requests, more than 50%"):
        assert_spread(placed("a", "a", "b"), at_most_share=0.5)
    with pytest.raises(AssertionError, match="there are no requests"):
        assert_spread([])


def test_the_hit_rate() -> None:
    cluster = FakeCluster(1, time_scale=0)
    router = Router(cluster.urls)
    with pytest.raises(AssertionError, match="no reply has told its cached tokens"):
        assert_hit_rate(router.stats(), at_least=0.0)
    with httpx.Client(
        base_url=router.base_url, transport=router.transport(cluster.transport())
    ) as http:
        for _ in range(4):
            http.post("/chat/completions", json=BODY)
    for of in (cluster, router.stats()):
        assert_hit_rate(of, at_least=0.5)
        with pytest.raises(AssertionError, match=r"the hit rate is 7\d\.\d%, less than 90\.0%"):
            assert_hit_rate(of, at_least=0.9)


def test_what_is_not_finished() -> None:
    cluster = FakeCluster(1, time_scale=0)
    assert_all_finished(cluster)
    with httpx.Client(transport=cluster.transport()) as http:
        request = http.build_request(
            "POST", f"{cluster.urls[0]}/chat/completions", json={**BODY, "stream": True}
        )
        response = http.send(request, stream=True)
        with pytest.raises(AssertionError, match="requests are not finished: replica-0: 1"):
            assert_all_finished(cluster)
        response.close()
    assert_all_finished(cluster)
