"""Calls: many scripts at once over one core, driven by hand, on a virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tenacity import stop_after_attempt, wait_fixed

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.exchange import Exchange
from prefixroute.core.failover import Failover
from prefixroute.core.health import HealthPolicy
from prefixroute.core.lease import Lease
from prefixroute.core.load import EndpointState
from prefixroute.core.nested import Nested
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import (
    Answer,
    Failed,
    Failure,
    Keep,
    Outcome,
    Responded,
    Script,
    Send,
    Step,
    Wait,
    WaitForCapacity,
)

from ..core.support import FakeClock, blocks

places = st.integers(0, 50)
names = st.sampled_from(["a", "b", "c"])

MOST = 2
"""Attempts in a round, of three endpoints."""

BUDGET = 3.0
"""Further tries a minute."""


class UnreachedError(Exception):
    """What an attempt fails with."""


@dataclass(slots=True)
class Call:
    """One call, and what its driver must hold at the step where it is."""

    exchange: Exchange[str]
    script: Script[str]
    once: bool
    step: Step[str] | Answer[str] | None = None
    held: Lease | None = None
    tried: list[str] = field(default_factory=list)  # in this round
    kept: list[str] = field(default_factory=list)  # refusals
    stale: bool = False  # the attempt before found a closed connection
    resent: bool = False  # this attempt was sent once more for that reason
    sends: int = 0
    rounds: int = 1

    def leases(self) -> Iterator[Lease]:
        """Yield what is counted for this call now."""
        if self.held is not None:
            yield self.held
        if isinstance(self.step, WaitForCapacity) and self.step.waiter.lease is not None:
            yield self.step.waiter.lease


class ExchangeMachine(RuleBasedStateMachine):
    """Calls are answered, refused, fail, wait, and are cancelled wherever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.router = RouterCore(
            [self.endpoint(name) for name in ("a", "b", "c")],
            placement=Nested(virtual_nodes=8),
            failover=Failover(
                max_attempts=MOST,
                stop=stop_after_attempt(2),
                wait=wait_fixed(2.0),
                queue_timeout_s=30.0,
                budget_per_minute=BUDGET,
            ),
            health=HealthPolicy(failures=3, jitter=0.0, warm_up_s=0.0),
            clock=self.clock,
            wall_clock=lambda: 0.0,
            seed=0,
        )
        self.began = self.clock.now
        self.calls: list[Call] = []
        self.started = self.again = 0
        self.accounts: list[EndpointState] = []
        self.notice()

    @staticmethod
    def endpoint(name: str) -> Endpoint:
        return Endpoint(f"http://{name}", id=name, max_in_flight=1 if name == "a" else 2)

    def notice(self) -> None:
        self.accounts += [s for s in self.router._members.states if s not in self.accounts]

    def at(self, *steps: type) -> list[Call]:
        return [call for call in self.calls if isinstance(call.step, steps)]

    # -- calls

    @rule(
        count=st.integers(1, 4), key=st.integers(1, 3), once=st.sampled_from([False, False, True])
    )
    def start(self, count: int, key: int, once: bool) -> None:
        for _ in range(min(count, 9 - len(self.calls))):
            self.start_one(key, once=once)

    def start_one(self, key: int, *, once: bool) -> None:
        exchange: Exchange[str] = Exchange(
            self.router, blocks(key), self.router.failover, digest=lambda: key, once=once
        )
        call = Call(exchange, exchange.run(), once)
        self.started += 1
        self.calls.append(call)
        self.go(call, None)

    def go(self, call: Call, outcome: Outcome[str]) -> None:
        """Drive a call to its next step, and look at what is asked for."""
        before = call.step
        try:
            step = call.script.send(outcome)
        except StopIteration as done:
            self.answered(call, done.value, outcome)
            return
        except Exception:
            call.exchange.stop()
            self.calls.remove(call)
            raise
        call.step, call.held = step, None
        match step:
            case Send(lease):
                same = call.stale and isinstance(before, Send) and lease is before.lease
                call.held, call.stale, call.resent = lease, False, same
                if same:
                    return
                assert lease.endpoint.id not in call.tried
                call.tried.append(lease.endpoint.id)
                assert len(call.tried) <= (1 if call.once else MOST)
                call.sends += 1
                self.again += call.sends > 1
            case Keep(refusal):
                assert outcome is refusal
                assert isinstance(before, Send)
                call.held = before.lease
            case Wait(seconds):
                assert not call.once
                assert seconds >= 2.0
                call.rounds += 1
                assert call.rounds <= 2
                call.tried.clear()
            case WaitForCapacity():
                pass
            case _:
                raise AssertionError(step)

    def answered(self, call: Call, answer: Answer[str], outcome: Outcome[str]) -> None:
        before, call.step, call.held = call.step, answer, answer.lease
        if answer.lease is not None:
            assert isinstance(outcome, Responded)
            assert answer.response == outcome.response
            assert isinstance(before, Send)
            assert answer.lease is before.lease
            return
        assert answer.response == (call.kept[-1] if call.kept else None)
        assert call.kept or isinstance(before, WaitForCapacity)
        self.calls.remove(call)

    @precondition(lambda self: self.at(Send))
    @rule(at=places, status=st.sampled_from([200, 200, 404, 429, 500, 503]), key=places)
    def respond(self, at: int, status: int, key: int) -> None:
        some = self.at(Send)
        call = some[at % len(some)]
        asked = 1.0 if status == 429 else None
        self.go(call, Responded(f"{status} {key}", status, asked))
        if status in (200, 404, 500):
            assert isinstance(call.step, Answer)

    @precondition(lambda self: self.at(Send))
    @rule(at=places, failure=st.sampled_from(list(Failure)))
    def fail(self, at: int, failure: Failure) -> None:
        some = self.at(Send)
        call = some[at % len(some)]
        self.fail_one(call, failure)

    @precondition(lambda self: self.at(Send))
    @rule()
    def fail_all(self) -> None:
        """Nobody can be reached."""
        for call in self.at(Send):
            self.fail_one(call, Failure.NOT_CONNECTED)

    def fail_one(self, call: Call, failure: Failure) -> None:
        resent, call.stale = call.resent, failure is Failure.STALE
        if not self.go_or_fail(call, Failed(UnreachedError(), failure)):
            assert failure is not Failure.STALE or resent
            return
        # Nothing that may have reached an endpoint is sent again.
        assert failure in (Failure.NOT_CONNECTED, Failure.STALE)

    @precondition(lambda self: self.at(Keep))
    @rule(at=places)
    def keep(self, at: int) -> None:
        some = self.at(Keep)
        call = some[at % len(some)]
        assert isinstance(call.step, Keep)
        refusal = call.step.refusal
        call.kept.append(f"kept {refusal.response}")
        self.go_or_fail(call, Responded(call.kept[-1], refusal.status, refusal.retry_after_s))

    @precondition(lambda self: self.at(Wait, WaitForCapacity))
    @rule(at=places)
    def wake(self, at: int) -> None:
        """A wait is over, in time or not."""
        some = self.at(Wait, WaitForCapacity)
        call = some[at % len(some)]
        self.go_or_fail(call, None)

    def go_or_fail(self, call: Call, outcome: Outcome[str]) -> bool:
        """Drive a call that may give up, with an error that it was told of."""
        try:
            self.go(call, outcome)
        except UnreachedError:
            assert call not in self.calls
            return False
        return True

    @precondition(lambda self: self.calls)
    @rule(at=places)
    def cancel(self, at: int) -> None:
        """Wherever it is: its driver was cancelled, or its caller left before the end."""
        some = self.at(Wait, WaitForCapacity) or self.calls
        call = some[at % len(some)]
        self.calls.remove(call)
        if isinstance(call.step, Answer):
            assert call.held is not None
            call.held.abandon()
        else:
            call.exchange.stop()
        call.exchange.stop()  # again

    @precondition(lambda self: self.at(Answer))
    @rule(at=places, how=st.sampled_from(["release", "release", "fail", "twice"]))
    def end(self, at: int, how: str) -> None:
        some = self.at(Answer)
        call = some[at % len(some)]
        self.calls.remove(call)
        assert call.held is not None
        call.held.first_token(5)
        if how == "fail":
            call.held.failed(OSError())
        call.held.release()
        if how == "twice":
            call.held.release()

    # -- endpoints and time

    @rule(name=names, how=st.sampled_from(["eject", "readmit", "readmit", "start_drain"]))
    def change(self, name: str, how: str) -> None:
        if name in {endpoint.id for endpoint in self.router.endpoints}:
            getattr(self.router, how)(name)

    @rule(wanted=st.sets(names, min_size=2))
    def reload(self, wanted: set[str]) -> None:
        self.router.set_endpoints([self.endpoint(name) for name in wanted])
        self.notice()

    @rule(name=names)
    def come_back(self, name: str) -> None:
        if len(self.router.endpoints) == 3:
            self.router.remove(name)
            self.router.add(self.endpoint(name))
            self.notice()

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.clock.tick(seconds)
        self.router.poke()

    # -- what must always hold

    @invariant()
    def who_is_counted_is_who_is_asked(self) -> None:
        held = Counter(id(lease._loan.state) for call in self.calls for lease in call.leases())
        for state in self.accounts:
            assert state.in_flight == held[id(state)]
            limit = state.endpoint.max_in_flight
            assert limit is None or state.in_flight <= limit

    @invariant()
    def only_those_wait_for_whom_there_is_no_room(self) -> None:
        self.router.poke()
        steps = [call.step for call in self.at(WaitForCapacity)]
        waiters = [s.waiter for s in steps if isinstance(s, WaitForCapacity)]
        waiting = [waiter for waiter in waiters if waiter.lease is None]
        assert set(self.router._ledger.waiting) == set(waiting)
        now = self.router._now()
        for waiter in waiting:
            for state in self.router._members.states:
                able = state.health.takes(now) and not state.full
                assert not able or state.endpoint.id in waiter.exclude

    @invariant()
    def an_outage_does_not_multiply_the_traffic(self) -> None:
        minutes = (self.clock.now - self.began) / 60.0
        assert self.again <= BUDGET * (1.0 + minutes) + 0.2 * self.started

    def teardown(self) -> None:
        for call in self.calls:
            call.exchange.stop()
            for lease in call.leases():
                lease.release()
        assert self.router.stats().in_flight == 0
        assert not self.router._ledger.waiting
