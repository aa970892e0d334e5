"""The state machines find nothing in the core as it is, and find faults that are planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from prefixroute.core import lease as lease_module
from prefixroute.core import placement as placement_module
from prefixroute.core.fixed import Fixed, LeastLoaded, Random_, RoundRobin
from prefixroute.core.health import Health
from prefixroute.core.ledger import Ledger
from prefixroute.core.load import EndpointState, Loan
from prefixroute.core.nested import NestedPolicy
from prefixroute.core.placement import Placement
from prefixroute.core.queues import Queues
from prefixroute.core.ring import Ring
from prefixroute.core.router import RouterCore

from .machines import FixedMachine, LeaseMachine, RingMachine

Machine = type[RuleBasedStateMachine]


def run(machine: Machine, *, examples: int, steps: int = 40) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=[Phase.generate],  # nobody reads a shrunk example of a planted fault
        ),
    )


def on(placement: Placement) -> Machine:
    return type("LeaseMachine", (LeaseMachine,), {"placement": placement})


def test_the_ring() -> None:
    run(RingMachine, examples=40, steps=25)


def test_the_bound_of_fixed() -> None:
    run(FixedMachine, examples=120)


def test_leases_on_nested() -> None:
    run(LeaseMachine, examples=150)


@pytest.mark.parametrize("placement", [Fixed, LeastLoaded, RoundRobin, Random_])
def test_leases_on_others(placement: Callable[[], Placement]) -> None:
    run(on(placement()), examples=25)


# -- planted faults ---------------------------------------------------------------


def release_twice(router: RouterCore, loan: Loan, *, neutral: bool = False) -> None:
    loan.released = False
    ORIGINAL_END(router, loan, neutral=neutral)


def release_by_id(ledger: Ledger, loan: Loan, now: float, *, neutral: bool) -> None:
    """Finds the account by id, as one does who keeps a URL in a lease."""
    assert ledger.members is not None
    if not loan.released:
        for state in ledger.members.states:
            if state.endpoint.id == loan.state.endpoint.id:
                loan.state = state
    ORIGINAL_RELEASE(ledger, loan, now, neutral=neutral)


def never_answered(queues: Queues, loan: Loan) -> None:
    loan.state.open.pop(loan.serial, None)


def keeps_its_bit(policy: NestedPolicy, state: EndpointState) -> None:
    del policy, state


def forgets_the_dropped(lease: lease_module.Lease) -> None:
    del lease


def looser(total: int, share: float, factor: float, slack: float) -> int:
    return math.ceil(factor * (total + 1) * share - 1e-9) + 1


def tighter(total: int, share: float, factor: float, slack: float) -> int:
    del slack
    return max(1, math.ceil(factor * (total + 2) * share))


def ignores_max_in_flight(state: EndpointState) -> bool:
    del state
    return False


def takes_always(health: Health, now: float) -> bool:
    del health, now
    return True


def by_place_in_the_list(ring: Ring, members: Any, **options: Any) -> None:
    named = [(f"{at}", weight) for at, (_, weight) in enumerate(members)]
    ORIGINAL_RING(ring, named, **options)
    ring.members = tuple(members)


ORIGINAL_END = RouterCore.release
ORIGINAL_RELEASE = Ledger.release
ORIGINAL_RING = Ring.__init__

FAULTS: list[tuple[str, Machine, object, str, object]] = [
    ("double release", LeaseMachine, RouterCore, "release", release_twice),
    ("release hits who came back", LeaseMachine, Ledger, "release", release_by_id),
    ("queue not cleared", LeaseMachine, Queues, "answered", never_answered),
    ("bit kept", LeaseMachine, NestedPolicy, "left", keeps_its_bit),
    ("dropped lease kept", LeaseMachine, lease_module.Lease, "__del__", forgets_the_dropped),
    ("max_in_flight ignored", LeaseMachine, EndpointState, "full", property(ignores_max_in_flight)),
    ("capacity one too high", FixedMachine, placement_module, "capacity", looser),
    ("capacity for one too many", FixedMachine, placement_module, "capacity", tighter),
    ("ring by place in the list", RingMachine, Ring, "__init__", by_place_in_the_list),
]


@pytest.mark.leaves_in_flight
@pytest.mark.parametrize(
    ("machine", "owner", "name", "fault"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_a_planted_fault_is_found(
    machine: Machine, owner: object, name: str, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        run(machine, examples=2000)  # it stops at the first that fails
