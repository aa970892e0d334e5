"""One call's script, driven by hand: no I/O, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from tenacity import stop_after_attempt, stop_after_delay, stop_before_delay, wait_fixed

from prefixroute import AttemptsFailed, Endpoint, Failover, HealthState
from prefixroute.core.exchange import Exchange
from prefixroute.core.prompt import Prompt
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import (
    Answer,
    Failed,
    Failure,
    Keep,
    Responded,
    Send,
    Wait,
    WaitForCapacity,
)
from tests.core.support import FakeClock, urls

Reply = Callable[[str], "Responded[str] | Failed"]


def status(code: int, retry_after_s: float | None = None) -> Reply:
    return lambda host: Responded(f"{code} of {host}", code, retry_after_s)


def fails(failure: Failure, error: Exception | None = None) -> Reply:
    return lambda host: Failed(error or OSError(f"{failure.value} at {host}"), failure)


@dataclass
class Driver:
    """Runs an exchange as the transports do; replies are given in turn, the last one again."""

    core: RouterCore
    replies: Iterable[Reply]
    options: dict[str, Any] = field(default_factory=dict)
    prompt: Prompt = field(default_factory=Prompt)
    steps: list[Any] = field(default_factory=list)
    waits: Callable[[], None] = lambda: None
    sent: list[str] = field(default_factory=list)

    def run(self) -> Answer[str]:
        left = list(self.replies)
        exchange = self.exchange()
        script = exchange.run()
        outcome: Any = None
        while True:
            try:
                step = script.send(outcome)
            except StopIteration as done:
                answer: Answer[str] = done.value
                return answer
            except Exception:
                exchange.stop()
                raise
            self.steps.append(step)
            outcome = None
            match step:
                case Send(lease):
                    self.sent.append(lease.endpoint.id)
                    outcome = (left.pop(0) if len(left) > 1 else left[0])(lease.endpoint.id)
                case Keep(refusal):
                    assert self.core.stats().in_flight == 1
                    kept = f"kept {refusal.response}"
                    outcome = Responded(kept, refusal.status, refusal.retry_after_s)
                case Wait() | WaitForCapacity():
                    self.waits()

    def exchange(self) -> Exchange[str]:
        options = {"digest": lambda: 1, **self.options}
        return Exchange(self.core, self.prompt, self.core.failover, **options)


def core_of(count: int = 3, *, clock: FakeClock | None = None, **failover: Any) -> RouterCore:
    return RouterCore(
        urls(count),
        failover=Failover(**failover),
        clock=clock or FakeClock(),
        wall_clock=lambda: 0.0,
        seed=0,
    )


def ends(answer: Answer[str]) -> None:
    """Release the lease of an answer, as the end of its response does."""
    assert answer.lease is not None
    answer.lease.release()


def test_the_first_answer_is_the_calls() -> None:
    driver = Driver(core_of(), [status(200)])
    answer = driver.run()
    assert answer.response == f"200 of {driver.sent[0]}"
    assert answer.lease is not None
    assert answer.decision is answer.lease.decision
    assert not answer.waited
    assert driver.core.stats().in_flight == 1
    ends(answer)
    assert driver.core.stats().in_flight == 0


def test_no_endpoint_twice_in_a_round() -> None:
    driver = Driver(core_of(6, max_attempts=6), [status(503)])
    ends(driver.run())
    assert len(driver.sent) == 6
    assert len(set(driver.sent)) == 6


def test_candidates_come_in_placements_order() -> None:
    core = core_of(4)
    prompt = core.read("a prompt that is long enough to have a key of its own")
    first = core.route(prompt)
    driver = Driver(core, [fails(Failure.NOT_CONNECTED), status(200)], prompt=prompt)
    ends(driver.run())
    assert driver.sent[0] == first.endpoint.id


def test_a_refusal_is_kept_only_while_another_is_tried() -> None:
    driver = Driver(core_of(), [status(429, 5.0), status(200)])
    ends(driver.run())
    assert [type(step) for step in driver.steps] == [Send, Keep, Send]
    driver = Driver(core_of(1), [status(429)])
    answer = driver.run()
    assert [type(step) for step in driver.steps] == [Send]
    assert answer.response == f"429 of {driver.sent[0]}"
    ends(answer)


def test_the_last_refusal_is_the_answer_when_the_rest_cannot_be_reached() -> None:
    replies = [status(429, 9.0), status(503), fails(Failure.NOT_CONNECTED)]
    driver = Driver(core_of(), replies)
    answer = driver.run()
    assert answer.response == f"kept 503 of {driver.sent[1]}"
    assert answer.lease is None
    assert answer.decision is not None
    assert answer.decision.endpoint.id == driver.sent[1]
    assert driver.core.stats().in_flight == 0


def test_the_error_says_what_was_tried() -> None:
    cause = ValueError("below")
    error = OSError("last")
    error.__cause__ = cause
    replies = [fails(Failure.NOT_CONNECTED), fails(Failure.NOT_CONNECTED, error)]
    driver = Driver(core_of(2), replies)
    with pytest.raises(OSError, match="last") as raised:
        driver.run()
    assert raised.value is error
    attempts = error.__cause__
    assert isinstance(attempts, AttemptsFailed)
    assert [name for name, _ in attempts.attempts] == driver.sent
    assert attempts.attempts[1][1] is error
    assert attempts.__cause__ is cause
    assert str(attempts) == (
        f"every attempt failed: {driver.sent[0]}: OSError; {driver.sent[1]}: OSError"
    )


def test_an_error_that_is_raised_again_does_not_grow_a_chain() -> None:
    error = OSError("the same object each time")
    for _ in range(3):
        with pytest.raises(OSError, match="the same"):
            Driver(core_of(1), [fails(Failure.NOT_CONNECTED, error)]).run()
    assert isinstance(error.__cause__, AttemptsFailed)
    assert error.__cause__.__cause__ is None


@pytest.mark.parametrize("failure", [Failure.SENT, Failure.NOT_OURS])
def test_what_may_have_been_sent_and_what_is_our_own_is_raised(failure: Failure) -> None:
    driver = Driver(core_of(), [fails(failure)])
    with pytest.raises(OSError, match=failure.value):
        driver.run()
    assert len(driver.sent) == 1
    assert driver.core.stats().failures == (failure is Failure.SENT)


def test_replay_sent() -> None:
    driver = Driver(core_of(replay_sent=True), [fails(Failure.SENT), status(200)])
    ends(driver.run())
    assert len(set(driver.sent)) == 2


def test_a_stale_connection_is_replaced_once() -> None:
    driver = Driver(core_of(), [fails(Failure.STALE), status(200)])
    ends(driver.run())
    assert driver.sent[0] == driver.sent[1]
    assert driver.core.stats().failures == 0
    driver = Driver(core_of(), [fails(Failure.STALE)])
    with pytest.raises(OSError, match="stale"):
        driver.run()
    assert len(driver.sent) == 2
    assert driver.core.stats().failures == 1


def test_a_stale_connection_is_not_replaced_for_what_cannot_be_sent_again() -> None:
    options = {"once": True, "resendable": False}
    driver = Driver(core_of(), [fails(Failure.STALE)], options)
    with pytest.raises(OSError, match="stale"):
        driver.run()
    assert len(driver.sent) == 1
    assert driver.core.stats().failures == 0


@pytest.mark.parametrize("reply", [status(503), fails(Failure.NOT_CONNECTED)])
def test_once(reply: Reply) -> None:
    core = core_of(stop=stop_after_attempt(9))
    driver = Driver(core, [reply], {"once": True})
    with suppress(OSError):
        ends(driver.run())
    assert len(driver.sent) == 1


def test_404_of_a_response_that_others_may_have() -> None:
    driver = Driver(core_of(4), [status(404)], prompt=Prompt(pin="resp_1"))
    answer = driver.run()
    assert answer.response == f"404 of {driver.sent[-1]}"
    ends(answer)
    assert len(driver.sent) == 3
    assert driver.core.stats().failures == 0
    driver = Driver(core_of(4), [status(404)])
    ends(driver.run())
    assert len(driver.sent) == 1


def test_statuses_can_be_chosen() -> None:
    driver = Driver(core_of(statuses={418}), [status(418), status(503)])
    ends(driver.run())
    assert len(driver.sent) == 2


def test_500_counts_once_by_its_digest() -> None:
    core = core_of(5)
    for _ in range(4):
        ends(Driver(core, [status(500)]).run())
    assert core.stats().failures == 1
    ends(Driver(core, [status(500)], {"digest": lambda: None}).run())
    assert core.stats().failures == 2


def test_501_says_nothing_about_the_endpoint() -> None:
    core = core_of(1)
    ends(Driver(core, [status(501)]).run())
    assert core.stats().failures == 0


def test_505_counts_each_time() -> None:
    core = core_of(1)
    ends(Driver(core, [status(505)]).run())
    ends(Driver(core, [status(505)]).run())
    assert core.stats().failures == 2


def test_the_budget_stops_a_call_early() -> None:
    core = core_of(8, budget_per_minute=2, budget_share=0.0)
    first, second = Driver(core, [status(503)]), Driver(core, [status(503)])
    ends(first.run())
    ends(second.run())
    assert (len(first.sent), len(second.sent)) == (3, 1)


# -- rounds ----------------------------------------------------------------------------------------


def test_rounds_end_as_the_strategy_says() -> None:
    clock = FakeClock()
    core = core_of(2, clock=clock, stop=stop_after_attempt(3), wait=wait_fixed(4), max_attempts=2)
    driver = Driver(core, [fails(Failure.NOT_CONNECTED)])
    driver.waits = lambda: clock.tick(4)
    with pytest.raises(OSError, match="not_connected"):
        driver.run()
    assert [step for step in driver.steps if isinstance(step, Wait)] == [Wait(4.0), Wait(4.0)]
    assert len(driver.sent) == 6


@pytest.mark.parametrize(
    ("stop", "rounds"), [(stop_after_delay(9.0), 3), (stop_before_delay(9.0), 2)]
)
def test_rounds_end_by_the_routers_clock(stop: Any, rounds: int) -> None:
    clock = FakeClock()
    core = core_of(1, clock=clock, stop=stop, wait=wait_fixed(5))
    driver = Driver(core, [fails(Failure.NOT_CONNECTED)])
    driver.waits = lambda: clock.tick(5)
    with pytest.raises(OSError, match="not_connected"):
        driver.run()
    assert len(driver.sent) == rounds


@pytest.mark.parametrize(("asked", "waited"), [(None, 2.0), (1.0, 2.0), (7.0, 7.0), (1e6, 60.0)])
def test_a_round_waits_as_long_as_the_last_refusal_asks(asked: float | None, waited: float) -> None:
    core = core_of(1, stop=stop_after_attempt(2), wait=wait_fixed(2))
    driver = Driver(core, [status(503, asked), status(200)])
    answer = driver.run()
    assert driver.steps[2] == Wait(waited)
    assert answer.waited
    ends(answer)


def test_the_strategies_see_the_error() -> None:
    seen: list[Any] = []

    def wait(state: Any) -> float:
        seen.append((state.attempt_number, state.outcome.exception()))
        return 0.0

    error = OSError("down")
    core = core_of(1, stop=stop_after_attempt(2), wait=wait)
    with pytest.raises(OSError, match="down"):
        Driver(core, [fails(Failure.NOT_CONNECTED, error)]).run()
    assert seen == [(1, error), (2, error)]


def test_no_round_for_a_spent_budget() -> None:
    core = core_of(1, stop=stop_after_attempt(9), budget_per_minute=0, budget_share=0.0)
    driver = Driver(core, [fails(Failure.NOT_CONNECTED)])
    with pytest.raises(OSError, match="not_connected"):
        driver.run()
    assert len(driver.sent) == 1


# -- waiting for room ------------------------------------------------------------------------------


def full_core(**failover: Any) -> RouterCore:
    endpoints = [Endpoint(url, max_in_flight=1) for url in urls(2)]
    failover = {"queue_timeout_s": 12.0, **failover}
    return RouterCore(
        endpoints, failover=Failover(**failover), clock=FakeClock(), wall_clock=lambda: 0.0, seed=0
    )


def test_a_call_waits_when_all_are_full() -> None:
    core = full_core()
    one, two = core.acquire("a"), core.acquire("b")
    driver = Driver(core, [status(200)])
    driver.waits = one.release
    answer = driver.run()
    assert isinstance(driver.steps[0], WaitForCapacity)
    assert driver.steps[0].seconds == 12.0
    assert driver.sent == [one.endpoint.id]
    ends(answer)
    two.release()


def test_a_call_that_waited_in_vain_is_refused() -> None:
    core = full_core()
    with core.acquire("a"), core.acquire("b"):
        answer = Driver(core, [status(200)]).run()
    assert answer.response is None
    assert answer.lease is None
    assert answer.retry_after_s > 0


def test_what_failed_before_is_told_after_waiting_in_vain() -> None:
    core = full_core()
    held = core.acquire("a")
    driver = Driver(core, [fails(Failure.NOT_CONNECTED)])
    with pytest.raises(OSError, match="not_connected"):
        driver.run()
    assert [type(step) for step in driver.steps] == [Send, WaitForCapacity]
    held.release()


# -- stopping --------------------------------------------------------------------------------------


def test_a_call_that_is_stopped_lets_go() -> None:
    core = core_of(1)
    exchange = Driver(core, []).exchange()
    script = exchange.run()
    next(script)
    assert core.stats().in_flight == 1
    exchange.stop()
    exchange.stop()
    assert core.stats().in_flight == 0
    assert core.stats().endpoints[0].state is HealthState.HEALTHY


def test_a_call_that_is_stopped_leaves_the_queue() -> None:
    core = full_core()
    one, two = core.acquire("a"), core.acquire("b")
    exchange = Driver(core, []).exchange()
    step = next(exchange.run())
    assert isinstance(step, WaitForCapacity)
    one.release()
    assert step.waiter.lease is not None
    exchange.stop()
    two.release()
    assert core.stats().in_flight == 0


def test_a_call_that_is_collected_lets_go() -> None:
    core = full_core()
    script = Driver(core, []).exchange().run()
    next(script)
    with core._locked():
        del script  # its finalizer takes no lock
    assert core.stats().in_flight == 0


def test_one_who_waited_and_is_gone_holds_nothing() -> None:
    core = full_core()
    one, two = core.acquire("a"), core.acquire("b")
    script = Driver(core, []).exchange().run()
    step = next(script)
    assert isinstance(step, WaitForCapacity)

    def gone() -> None:
        raise RuntimeError("Event loop is closed")

    step.waiter.on_granted(gone)
    del script, step
    one.release()
    two.release()
    assert core.stats().in_flight == 0


def test_a_lease_in_a_generator_that_is_collected_inside_the_lock() -> None:
    core = core_of(1)

    def stream() -> Iterator[int]:
        with core.acquire("x") as lease:
            lease.first_token()
            yield 1

    reading = stream()
    next(reading)
    with core._locked():
        del reading  # its end runs here, and waits for nothing
    assert core.stats().in_flight == 0
    with core.acquire("y"):
        assert core.stats().in_flight == 1
