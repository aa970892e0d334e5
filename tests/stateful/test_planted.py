"""Faults that are planted in the core are found by the same runs that find none without them.

Each is one that somebody could write. It is put in place of what the core does, and the machine
that is there to notice must fail, within as many examples as it runs for without a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from prefixroute.core import placement as placement_module
from prefixroute.core import placer as placer_module
from prefixroute.core.exchange import Exchange
from prefixroute.core.failover import RetryBudget
from prefixroute.core.health import Health, HealthPolicy
from prefixroute.core.judge import Judge
from prefixroute.core.lease import Lease
from prefixroute.core.ledger import Ledger
from prefixroute.core.load import EndpointState, Loan, capacity
from prefixroute.core.membership import Group, Members
from prefixroute.core.nested import NestedPolicy
from prefixroute.core.placement import Bound
from prefixroute.core.queues import Queues
from prefixroute.core.ring import Ring
from prefixroute.core.roster import Roster
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Keep
from prefixroute.core.waiters import Waiter

from .exchanges import ExchangeMachine
from .lives import LifeMachine
from .machines import FixedMachine, LeaseMachine, Machine, RingMachine, run

EXAMPLES: dict[Machine, int] = {
    RingMachine: 40,
    FixedMachine: 120,
    LeaseMachine: 150,
    LifeMachine: 1000,
    ExchangeMachine: 1000,
}
"""At most so many; a fault that takes long to find must not hang on which endpoint is chosen."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is put in place of ``owner.name``: made of what was there."""

    machine: Machine
    owner: object
    name: str
    make: Callable[[Any], object]


FAULTS: dict[str, Fault] = {}


def fault(machine: Machine, owner: object, name: str) -> Callable[[Callable[[Any], object]], None]:
    """Plant what a function makes of the original; the function's name says what the fault is."""

    def plant(make: Callable[[Any], object]) -> None:
        FAULTS[make.__name__.replace("_", " ")] = Fault(machine, owner, name, make)

    return plant


# -- counts


@fault(LeaseMachine, RouterCore, "release")
def a_second_release_counts(original: Any) -> object:
    def release(router: RouterCore, loan: Loan, *, neutral: bool = False) -> None:
        loan.released = False
        original(router, loan, neutral=neutral)

    return release


@fault(LeaseMachine, Ledger, "release")
def a_release_finds_its_endpoint_by_name(original: Any) -> object:
    def release(ledger: Ledger, loan: Loan, now: float, *, neutral: bool) -> None:
        assert ledger.members is not None
        if not loan.released:
            for state in ledger.members.states:
                if state.endpoint.id == loan.state.endpoint.id:
                    loan.state = state
        original(ledger, loan, now, neutral=neutral)

    return release


@fault(LifeMachine, Ledger, "swap")
def who_comes_back_gets_the_account_of_who_left(original: Any) -> object:
    def swap(ledger: Ledger, members: Members, now: float) -> object:
        gone = ledger.__dict__.setdefault("gone", {})
        joined, left = original(ledger, members, now)
        for state in left:
            gone[state.endpoint.url] = state.in_flight
        for state in joined:
            state.in_flight = gone.get(state.endpoint.url, 0)
        return joined, left

    return swap


@fault(LeaseMachine, Queues, "answered")
def an_answered_request_stays_in_the_queue(original: Any) -> object:
    return lambda queues, loan: loan.state.open.pop(loan.serial, None)


@fault(LeaseMachine, Lease, "__del__")
def a_dropped_lease_stays_counted(original: Any) -> object:
    return lambda lease: None


@fault(LifeMachine, Lease, "__del__")
def a_finalizer_takes_the_lock(original: Any) -> object:
    def finalize(lease: Lease) -> None:
        core, loan = lease._core, lease._loan
        if not loan.released:
            assert isinstance(core, RouterCore)
            with core._locked() as (ledger, now):
                ledger.release(loan, now, neutral=True)

    return finalize


# -- bounds


@fault(FixedMachine, placement_module, "capacity")
def the_bound_is_one_too_high(original: Any) -> object:
    return lambda *of: original(*of) + 1


@fault(FixedMachine, placement_module, "capacity")
def the_bound_counts_one_too_many(original: Any) -> object:
    return lambda total, *of: original(total + 1, *of)


@fault(FixedMachine, placement_module, "capacity")
def the_bound_rounds_up_what_is_whole(original: Any) -> object:
    return lambda total, share, factor, slack: math.floor(factor * (total + 1) * share) + 1


@fault(FixedMachine, Bound, "limits")
def the_load_of_who_left_stays_in_the_total(original: Any) -> object:
    seen: dict[int, tuple[Bound, set[EndpointState]]] = {}  # by policy

    def limits(
        bound: Bound, group: Group, available: Sequence[int], of: Sequence[int]
    ) -> dict[int, int]:
        _, every = seen.setdefault(id(bound), (bound, set()))
        every.update(group.states)
        total = sum(s.in_flight for s in every if not s.member or s.health.ejected_until is None)
        weight = sum(group.states[at].endpoint.weight for at in available)
        factor, slack = bound.load_factor, bound.load_slack
        shares = {at: group.states[at].endpoint.weight / weight for at in of}
        return {at: capacity(total, share, factor, slack) for at, share in shares.items()}

    return limits


@fault(LeaseMachine, EndpointState, "full")
def max_in_flight_is_one_too_high(original: Any) -> object:
    def full(state: EndpointState) -> bool:
        limit = state.endpoint.max_in_flight
        return limit is not None and state.in_flight > limit

    return property(full)


@fault(RingMachine, Ring, "__init__")
def the_ring_goes_by_places_in_the_list(original: Any) -> object:
    def init(ring: Ring, members: Any, **options: Any) -> None:
        named = [(f"{at}", weight) for at, (_, weight) in enumerate(members)]
        original(ring, named, **options)
        ring.members = tuple(members)

    return init


# -- what is known


@fault(LeaseMachine, NestedPolicy, "left")
def who_left_keeps_its_prefixes(original: Any) -> object:
    return lambda policy, state: None


@fault(LeaseMachine, Queues, "fresh")
def an_old_report_is_believed(original: Any) -> object:
    return lambda queues, state, now: state.reported is not None


@fault(LeaseMachine, Queues, "set_members")
def waits_are_compared_with_those_of_who_left(original: Any) -> object:
    def set_members(queues: Queues, states: Any) -> None:
        original(queues, dict.fromkeys([*queues._members, *states]))

    return set_members


# -- health


@fault(LifeMachine, Health, "takes")
def a_second_probe_is_sent(original: Any) -> object:
    def takes(health: Health, now: float) -> bool:
        if health.draining or now < health.cooling_until:
            return False
        return health.ejected_until is None or now >= health.ejected_until

    return takes


@fault(LifeMachine, Health, "_is_current")
def an_old_probe_speaks(original: Any) -> object:
    return lambda health, probe: probe > 0


@fault(LifeMachine, Health, "neutral")
def a_caller_who_leaves_takes_the_probe_along(original: Any) -> object:
    return lambda health, *, probe: None


@fault(LifeMachine, Health, "cool")
def a_cooldown_shrinks(original: Any) -> object:
    return lambda health, until: setattr(health, "cooling_until", until)


@fault(LifeMachine, HealthPolicy, "ejection_s")
def ejections_do_not_double(original: Any) -> object:
    return lambda policy, times, rng: original(policy, 1, rng)


@fault(LifeMachine, Health, "readmit")
def who_is_readmitted_still_drains(original: Any) -> object:
    def readmit(health: Health) -> None:
        draining = health.draining
        original(health)
        health.draining = draining

    return readmit


@fault(LifeMachine, placer_module, "_warm_enough")
def nobody_warms_up(original: Any) -> object:
    return lambda group, available, warming, now: available


@fault(LifeMachine, Judge, "probed")
def a_good_probe_readmits_who_was_ejected_by_hand(original: Any) -> object:
    def probed(judge: Judge, state: EndpointState, status: int | None, now: float) -> None:
        if status == 200 and state.health.ejected_until is not None:
            judge.readmit(state, now)
        else:
            original(judge, state, status, now)

    return probed


@fault(LifeMachine, Roster, "_now")
def the_clock_is_believed_when_it_goes_back(original: Any) -> object:
    return lambda router: router._clock()


# -- calls


@fault(ExchangeMachine, Exchange, "stop")
def who_is_cancelled_goes_on_waiting(original: Any) -> object:
    def stop(exchange: Exchange[Any]) -> None:
        exchange._waiter = None
        original(exchange)

    return stop


@fault(ExchangeMachine, RouterCore, "unqueue")
def a_lease_is_given_to_who_has_left(original: Any) -> object:
    def unqueue(router: RouterCore, waiter: Waiter) -> Lease | None:
        waiting = waiter in router._ledger.waiting
        found: Lease | None = original(router, waiter)
        return found if waiting else None

    return unqueue


@fault(ExchangeMachine, Exchange, "_keep")
def a_refusal_holds_its_lease(original: Any) -> object:
    held: list[Lease] = []

    def keep(exchange: Exchange[Any], lease: Lease, outcome: Any) -> Generator[Any, Any, None]:
        exchange._tried.keep((yield Keep(outcome)), lease.decision)
        held.append(exchange._open.popitem()[0])

    return keep


@fault(ExchangeMachine, Exchange, "_may_go_on")
def every_call_is_tried_everywhere(original: Any) -> object:
    return lambda exchange: len(exchange._tried.ids) < len(exchange._core.endpoints)


@fault(ExchangeMachine, RetryBudget, "take")
def the_budget_has_no_end(original: Any) -> object:
    return lambda budget, now: True


@fault(ExchangeMachine, RouterCore, "_grant")
def nobody_is_told_of_room(original: Any) -> object:
    return lambda router, ledger, now: []


@pytest.mark.leaves_in_flight
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = FAULTS[name]
    original = getattr(planted.owner, planted.name)
    monkeypatch.setattr(planted.owner, planted.name, planted.make(original))
    with pytest.raises(AssertionError):
        run(planted.machine, examples=EXAMPLES[planted.machine])  # it stops at the first
