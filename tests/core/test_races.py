"""An exchange that hedges, and one with a deadline, driven by hand."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from prefixroute import AttemptsFailed, Endpoint, Failover, HealthPolicy, HealthState
from prefixroute.core.exchange import Exchange
from prefixroute.core.prompt import Prompt
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import (
    Answer,
    Failed,
    Failure,
    Keep,
    Race,
    Raced,
    Responded,
    Send,
    Wait,
    WaitForCapacity,
)
from tests.core.support import FakeClock, urls

Script = Generator[Any, Any, Answer[str]]


class Call:
    """One exchange; a test answers each of its steps."""

    def __init__(
        self, core: RouterCore, *, once: bool = False, prompt: Prompt | None = None
    ) -> None:
        made: Exchange[str] = Exchange(
            core, prompt or Prompt(), core.failover, digest=lambda: 1, once=once
        )
        self.exchange = made
        self._script: Script = made.run()
        self.answer: Answer[str] | None = None
        self.step: Any = next(self._script)

    @property
    def lease(self) -> Any:
        """That of the answer."""
        assert self.answer is not None
        return self.answer.lease

    def tell(self, outcome: Any) -> Any:
        """Give a step its outcome; return the next step, ``None`` after the last."""
        try:
            self.step = self._script.send(outcome)
        except StopIteration as done:
            self.answer, self.step = done.value, None
        return self.step


def core_of(count: int = 3, *, clock: FakeClock | None = None, **failover: Any) -> RouterCore:
    return RouterCore(
        urls(count),
        failover=Failover(**failover),
        health=HealthPolicy(failures=1),
        clock=clock or FakeClock(),
        wall_clock=lambda: 0.0,
        seed=0,
    )


def hedging(count: int = 3, **failover: Any) -> RouterCore:
    return core_of(count, replay_sent=True, hedge_after_s=0.5, **failover)


def state_of(core: RouterCore, lease: Any) -> HealthState:
    return next(one.state for one in core.stats().endpoints if one.id == lease.endpoint.id)


OK = Responded("ok", 200)
BUSY = Responded("busy", 503, 9.0)


def failed(failure: Failure = Failure.SENT, *, cut: bool = False) -> Failed:
    return Failed(OSError(failure.value), failure, cut)


# -- hedging ---------------------------------------------------------------------------------------


def test_an_answer_in_time_needs_no_second() -> None:
    core = hedging()
    call = Call(core)
    race = call.step
    assert isinstance(race, Race)
    assert race.after_s == 0.5
    call.tell(Raced(((race.first.lease, OK),)))
    assert call.answer is not None
    assert call.answer.lease is race.first.lease
    assert core.stats().requests == 1
    call.answer.lease.release()


@pytest.mark.parametrize("winner", ["first", "second"])
def test_the_first_to_answer_wins_and_the_other_is_let_go(winner: str) -> None:
    core = hedging()
    call = Call(core)
    race = call.step
    second = race.second()
    assert second.lease.endpoint != race.first.lease.endpoint
    assert core.stats().in_flight == 2
    won = race.first.lease if winner == "first" else second.lease
    call.tell(Raced(((won, OK),)))
    assert call.lease is won
    assert call.answer is not None
    assert call.answer.decision is won.decision
    assert core.stats().in_flight == 1
    assert core.stats().failures == 0
    assert {one.state for one in core.stats().endpoints} == {HealthState.HEALTHY}
    won.release()


@pytest.mark.parametrize(
    ("outcome", "answers"),
    [
        (OK, True),
        (Responded("", 400), True),
        (Responded("", 500), True),
        (BUSY, False),
        (failed(), False),
        (failed(Failure.NOT_OURS), False),
    ],
)
def test_what_ends_a_race(outcome: Any, *, answers: bool) -> None:
    call = Call(hedging())
    assert call.step.answers(outcome) is answers
    call.exchange.stop()


def test_a_failure_before_the_answer_counts() -> None:
    core = hedging()
    call = Call(core)
    first, second = call.step.first.lease, call.step.second().lease
    call.tell(Raced(((first, failed()), (second, OK))))
    assert call.lease is second
    assert state_of(core, first) is HealthState.EJECTED
    second.release()
    assert state_of(core, second) is HealthState.HEALTHY


def test_a_refusal_before_the_answer_cools() -> None:
    core = hedging()
    call = Call(core)
    first, second = call.step.first.lease, call.step.second().lease
    step = call.tell(Raced(((second, BUSY), (first, OK))))
    assert isinstance(step, Keep)
    call.tell(BUSY)
    assert call.lease is first
    assert state_of(core, second) is HealthState.COOLING
    first.release()
    assert core.stats().in_flight == 0


def test_what_is_our_own_fault_in_one_of_two_blames_nobody() -> None:
    core = hedging()
    call = Call(core)
    first, second = call.step.first.lease, call.step.second().lease
    call.tell(Raced(((second, failed(Failure.NOT_OURS)), (first, OK))))
    assert call.answer is not None
    assert core.stats().failures == 0
    first.release()


def test_a_stale_connection_of_one_of_two_blames_nobody() -> None:
    core = hedging()
    call = Call(core)
    first, second = call.step.first.lease, call.step.second().lease
    call.tell(Raced(((second, failed(Failure.STALE)), (first, OK))))
    assert call.answer is not None
    assert core.stats().failures == 0
    first.release()


def test_when_both_fail_the_third_is_asked() -> None:
    core = hedging()
    call = Call(core)
    first, second = call.step.first.lease, call.step.second().lease
    race = call.tell(Raced(((first, failed()), (second, failed()))))
    assert isinstance(race, Race)
    assert len({one.endpoint.id for one in (first, second, race.first.lease)}) == 3
    assert race.second() is None, "max_attempts"
    with pytest.raises(OSError, match="sent") as raised:
        call.tell(Raced(((race.first.lease, failed()),)))
    cause = raised.value.__cause__
    assert isinstance(cause, AttemptsFailed)
    assert len(cause.attempts) == 3
    assert core.stats().in_flight == 0


def test_both_refuse_and_nobody_is_left() -> None:
    core = hedging(2)
    call = Call(core)
    first, second = call.step.first.lease, call.step.second().lease
    step = call.tell(Raced(((first, BUSY), (second, Responded("last", 503)))))
    assert isinstance(step, Keep)
    call.tell(BUSY)
    assert call.answer is not None
    assert call.answer.response == "last"
    assert call.lease is second
    second.release()


def test_a_stale_connection_is_replaced_by_a_race() -> None:
    core = hedging()
    call = Call(core)
    first = call.step.first.lease
    race = call.tell(Raced(((first, failed(Failure.STALE)),)))
    assert isinstance(race, Race)
    assert race.first.lease is first
    call.tell(Raced(((first, OK),)))
    first.release()
    assert core.stats().failures == 0


def test_a_call_with_one_attempt_does_not_hedge() -> None:
    call = Call(hedging(), once=True)
    assert isinstance(call.step, Send)
    call.exchange.stop()


def test_hedges_are_paid_from_the_retry_budget() -> None:
    core = hedging(8, budget_per_minute=1, budget_share=0.0)
    calls = [Call(core), Call(core)]
    assert [call.step.second() is None for call in calls] == [False, True]
    for call in calls:
        call.exchange.stop()
    assert core.stats().in_flight == 0


def test_nobody_hedges_to_one_who_is_full_or_ejected() -> None:
    endpoints = [Endpoint(url, max_in_flight=1) for url in urls(2)]
    core = RouterCore(
        endpoints,
        failover=Failover(replay_sent=True, hedge_after_s=1),
        clock=FakeClock(),
        wall_clock=lambda: 0.0,
    )
    held = core.acquire("x")
    call = Call(core)
    assert call.step.second() is None
    assert not core._ledger.waiting
    held.release()
    core.eject(held.endpoint)
    assert call.step.second() is None
    call.exchange.stop()
    assert core.stats().in_flight == 0


def test_a_race_that_is_stopped_lets_both_go() -> None:
    core = hedging()
    call = Call(core)
    call.step.second()
    assert core.stats().in_flight == 2
    call.exchange.stop()
    assert core.stats().in_flight == 0
    assert core.stats().failures == 0


# -- a deadline ------------------------------------------------------------------------------------


def test_attempts_are_cut_to_what_is_left() -> None:
    clock = FakeClock()
    call = Call(core_of(clock=clock, deadline_s=10))
    assert call.step.within_s == 10
    clock.tick(4)
    step = call.tell(failed(Failure.NOT_CONNECTED))
    assert step.within_s == 6
    call.exchange.stop()


def test_without_a_deadline_nothing_is_cut() -> None:
    call = Call(core_of())
    assert call.step.within_s is None
    call.exchange.stop()


def test_no_attempt_begins_after_the_deadline() -> None:
    clock = FakeClock()
    core = core_of(clock=clock, deadline_s=10)
    call = Call(core)
    clock.tick(10)
    with pytest.raises(OSError, match="not_connected"):
        call.tell(failed(Failure.NOT_CONNECTED))
    call = Call(core)
    clock.tick(10)
    call.tell(BUSY)
    assert call.answer is not None
    assert call.answer.response == "busy"
    assert call.answer.lease is not None
    call.answer.lease.release()


def test_nor_a_second_one() -> None:
    clock = FakeClock()
    call = Call(hedging(clock=clock, deadline_s=10))
    clock.tick(4)
    second = call.step.second()
    assert second.within_s == 6
    call.exchange.stop()
    call = Call(hedging(clock=clock, deadline_s=10))
    clock.tick(10)
    assert call.step.second() is None
    call.exchange.stop()


def test_a_wait_that_would_outlast_the_deadline_is_not_begun() -> None:
    clock = FakeClock()
    stop, wait = stop_after_attempt(9), wait_fixed(4)
    call = Call(core_of(1, clock=clock, deadline_s=10, stop=stop, wait=wait))
    for _ in range(2):
        assert call.tell(failed(Failure.NOT_CONNECTED)) == Wait(4)
        clock.tick(4)
        call.tell(None)
    with pytest.raises(OSError, match="not_connected"):
        call.tell(failed(Failure.NOT_CONNECTED))


def test_a_wait_that_is_not_begun_was_not_waited() -> None:
    stop, wait = stop_after_attempt(9), wait_fixed(60)
    call = Call(core_of(1, deadline_s=10, stop=stop, wait=wait))
    assert isinstance(call.tell(BUSY), Keep)
    call.tell(BUSY)
    assert call.answer is not None
    assert call.answer.response == "busy"
    assert not call.answer.waited, "its caller may wait, then"


@pytest.mark.parametrize(("queue_timeout_s", "waits_s"), [(60, 10), (3, 3)])
def test_the_queue_is_part_of_it(queue_timeout_s: float, waits_s: float) -> None:
    clock = FakeClock()
    core = RouterCore(
        [Endpoint("http://h:1/v1", max_in_flight=1)],
        failover=Failover(deadline_s=10, queue_timeout_s=queue_timeout_s),
        clock=clock,
        wall_clock=lambda: 0.0,
    )
    held = core.acquire("x")
    call = Call(core)
    assert isinstance(call.step, WaitForCapacity)
    assert call.step.seconds == waits_s
    clock.tick(10)
    held.release()  # room comes as time is up
    call.tell(None)
    assert call.answer == Answer(None, None)
    assert core.stats().in_flight == 0


@pytest.mark.parametrize(("before_s", "counts"), [(0, True), (4, True), (6, False)])
def test_an_attempt_that_got_too_little_of_the_deadline_blames_nobody(
    before_s: float, *, counts: bool
) -> None:
    clock = FakeClock()
    core = core_of(2, clock=clock, deadline_s=10)
    call = Call(core)
    first = call.step.lease
    clock.tick(before_s)
    step = call.tell(failed(Failure.NOT_CONNECTED))
    clock.tick(10 - before_s)
    with pytest.raises(OSError, match="sent"):
        call.tell(failed(cut=True))
    assert state_of(core, first) is HealthState.EJECTED
    assert state_of(core, step.lease) is (HealthState.EJECTED if counts else HealthState.HEALTHY)
    assert core.stats().in_flight == 0
