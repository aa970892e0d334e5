"""State machines over the core on a virtual clock, with models to compare it with."""

from __future__ import annotations

import gc
import math
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.hashing import digest64
from prefixroute.core.health import HealthPolicy
from prefixroute.core.lease import Lease
from prefixroute.core.load import EndpointState, EngineLoad
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement, outstanding
from prefixroute.core.ring import Ring
from prefixroute.core.router import RouterCore
from prefixroute.errors import Saturated

from ..core.support import FakeClock, blocks, chat

names = st.sampled_from([f"gpu-{number}" for number in range(8)])
weights = st.sampled_from([0.25, 0.5, 1.0, 1.0, 1.0, 2.0, 3.0])

Machine = type[RuleBasedStateMachine]


def run(machine: Machine, *, examples: int, steps: int = 40) -> None:
    """Let a machine run, as CI does; planted faults are looked for with the same settings."""
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


KEYS = [digest64(number.to_bytes(2, "little")) for number in range(80)]


class RingMachine(RuleBasedStateMachine):
    """Members come, go and change weight; keys move to and from those alone."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, float] = {"first": 1.0}
        self.owners = self.owners_now()

    def owners_now(self) -> list[list[str]]:
        ring = Ring(list(self.members.items()), virtual_nodes=16)
        return [[ring.members[index][0] for index in ring.order(key)] for key in KEYS]

    def changed(self, *, joined: str | None = None, left: str | None = None) -> None:
        before, self.owners = self.owners, self.owners_now()
        for old, new in zip(before, self.owners, strict=True):
            assert sorted(new) == sorted(self.members)
            # The order of all others is as it was; the first of it is who owns the key.
            assert [n for n in old if n != left] == [n for n in new if n != joined]

    @rule(name=names, weight=weights)
    def add(self, name: str, weight: float) -> None:
        if name not in self.members:
            self.members[name] = weight
            self.changed(joined=name)

    @rule(name=names)
    def remove(self, name: str) -> None:
        if self.members.pop(name, None) is not None:
            self.changed(left=name)

    @rule(name=names, weight=weights)
    def reweigh(self, name: str, weight: float) -> None:
        if name not in self.members:
            return
        old = self.members[name]
        self.members[name] = weight
        before, self.owners = self.owners, self.owners_now()
        for was, now in zip(before, self.owners, strict=True):
            assert [n for n in was if n != name] == [n for n in now if n != name]
            place = now.index(name) - was.index(name)
            assert place <= 0 if weight >= old else place >= 0

    @rule(data=st.data())
    def shuffle(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(sorted(self.members)))
        self.members = {name: self.members[name] for name in order}
        self.changed()

    @invariant()
    def each_key_meets_everybody_once(self) -> None:
        for order in self.owners:
            assert len(order) == len(set(order)) == len(self.members)


class FixedMachine(RuleBasedStateMachine):
    """``Fixed`` without slack: nobody above ``ceil(c (m + 1) w / W)`` at admission, ever."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Lease] = []

    @initialize(
        factor=st.sampled_from(["1", "1.05", "1.25", "2"]),
        some=st.lists(weights, min_size=1, max_size=5),
    )
    def start(self, factor: str, some: list[float]) -> None:
        self.factor = Fraction(factor)
        self.clock = FakeClock()
        self.serial = len(some)
        self.router = RouterCore(
            [Endpoint(f"http://e{at}", id=f"e{at}", weight=w) for at, w in enumerate(some)],
            placement=Fixed(load_factor=float(factor), virtual_nodes=16),
            health=HealthPolicy(failures=2, jitter=0.0, warm_up_s=0.0),
            clock=self.clock,
            wall_clock=lambda: 0.0,
            seed=0,
        )

    def takers(self) -> list[EndpointState]:
        now = self.router._now()
        return [
            state
            for state in self.router._members.states
            if state.endpoint.weight > 0 and state.health.takes(now) and not state.full
        ]

    @rule(key=st.sampled_from([1, 1, 1, 2, 3, 4]), count=st.integers(1, 6))
    def acquire(self, key: int, count: int) -> None:
        for _ in range(count):
            takers = self.takers()
            in_flight = sum(state.in_flight for state in takers)
            total = sum(Fraction(state.endpoint.weight) for state in takers)
            try:
                lease = self.router.acquire(blocks(key))
            except Saturated:
                assert not takers
                assert any(state.full for state in self.router._members.states)
                return
            self.held.append(lease)
            if takers:  # else in panic, where no bound is promised
                share = Fraction(lease.endpoint.weight) / total
                bound = math.ceil(self.factor * (in_flight + 1) * share)
                assert self.router.in_flight(lease.endpoint) <= bound

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 10**6), how=st.sampled_from(["release", "fail", "busy", "abandon"]))
    def end(self, at: int, how: str) -> None:
        lease = self.held.pop(at % len(self.held))
        if how == "fail":
            lease.failed(OSError())
        if how == "busy":
            lease.failed(status=503, retry_after_s=5.0)
        if how == "abandon":
            lease.abandon()
        lease.release()

    @rule(weight=weights, limit=st.sampled_from([None, None, 1, 3]))
    def add(self, weight: float, limit: int | None) -> None:
        name = f"e{self.serial}"
        self.serial += 1
        if len(self.router.endpoints) < 8:
            made = Endpoint(f"http://{name}", id=name, weight=weight, max_in_flight=limit)
            self.router.add(made)

    @precondition(lambda self: len(self.router.endpoints) > 1)
    @rule(at=st.integers(0, 100))
    def remove(self, at: int) -> None:
        self.router.remove(self.router.endpoints[at % len(self.router.endpoints)])

    @rule(at=st.integers(0, 100), how=st.sampled_from(["eject", "readmit", "start_drain"]))
    def change(self, at: int, how: str) -> None:
        endpoint = self.router.endpoints[at % len(self.router.endpoints)]
        getattr(self.router, how)(endpoint)

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.clock.tick(seconds)

    def teardown(self) -> None:
        for lease in self.held:
            lease.release()


LONGEST_BELIEVED_S = 3.0 * 60.0
"""Three intervals, of which none is taken for longer than a minute."""

ids = st.sampled_from(["a", "b", "c", "d"])
prompts = st.sampled_from(
    [
        blocks(1, 2, 3),
        blocks(1, 2, 4),
        blocks(1),
        blocks(9, 9, 9, 9, 9),
        chat("hello", "hi", "how are you", stream=True),
        chat("hello", stream=True),
        chat("hello", model="n"),
        {"input": "go on", "previous_response_id": "resp"},
        {},
        None,
    ]
)


class LeaseMachine(RuleBasedStateMachine):
    """Leases over a router, compared with a model that only counts who holds what."""

    placement: Placement = Nested(virtual_nodes=8, max_prefixes=64, block_bytes=64)

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.router = RouterCore(
            [self.endpoint("a"), self.endpoint("b")],
            placement=self.placement,
            health=HealthPolicy(failures=2, jitter=0.0),
            clock=self.clock,
            wall_clock=lambda: 0.0,
            seed=0,
        )
        self.open: dict[int, tuple[Lease, EndpointState]] = {}
        self.ended: list[Lease] = []
        self.serial = 0
        self.accounts: dict[int, EndpointState] = {}
        self.expected: dict[int, int] = {}  # in-flight requests by account
        self.heard: dict[int, float] = {}  # when an account had its last report
        self.notice()

    @staticmethod
    def endpoint(name: str, weight: float = 1.0) -> Endpoint:
        return Endpoint(
            f"http://{name}",
            id=name,
            weight=weight,
            models=["m", "n"] if name == "a" else None,
            tier=int(name == "d"),
            max_in_flight=2 if name == "b" else None,
        )

    def notice(self) -> None:
        """Every account that ever was stays watched: an old lease may touch it."""
        for state in self.router._members.states:
            self.accounts.setdefault(id(state), state)
            self.expected.setdefault(id(state), 0)

    def ids_now(self) -> set[str]:
        return {endpoint.id for endpoint in self.router.endpoints}

    # -- requests

    @rule(body=prompts, exclude=st.sets(ids, max_size=2))
    def acquire(self, body: Any, exclude: set[str]) -> None:
        if len(self.open) > 30:
            return
        try:
            lease = self.router.acquire(body, exclude=exclude)
        except Saturated:
            groups = self.router._members.groups(self.router.read(body).model)
            eligible = [state for group in groups for state in group.states]
            left = [state for state in eligible if state.endpoint.id not in exclude]
            assert not left or any(state.full for state in left)
            return
        assert lease.endpoint.id not in exclude
        assert lease.endpoint in self.router.endpoints
        assert lease.endpoint.weight > 0
        state = lease._loan.state
        self.serial += 1
        self.open[self.serial] = (lease, state)
        self.expected[id(state)] += 1

    def any_open(self, at: int) -> tuple[int, Lease]:
        serial = sorted(self.open)[at % len(self.open)]
        return serial, self.open[serial][0]

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 50), cached=st.sampled_from([None, 0, 100, 10**6, -3]))
    def first_token(self, at: int, cached: int | None) -> None:
        self.any_open(at)[1].first_token(cached)

    @precondition(lambda self: self.open)
    @rule(
        at=st.integers(0, 50),
        prompt=st.sampled_from([None, 1, 900]),
        cached=st.sampled_from([None, 0, 512]),
    )
    def usage(self, at: int, prompt: int | None, cached: int | None) -> None:
        lease = self.any_open(at)[1]
        lease.usage(prompt_tokens=prompt, cached_tokens=cached)
        lease.answered("resp")

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 50), status=st.sampled_from([None, 200, 404, 429, 500, 503]))
    def failed(self, at: int, status: int | None) -> None:
        digest = 5 if status == 500 else None
        self.any_open(at)[1].failed(OSError(), status, retry_after_s=3.0, digest=digest)

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 50), how=st.sampled_from(["release", "abandon", "drop", "with"]))
    def end(self, at: int, how: str) -> None:
        serial, lease = self.any_open(at)
        _, state = self.open.pop(serial)
        self.expected[id(state)] -= 1
        if how == "drop":
            cycle: list[object] = [lease]
            cycle.append(cycle)
            del lease, cycle
            gc.collect(0)
            gc.collect(1)
            return
        if how == "with":
            with lease:
                pass
        else:
            getattr(lease, how)()
        self.ended = [*self.ended[-5:], lease]

    @precondition(lambda self: self.ended)
    @rule(
        at=st.integers(0, 50),
        how=st.sampled_from(["release", "abandon", "first_token", "usage", "failed"]),
    )
    def again(self, at: int, how: str) -> None:
        lease = self.ended[at % len(self.ended)]
        if how == "failed":
            lease.failed(status=503)
        else:
            getattr(lease, how)()

    @rule(body=prompts)
    def ask(self, body: Any) -> None:
        try:
            explained = self.router.explain(body)
            assert explained.decision == self.router.route(body)
        except Saturated:
            pass

    # -- endpoints

    @rule(name=ids, weight=st.sampled_from([0.5, 1.0, 2.0]))
    def add(self, name: str, weight: float) -> None:
        if name not in self.ids_now():
            self.router.add(self.endpoint(name, weight))
            self.notice()

    @rule(name=ids)
    def remove(self, name: str) -> None:
        if name in self.ids_now() and len(self.ids_now()) > 1:
            rest = [e for e in self.router.endpoints if e.id != name]
            if any(e.weight > 0 for e in rest):
                self.router.remove(name)

    @rule(name=ids)
    def remove_and_add_again(self, name: str) -> None:
        """The same URL comes back at once, while leases of the old one are open."""
        self.remove(name)
        self.add(name, 1.0)

    @rule(wanted=st.sets(ids, min_size=1), weight=st.sampled_from([0.0, 1.0, 3.0]))
    def set_endpoints(self, wanted: set[str], weight: float) -> None:
        some = [
            self.endpoint(name, 1.0 if at else weight) for at, name in enumerate(sorted(wanted))
        ]
        if any(endpoint.weight > 0 for endpoint in some):
            self.router.set_endpoints(some)
            self.notice()

    @rule(name=ids, how=st.sampled_from(["eject", "readmit", "start_drain"]))
    def change(self, name: str, how: str) -> None:
        if name in self.ids_now():
            getattr(self.router, how)(name)

    @rule(
        loads=st.dictionaries(
            st.sampled_from(["a", "http://B", "nobody", "d"]),
            st.builds(EngineLoad, running=st.integers(0, 9), waiting=st.integers(0, 99)),
        )
    )
    def report(self, loads: dict[str, EngineLoad]) -> None:
        self.router.report_load(loads)
        named = {name.removeprefix("http://").lower() for name in loads}
        for state in self.router._members.states:
            if state.endpoint.id in named:
                self.heard[id(state)] = self.router._now()

    @rule(seconds=st.sampled_from([0.01, 1.0, 10.0, 700.0, 1e6, -0.5, -1e5]))
    def wait(self, seconds: float) -> None:
        """Also backwards."""
        self.clock.tick(seconds)

    # -- what must always hold

    @invariant()
    def counts_are_the_models(self) -> None:
        stats = self.router.stats()  # releases what was dropped
        for key, state in self.accounts.items():
            assert state.in_flight == self.expected[key] >= 0
            assert state.queued >= 0.0
            assert state.backlog >= 0.0
            if not self.expected[key]:
                assert state.queued == state.backlog == 0.0
                assert not state.open
                assert not state.silent
        members = self.router._members.states
        assert stats.in_flight == sum(self.expected[id(state)] for state in members)
        for endpoint, state in zip(stats.endpoints, members, strict=True):
            assert endpoint.id == state.endpoint.id
            assert endpoint.in_flight == state.in_flight
            assert endpoint.hit_rate is None or 0.0 <= endpoint.hit_rate <= 1.0
            assert math.isfinite(endpoint.work)

    @invariant()
    def an_old_report_is_not_believed(self) -> None:
        queues, now = self.router._ledger.queues, self.router._now()
        for state in self.router._members.states:
            age = now - self.heard.get(id(state), -math.inf)
            if age > LONGEST_BELIEVED_S and state.endpoint.weight > 0:
                said = state.foreign_s, state.foreign_requests
                believed = queues.foreign_s(state, now), outstanding(state, queues, now)
                state.foreign_s, state.foreign_requests = 1e9, 10**9
                assert believed == (queues.foreign_s(state, now), outstanding(state, queues, now))
                state.foreign_s, state.foreign_requests = said

    @invariant()
    def who_left_is_compared_with_nobody(self) -> None:
        assert self.router._ledger.queues._members == self.router._members.states
        assert self.router._ledger.judge._warming <= set(self.router._members.states)

    @invariant()
    def limits_hold(self) -> None:
        for state in self.router._members.states:
            limit = state.endpoint.max_in_flight
            assert limit is None or state.in_flight <= limit

    @invariant()
    def the_map_knows_only_the_living(self) -> None:
        found: Any = getattr(self.router._ledger.policy, "_map", None)
        if found is None:
            return
        bits = [state.bit for state in self.router._members.states]
        assert len(set(bits)) == len(bits)
        assert sum(bits) == found._alive
        assert len(found) <= 64
        gone = [state.bit for state in self.accounts.values() if not state.member]
        assert not any(gone)

    def teardown(self) -> None:
        for lease, _ in self.open.values():
            lease.release()
        assert all(state.in_flight == 0 for state in self.accounts.values())
        assert self.router.stats().in_flight == 0
