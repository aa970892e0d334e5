"""What a router counts of replies' reports, and what it advises where they are missing."""

from __future__ import annotations

import pytest

from prefixroute.core.router import RouterCore
from tests.core.support import make_router

CHAT = {"messages": [{"role": "user", "content": "Tell me about prefixes. " * 40}]}


@pytest.fixture
def router() -> RouterCore:
    return make_router(1)


def reply(router: RouterCore, body: object = CHAT, **usage: int) -> None:
    with router.acquire(body) as lease:  # type: ignore[arg-type]
        lease.usage(**usage)


def test_nothing_is_advised_before_a_reply(router: RouterCore) -> None:
    assert router.stats().advice == ()
    assert router.stats().hit_rate is None


def test_missing_cached_tokens_name_the_engines_flags(router: RouterCore) -> None:
    reply(router, prompt_tokens=250)
    [endpoint] = router.stats().endpoints
    assert (endpoint.reports, endpoint.unreported_cached, endpoint.unreported) == (0, 1, 0)
    [advice] = router.stats().advice
    assert advice.startswith(f"{endpoint.id}: ")
    assert "--enable-prompt-tokens-details" in advice
    assert "--enable-cache-report" in advice
    assert router.stats().hit_rate is None  # unknown, not zero


def test_missing_usage_names_how_to_ask_for_it(router: RouterCore) -> None:
    reply(router)
    [endpoint] = router.stats().endpoints
    assert (endpoint.reports, endpoint.unreported_cached, endpoint.unreported) == (0, 0, 1)
    [advice] = router.stats().advice
    assert "inject_usage=True" in advice


def test_one_report_ends_the_advice(router: RouterCore) -> None:
    reply(router, prompt_tokens=250)
    reply(router, prompt_tokens=250, cached_tokens=0)
    [endpoint] = router.stats().endpoints
    assert (endpoint.reports, endpoint.unreported_cached) == (1, 1)
    assert endpoint.advice is None
    assert router.stats().advice == ()


def test_what_has_no_prompt_or_did_not_succeed_says_nothing(router: RouterCore) -> None:
    reply(router, {"model": "m"})
    with router.acquire(CHAT) as lease:
        lease.failed(status=500)
    router.acquire(CHAT).abandon()
    [endpoint] = router.stats().endpoints
    assert (endpoint.reports, endpoint.unreported_cached, endpoint.unreported) == (0, 0, 0)
