"""Simulated time."""

from __future__ import annotations

import math
import time

import pytest

from prefixroute.testing.clock import Clock


def test_a_scale_of_zero_jumps() -> None:
    clock = Clock(0)
    assert clock.now_s() == 0.0
    assert clock.pause(5.0).sleep_s == 0.0
    assert clock.now_s() == 5.0
    clock.pause(3.0)
    assert clock.now_s() == 5.0


def test_a_scale_of_zero_jumps_to_the_timeout() -> None:
    clock = Clock(0)
    pause = clock.pause(5.0, limit_s=2.0)
    assert pause.timed_out
    assert clock.now_s() == 2.0


def test_a_simulated_second_takes_the_scale() -> None:
    clock = Clock(0.01)
    at_s = clock.now_s() + 10
    assert clock.pause(at_s).sleep_s == pytest.approx(0.1, abs=0.02)
    time.sleep(0.02)
    assert clock.now_s() >= 2.0


def test_a_limit_is_real_time() -> None:
    clock = Clock(0.01)
    at_s = clock.now_s() + 10
    assert not clock.pause(at_s, limit_s=1.0).timed_out
    pause = clock.pause(at_s, limit_s=0.05)
    assert pause.timed_out
    assert pause.sleep_s == 0.05


@pytest.mark.parametrize("scale", [0, 1.0])
def test_advancing(scale: float) -> None:
    clock = Clock(scale)
    clock.advance(100.0)
    assert clock.now_s() == pytest.approx(100.0, abs=1)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_time_does_not_go_back(seconds: float) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        Clock(0).advance(seconds)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
def test_nonsense_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="time_scale"):
        Clock(scale)
