"""The hottest prefixes, as they are shown."""

from __future__ import annotations

import pytest

from prefixroute.core.hottest import hottest
from prefixroute.core.traffic import Hot
from tests.core.support import chat, make_router, serve, text, urls


def test_the_hottest_come_first_with_their_share() -> None:
    hot = Hot(totals={"a": 6.0, "b": 4.0}, prefixes=[(1, 2.0, 4), (2, 8.0, 3)], tokens={2: 700})
    first, second = hottest(hot, 5)
    assert (first.digest, first.requests, first.share) == ("0000000000000002", 8.0, 0.8)
    assert (first.endpoints, first.tokens) == (3, 700)
    assert (second.digest, second.share, second.tokens) == ("0000000000000001", 0.2, None)
    assert second.endpoints == 4
    assert [one.digest for one in hottest(hot, 1)] == [first.digest]
    assert hottest(hot, 0) == []


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_of_those_of_the_same_requests_the_longest_is_shown(longest: int) -> None:
    count = 0.1 + 0.2  # as another order of adding up makes it
    hot = Hot(
        totals={"a": 1.0},
        prefixes=[(1, 0.3, 2), (2, count, 4), (3, 0.3, 3), (8, 0.2, 1), (7, 0.2, 1)],
        tokens={1: 256, 2: 128, 3: 256} | {longest: 512},
    )
    first, second = hottest(hot, 5)
    assert (first.digest, first.tokens) == (f"{longest:016x}", 512)
    assert (second.digest, second.tokens) == (f"{7:016x}", None)


def test_a_share_is_no_more_than_all_of_them() -> None:
    """A prefix may have been counted before its group was."""
    (one,) = hottest(Hot(totals={"a": 0.5}, prefixes=[(1, 2.0, 2)]), 1)
    assert one.share == 1.0
    (one,) = hottest(Hot(totals={"a": 0.5}, prefixes=[(1, 0.25, 2)]), 1)
    assert one.share == 0.5


def test_of_nothing_there_is_nothing() -> None:
    assert hottest(Hot(), 5) == []
    (one,) = hottest(Hot(prefixes=[(-1, 2.0, 2)]), 5)
    assert (one.digest, one.share) == ("f" * 16, 0.0)


def test_sizes_follow_what_replies_report() -> None:
    router = make_router(urls(4))
    system = text("assistant", 6000)
    for number in range(64):
        lease = router.acquire(chat(text(("question", number), 400), system=system))
        lease.usage(prompt_tokens=6400, cached_tokens=0)  # a token for each byte
        lease.release()
    first = hottest(router.hot(100), 1)[0]
    assert first.tokens == pytest.approx(6000, rel=0.05)


def test_a_routers_hottest_is_what_all_requests_start_with() -> None:
    router = make_router(urls(4))
    system = text("assistant", 6000)
    for number in range(12):
        serve(router, chat(text(("question", number), 400), system=system))
    first = hottest(router.hot(100), 1)[0]
    assert first.requests == pytest.approx(12.0)
    assert first.share == 1.0
    assert first.endpoints == 4
    boundaries = router.explain(chat("another", system=system)).boundaries
    (size,) = [one.tokens for one in boundaries if one.key == first.digest]
    assert first.tokens == round(size) > 1000
