"""The state machines find nothing in the core as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefixroute.core.fixed import Fixed, LeastLoaded, Random_, RoundRobin
from prefixroute.core.placement import Placement

from .exchanges import ExchangeMachine
from .lives import LifeMachine
from .machines import FixedMachine, LeaseMachine, Machine, RingMachine, run


def on(machine: Machine, placement: Placement) -> Machine:
    return type(machine.__name__, (machine,), {"placement": placement})


def test_the_ring() -> None:
    run(RingMachine, examples=40, steps=25)


def test_the_bound_of_fixed() -> None:
    run(FixedMachine, examples=120)


def test_leases_on_nested() -> None:
    run(LeaseMachine, examples=150)


@pytest.mark.parametrize("placement", [Fixed, LeastLoaded, RoundRobin, Random_])
def test_leases_on_others(placement: Callable[[], Placement]) -> None:
    run(on(LeaseMachine, placement()), examples=25)


def test_the_lives_of_endpoints() -> None:
    run(LifeMachine, examples=200)


@pytest.mark.parametrize("placement", [LeastLoaded, Fixed])
def test_the_lives_of_endpoints_on_others(placement: Callable[[], Placement]) -> None:
    run(on(LifeMachine, placement()), examples=25)


def test_calls() -> None:
    run(ExchangeMachine, examples=400)
