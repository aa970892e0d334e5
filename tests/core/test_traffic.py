from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.traffic import Traffic, share

HALF_LIFE_S = 600.0


def traffic(max_prefixes: int = 1000) -> Traffic:
    made = Traffic(half_life_s=HALF_LIFE_S, max_prefixes=max_prefixes)
    made.advance(0.0)
    return made


# -- the share -----------------------------------------------------------------


def test_one_sighting_among_others_proves_nothing() -> None:
    assert share(1.0, 100.0) < 0.001


def test_in_every_request_so_far_is_hot_at_once() -> None:
    assert share(1.0, 1.0) == 0.5
    assert share(3.0, 3.0) == 0.75


def test_without_traffic_nothing_is_hot() -> None:
    assert share(0.0, 0.0) == 0.0
    assert share(5.0, 0.0) == 0.0


def test_a_known_value() -> None:
    # n - sqrt(n (1 - n / T)) over T + 1
    assert share(25.0, 100.0) == pytest.approx((25.0 - math.sqrt(25.0 * 0.75)) / 101.0)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_share_is_a_lower_bound_between_0_and_1(count: float, total: float) -> None:
    found = share(count, total)
    assert 0.0 <= found < 1.0 or found == pytest.approx(1.0)
    if total > 0.0 and count <= total:
        assert found <= count / total + 1e-12


@given(st.floats(2, 1e6), st.floats(0, 1), st.floats(0, 1))
def test_a_share_grows_with_the_count(total: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert share(low * total, total) <= share(high * total, total) + 1e-9


# -- the counts ----------------------------------------------------------------


def test_counts_halve_in_a_half_life() -> None:
    counts = traffic()
    counts.record([1, 2], "g")
    counts.record([1, 3], "g")
    assert (counts.count(1), counts.count(2), counts.count(9)) == (2.0, 1.0, 0.0)
    counts.advance(HALF_LIFE_S)
    assert (counts.count(1), counts.total("g")) == (1.0, 1.0)
    counts.record([1], "g")
    assert (counts.count(1), counts.total("g")) == (2.0, 2.0)


@pytest.mark.parametrize("waited_s", [0.0, 77.0, 700 * HALF_LIFE_S])
def test_turns_of_one_conversation_are_no_branches(waited_s: float) -> None:
    counts = traffic()
    counts.advance(0.0)
    for turns in range(1, 12):
        chain = list(range(1, 2 * turns + 1))
        assert not any(counts.branch(chain, at) for at in range(1, len(chain) + 1))
        counts.record(chain, "g")
        counts.advance(turns * waited_s)


def test_a_prefix_is_branched_where_requests_went_different_ways() -> None:
    counts = traffic()
    counts.record([1, 2, 3], "g")
    counts.record([1, 2, 3, 4], "g")
    other = [1, 2, 5]
    assert [counts.branch(other, at) for at in (1, 2, 3)] == [2, 2, None]
    assert counts.branch([9, 8], 1) is None


def test_a_turn_that_is_asked_for_again_is_no_branch() -> None:
    counts = traffic()
    counts.record([1, 2], "g")
    counts.record([1, 2, 3], "g")
    assert [counts.branch([1, 2], at) for at in (1, 2)] == [None, None]


def test_a_growing_text_ends_before_its_tail() -> None:
    counts = traffic()
    counts.record([1, 2, 90], "g", 2)
    assert counts.branch([1, 2, 3, 91], 2) is None
    counts.record([7], "g", 0)  # nothing but a tail
    assert counts.count(7) == 1.0


def test_asking_counts_nothing() -> None:
    counts = traffic()
    counts.record([1], "g")
    for _ in range(5):
        counts.advance(0.0)
        assert (counts.count(1), counts.total("g"), counts.total("h"), len(counts)) == (1, 1, 0, 1)


def test_a_clock_that_steps_back_changes_nothing() -> None:
    counts = traffic()
    counts.advance(1000.0)
    counts.record([1], "g")
    counts.advance(-5000.0)
    assert counts.count(1) == 1.0
    counts.advance(1000.0 + HALF_LIFE_S)
    assert counts.count(1) == pytest.approx(0.5)


@pytest.mark.parametrize("half_lives", [3, 511, 513, 1100, 10_000, 10**9])
def test_counts_outlive_any_pause(half_lives: int) -> None:
    counts = traffic()
    counts.record([1], "g")
    counts.advance(half_lives * HALF_LIFE_S)
    assert counts.count(1) == pytest.approx(2.0 ** -min(half_lives, 1074))
    counts.record([1], "g")
    assert counts.count(1) == pytest.approx(1.0, abs=0.2)
    assert counts.total("g") == pytest.approx(counts.count(1))


def test_counts_decay_after_a_very_long_time() -> None:
    counts = traffic()
    counts.record([1], "g")
    counts.advance(2000 * HALF_LIFE_S)
    counts.record([1], "g")
    counts.advance(2001 * HALF_LIFE_S)
    assert counts.count(1) == pytest.approx(0.5)


def test_counts_decay_alike_however_often_they_are_looked_at() -> None:
    often, seldom = traffic(), traffic()
    for counts in (often, seldom):
        counts.record([1], "g")
    for second in range(0, 400_000, 700):  # 667 half-lives: over a change of scale
        often.advance(float(second))
        often.record([2], "g")
        seldom.advance(float(second))
        seldom.record([2], "g")
        if second % 7000 == 0:
            assert often.count(2) == pytest.approx(seldom.count(2))
    # A request every 700 s decays to 1 / (1 - 2^(-7/6)).
    assert often.count(2) == pytest.approx(1 / (1 - 2 ** (-7 / 6)), rel=1e-6)
    assert often.total("g") == pytest.approx(often.count(2))


def test_totals_are_a_groups_own() -> None:
    counts = traffic()
    counts.record([1], ("tier", 0))
    counts.record([1], ("tier", 1))
    assert counts.total(("tier", 0)) == counts.total(("tier", 1)) == 1.0


def test_groups_are_bounded() -> None:
    counts = traffic()
    for number in range(20_000):
        counts.record([], number)
        counts.record([], "kept")
    assert len(counts._totals) <= 4096
    assert counts.total("kept") == 20_000.0


@pytest.mark.parametrize("bound", [16, 1000])
def test_prefixes_and_spreads_are_bounded_and_hot_ones_stay(bound: int) -> None:
    counts = traffic(bound)
    for number in range(20 * bound):
        counts.record([-1, number], "g")
        counts.set_spread(number, 3)
        counts.set_size(number, 700.4)
        assert len(counts) <= bound
        assert len(counts._spreads) <= max(2, bound // 8)
        assert len(counts._sizes) <= max(2, bound // 8)
    assert counts.count(-1) == 20 * bound


def test_a_spread_is_1_until_it_is_set_and_after_it_fell() -> None:
    counts = traffic()
    assert counts.spread(5) == 1
    counts.set_spread(5, 3)
    assert counts.spread(5) == 3
    counts.set_spread(5, 1)
    counts.set_spread(6, 1)
    assert (counts.spread(5), len(counts._spreads)) == (1, 0)
