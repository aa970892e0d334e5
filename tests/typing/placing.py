"""Asking a router: ``route``, ``explain``, ``acquire``, and what they return."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, assert_type

from prefixroute import (
    Decision,
    Endpoint,
    EndpointStats,
    Explanation,
    Lease,
    Prompt,
    Reason,
    RingView,
    Router,
    Stats,
)


class Body(TypedDict):
    """An application's own type of a request body."""

    model: str
    prompt: str


def asked(router: Router, body: Mapping[str, object], raw: bytes, own: Body) -> None:
    """Any form of a request will do."""
    assert_type(router.route(body), Decision)
    router.route(raw)
    router.route(own)
    router.route("text")
    router.route([1, 2, 3])
    router.route(Prompt.from_blocks([1, 2], block_tokens=16))
    router.route(body, path="/v1/responses", headers={"x-session-id": "7"}, session="7")
    assert_type(router.explain(body), Explanation)
    assert_type(router.ring(), RingView)


def told(decision: Decision, explanation: Explanation) -> None:
    """What a decision says."""
    assert_type(decision.endpoint, Endpoint)
    assert_type(decision.home, Endpoint | None)
    assert_type(decision.reason, Reason)
    assert_type(decision.key, str | None)
    assert_type(decision.candidates, tuple[Endpoint, ...])
    assert_type(decision.bound, int | None)
    assert_type(explanation.boundaries[0].spread, int | None)
    assert_type(explanation.to_dict(), dict[str, Any])
    match decision.reason:
        case Reason.HOME | Reason.SPREAD:
            pass
        case _:
            assert_type(decision.reason.sentence, str)


def lent(router: Router) -> None:
    """Bring your own HTTP."""
    with router.acquire({"prompt": "Hello"}, exclude=["http://gpu-0:8000/v1"]) as lease:
        assert_type(lease, Lease)
        assert_type(lease.endpoint.url, str)
        lease.first_token(cached_tokens=812)
        lease.usage(prompt_tokens=900, cached_tokens=812)


def counted(router: Router) -> None:
    """Counts, and what is missing in them."""
    stats = router.stats()
    assert_type(stats, Stats)
    assert_type(stats.endpoints, tuple[EndpointStats, ...])
    assert_type(stats.hit_rate, float | None)
    assert_type(stats.advice, tuple[str, ...])
    if stats.holdout is not None and stats.holdout.ttft_gain_s is not None:
        assert_type(stats.holdout.ttft_gain_s.low, float)


def wrong(router: Router, decision: Decision, body: Mapping[str, object]) -> None:
    """What cannot work is an error before it runs."""
    router.route(7)  # type: ignore[arg-type]
    router.route(body, "/v1/responses")  # type: ignore[call-arg]
    router.acquire(body, exclude=None)  # type: ignore[arg-type]
    decision.endpoint = Endpoint("http://gpu-0")  # type: ignore[misc]
    print(decision.home.url)  # type: ignore[union-attr]
    print(router.stats().hit_rate + 1.0)  # type: ignore[operator]
    Stats(())  # type: ignore[call-arg]
