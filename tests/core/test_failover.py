"""The settings of ``Failover``, the retry budget, and waiting in order."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from tenacity import stop_after_attempt, stop_never, wait_none

from prefixroute import ConfigurationError, Endpoint, Failover, Saturated
from prefixroute.core.failover import RetryBudget, Rounds
from tests.core.support import make_router


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_attempts": 0}, r"Failover\(max_attempts=0\) must be an int, 1 or greater"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"max_attempts": 2.0}, "max_attempts=2.0"),
        ({"statuses": 503}, "statuses=503"),
        ({"statuses": {200}}, "400-599"),
        ({"statuses": {"503"}}, "400-599"),
        ({"statuses": "503"}, "statuses='503'"),
        ({"queue_timeout_s": -1}, "queue_timeout_s=-1"),
        ({"queue_timeout_s": float("inf")}, "queue_timeout_s=inf"),
        ({"queue_timeout_s": None}, "queue_timeout_s=None"),
        ({"budget_share": float("nan")}, "budget_share=nan"),
        ({"budget_per_minute": "10"}, "budget_per_minute='10'"),
        ({"stop": 3}, "stop=3"),
        ({"stop": stop_after_attempt}, "a strategy of tenacity's"),
        ({"wait": 1.0}, "wait=1.0"),
        ({"replay_sent": 1}, "replay_sent=1"),
        ({"hedge_after_s": 1.0}, "hedge_after_s=1.0.*replay_sent=True"),
        ({"hedge_after_s": 0, "replay_sent": True}, "hedge_after_s=0.*above 0"),
        ({"hedge_after_s": "1", "replay_sent": True}, "hedge_after_s='1'"),
        ({"deadline_s": 0}, "deadline_s=0.*above 0"),
        ({"deadline_s": float("inf")}, "deadline_s=inf.*None for none"),
    ],
)
def test_nonsense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Failover(**settings)


def test_settings_are_values() -> None:
    assert Failover(statuses=[503, 429]) == Failover(statuses={429, 503})
    assert Failover(queue_timeout_s=1) == Failover(queue_timeout_s=1.0)
    assert Failover(stop=stop_never, wait=wait_none()).max_attempts == 3


def test_tenacity_is_loaded_only_by_who_waits() -> None:
    code = (
        "import sys\n"
        "from prefixroute import Failover, Router\n"
        "Router(['http://h:1'], failover=Failover(max_attempts=2)).acquire('x').release()\n"
        "print('tenacity' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def spend(budget: RetryBudget, now: float) -> int:
    tries = 0
    while budget.take(now):
        tries += 1
    return tries


def test_the_budget_starts_with_a_minutes_worth() -> None:
    assert spend(RetryBudget(0.2, 10), 0.0) == 10


def test_time_brings_tries_and_saves_a_minute_at_most() -> None:
    budget = RetryBudget(0.0, 60)
    spend(budget, 0.0)
    assert spend(budget, 30.0) == 30
    assert spend(budget, 3600.0) == 60


def test_calls_bring_tries() -> None:
    budget = RetryBudget(0.25, 0)
    assert spend(budget, 0.0) == 0
    for _ in range(20):
        budget.call(0.0)
    assert spend(budget, 0.0) == 5


def test_what_calls_brought_is_lost_in_time() -> None:
    budget = RetryBudget(0.5, 0)
    for _ in range(20):
        budget.call(0.0)
    assert spend(budget, 600.0) == 0


def test_what_calls_brought_decays_within_a_minute() -> None:
    budget = RetryBudget(1.0, 0)
    for _ in range(100):
        budget.call(0.0)
    assert spend(budget, 60.0) == 36  # 100 / e


def test_without_a_wait_strategy_the_next_round_follows_at_once() -> None:
    rounds = Rounds(Failover(stop=stop_after_attempt(3)), 0.0, once=False)
    assert rounds.next_in_s(1.0, None, None) == 0.0
    assert rounds.next_in_s(1.0, None, 5.0) == 5.0


def test_a_clock_that_steps_back_takes_nothing() -> None:
    budget = RetryBudget(0.0, 60)
    spend(budget, 100.0)
    assert spend(budget, 0.0) == 0
    assert spend(budget, 10.0) == 10


def test_waiting_calls_are_served_in_order() -> None:
    router = make_router([Endpoint("http://h:1/v1", max_in_flight=1)])
    held = router.acquire("x")
    told: list[int] = []
    waiters = []
    for number in range(4):
        waiter = router.queue(router.read(f"prompt {number}"))
        assert waiter is not None
        waiter.on_granted(partial(told.append, number))
        waiters.append(waiter)
    held.release()
    assert told == [0]
    assert router.unqueue(waiters[2]) is None  # leaves: the next in line is number 3
    for number in (0, 1, 3):
        lease = waiters[number].lease
        assert lease is not None
        lease.release()
    assert told == [0, 1, 3]
    assert router.stats().in_flight == 0


def test_a_new_call_does_not_overtake_those_who_wait() -> None:
    router = make_router([Endpoint("http://h:1/v1", max_in_flight=1)])
    held = router.acquire("x")
    waiter = router.queue(router.read("y"))
    assert waiter is not None
    held.release()
    with pytest.raises(Saturated):
        router.acquire("z")
    assert waiter.lease is not None
    waiter.lease.release()


def test_nobody_queues_for_endpoints_that_are_all_excluded() -> None:
    router = make_router(2)
    every = frozenset(endpoint.id for endpoint in router.endpoints)
    assert router.queue(router.read("x"), exclude=every) is None
