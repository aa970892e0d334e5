from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.health import Health, HealthPolicy, HealthState
from prefixroute.errors import ConfigurationError

POLICY = HealthPolicy(jitter=0.0)
RNG = Random(0)


def fail(health: Health, now: float, times: int = 1, policy: HealthPolicy = POLICY) -> list[bool]:
    return [health.failed(now, policy, RNG, probe=0) for _ in range(times)]


def probe(health: Health, now: float) -> int:
    assert health.takes(now)
    number = health.sent(now)
    assert number > 0
    return number


def test_five_failures_in_a_row_eject() -> None:
    health = Health()
    assert fail(health, 0.0, 5) == [False] * 4 + [True]
    assert health.state(0.0) is HealthState.EJECTED
    assert not health.takes(9.99)


def test_a_good_reply_starts_the_count_anew() -> None:
    health, policy = Health(), HealthPolicy(error_rate=None)
    for _ in range(10):
        fail(health, 0.0, 4, policy)
        assert not health.succeeded(probe=0)
    assert health.state(0.0) is HealthState.HEALTHY


def test_further_failures_of_an_ejected_endpoint_do_not_prolong_it() -> None:
    health = Health()
    fail(health, 0.0, 5)
    assert fail(health, 5.0, 20) == [False] * 20  # requests that were under way already
    assert health.takes(10.0)


def test_ejections_double_up_to_the_longest() -> None:
    health, now = Health(), 0.0
    fail(health, now, 5)
    lengths = []
    for _ in range(8):
        assert health.ejected_until is not None
        lengths.append(health.ejected_until - now)
        now = health.ejected_until
        assert health.failed(now, POLICY, RNG, probe=probe(health, now))
    assert lengths == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_good_probe_readmits_with_a_clean_slate() -> None:
    health = Health()
    fail(health, 0.0, 5)
    assert health.succeeded(probe=probe(health, 10.0))
    assert health.state(10.0) is HealthState.HEALTHY
    assert fail(health, 11.0, 5) == [False] * 4 + [True]
    assert health.ejected_until == 21.0  # not doubled


def test_case_38_exactly_one_probe_at_a_time() -> None:
    health = Health()
    fail(health, 0.0, 5)
    sent = [health.sent(10.0) for _ in range(50)]
    assert sent.count(0) == 49
    assert health.state(10.0) is HealthState.PROBING
    assert not health.takes(10.0)


def test_a_probe_whose_caller_left_lets_the_next_one_go() -> None:
    health = Health()
    fail(health, 0.0, 5)
    health.neutral(probe=probe(health, 10.0))
    assert health.state(10.0) is HealthState.EJECTED
    probe(health, 10.0)


@pytest.mark.parametrize("end", ["neutral", "succeeded", "failed"])
def test_a_probe_that_is_not_the_current_one_says_nothing(end: str) -> None:
    health = Health()
    fail(health, 0.0, 5)
    stale = probe(health, 10.0)
    health.eject(20.0)  # by hand, while the probe is under way
    current = probe(health, 20.0)
    match end:
        case "neutral":
            health.neutral(probe=stale)
        case "succeeded":
            assert not health.succeeded(probe=stale)
        case _:
            assert not health.failed(20.0, POLICY, RNG, probe=stale)
    assert health.state(20.0) is HealthState.PROBING
    assert not health.takes(20.0)
    assert health.succeeded(probe=current)


def test_a_probe_may_be_told_to_be_neutral_again_after_it_failed() -> None:
    health = Health()
    fail(health, 0.0, 5)
    number = probe(health, 10.0)
    health.failed(10.0, POLICY, RNG, probe=number)
    again = probe(health, 30.0)
    health.neutral(probe=number)  # its lease ends only now
    assert health.state(30.0) is HealthState.PROBING
    assert health.succeeded(probe=again)


def test_other_requests_that_end_well_do_not_readmit() -> None:
    health = Health()
    fail(health, 0.0, 5)
    assert not health.succeeded(probe=0)
    assert health.state(0.0) is HealthState.EJECTED


def test_ejected_by_hand_stays_until_readmitted() -> None:
    health = Health()
    health.eject(math.inf)
    assert not health.takes(1e12)
    assert health.sent(1e12) == 0
    health.readmit()
    assert health.takes(0.0)


def test_a_cooldown_only_ever_grows() -> None:
    health = Health()
    health.cool(60.0)
    health.cool(1.0)
    assert health.state(59.9) is HealthState.COOLING
    assert not health.takes(59.9)
    assert health.takes(60.0)


def test_a_good_probe_ends_neither_a_drain_nor_a_cooldown() -> None:
    health = Health()
    fail(health, 0.0, 5)
    number = probe(health, 10.0)
    health.draining = True
    health.cool(50.0)
    assert health.succeeded(probe=number)
    assert health.state(20.0) is HealthState.DRAINING
    health.draining = False
    assert health.state(20.0) is HealthState.COOLING


def test_readmitting_by_hand_ends_whatever_kept_it_out() -> None:
    health = Health()
    health.eject(math.inf)
    health.cool(1e9)
    health.draining = True
    health.readmit()
    assert health.state(0.0) is HealthState.HEALTHY
    assert health.takes(0.0)


def test_what_is_shown_is_the_weightiest_reason() -> None:
    health = Health()
    health.cool(100.0)
    assert health.state(0.0) is HealthState.COOLING
    fail(health, 0.0, 5)
    assert health.state(0.0) is HealthState.EJECTED
    health.draining = True
    assert health.state(0.0) is HealthState.DRAINING


@given(st.integers(1, 10**6), st.floats(0, 1), st.integers(0, 2**32))
def test_an_ejection_has_a_length_within_its_range(times: int, jitter: float, seed: int) -> None:
    policy = HealthPolicy(jitter=jitter)
    length = policy.ejection_s(times, Random(seed))
    assert 10.0 <= length <= 300.0 * (1 + jitter)


def test_jitter_spreads_the_probes_of_many_routers() -> None:
    policy = HealthPolicy()
    assert len({policy.ejection_s(1, Random(seed)) for seed in range(50)}) == 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failures", 0),
        ("failures", -1),
        ("failures", 5.0),
        ("failures", True),
        ("failures", "5"),
        ("failures", None),
        *(
            (name, value)
            for name in ("eject_for_s", "max_eject_for_s", "jitter", "cool_for_s", "max_cool_for_s")
            for value in (-1, math.nan, math.inf, "10", None, False)
        ),
    ],
)
def test_a_policy_that_cannot_work_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"HealthPolicy\({field}=.* must be"):
        HealthPolicy(**{field: value})  # type: ignore[arg-type]


def test_equal_policies_print_alike() -> None:
    assert repr(HealthPolicy(eject_for_s=10)) == repr(HealthPolicy(eject_for_s=10.0))


def test_half_of_the_last_twenty_failing_ejects() -> None:
    health = Health()
    ejected = [fail(health, 0.0)[0] or health.succeeded(probe=0) for _ in range(10)]
    assert ejected == [False] * 10  # 19 ends or fewer say nothing yet
    assert fail(health, 0.0) == [True]


def test_failures_that_are_rarer_than_the_rate_never_eject() -> None:
    health = Health()
    for number in range(1000):
        if number % 3:
            health.succeeded(probe=0)
        else:
            assert fail(health, 0.0) == [False]


def test_old_ends_leave_the_window() -> None:
    health, policy = Health(), HealthPolicy(failures=100, error_window=4)
    fail(health, 0.0, 2, policy)
    for _ in range(3):
        health.succeeded(probe=0)
    assert fail(health, 0.0, 1, policy) == [False]  # good, good, good, failed
    assert fail(health, 0.0, 1, policy) == [True]  # two of the last four


def test_what_led_to_an_ejection_is_forgotten_when_it_ends() -> None:
    health, policy = Health(), HealthPolicy(failures=100, error_window=4, jitter=0.0)
    fail(health, 0.0, 4, policy)
    health.succeeded(probe=probe(health, 10.0))
    assert fail(health, 10.0, 3, policy) == [False] * 3
    assert fail(health, 10.0, 1, policy) == [True]


def test_in_a_panic_a_probe_need_not_be_due() -> None:
    health = Health()
    fail(health, 0.0, 5)
    number = health.sent(1.0, panic=True)
    assert number
    assert not health.sent(1.0, panic=True)  # one at a time all the same
    assert health.succeeded(probe=number)


def test_in_a_panic_what_was_ejected_by_hand_stays_so() -> None:
    health = Health()
    health.eject(math.inf)
    assert not health.sent(1.0, panic=True)


def test_warmth_rises_from_nothing_to_all() -> None:
    health = Health()
    assert health.warmth(0.0) == 1.0
    health.warm_up(100.0, HealthPolicy(warm_up_s=10.0))
    shares = [health.warmth(now) for now in (99.0, 100.0, 105.0, 110.0, 1e9)]
    assert shares == [0.0, 0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("share", "ejected", "members", "may"),
    [
        (1.0, 7, 8, True),
        (0.5, 3, 8, True),
        (0.5, 4, 8, False),
        (0.0, 0, 8, True),  # one always may be
        (0.0, 1, 8, False),
        (0.1, 0, 3, True),
    ],
)
def test_how_many_may_be_ejected(share: float, ejected: int, members: int, may: bool) -> None:
    assert HealthPolicy(max_ejected_share=share).may_eject(ejected, members) is may


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("error_rate", 0),
        ("error_rate", 1.1),
        ("error_window", 1),
        ("error_window", 1001),
        ("max_ejected_share", 1.5),
        ("max_ejected_share", -0.1),
        ("warm_up_s", -1),
        ("warm_up_s", math.inf),
        ("probe_every_s", 0),
        ("probe_every_s", "5"),
        ("probe_path", "health"),
        ("probe_path", None),
        ("probe_path", "/heälth"),
    ],
)
def test_a_policy_out_of_its_ranges_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"HealthPolicy\({field}=.* must be"):
        HealthPolicy(**{field: value})  # type: ignore[arg-type]
