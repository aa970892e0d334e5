"""Keys that a function gives: when it is called, and what its failures mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixroute import ConfigurationError, Endpoint, Failover, KeyUnavailable
from prefixroute.core.keys import key_of
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Failure, Keep, Send
from tests.core.support import FakeClock
from tests.core.test_exchange import Driver, ends, fails, status


def keys(*given: str | Exception) -> Callable[[], str]:
    """A function that gives these in turn, the last one again."""
    left = list(given)

    def give() -> str:
        key = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(key, Exception):
            raise key
        return key

    return give


def core_of(*api_keys: Any, clock: FakeClock | None = None, **failover: Any) -> RouterCore:
    """One endpoint for each key, asked in this order."""
    return RouterCore(
        [Endpoint(f"http://h{i}", api_key=key, tier=i) for i, key in enumerate(api_keys)],
        failover=Failover(**failover),
        clock=clock or FakeClock(),
        wall_clock=lambda: 0.0,
        seed=0,
    )


def sent(driver: Driver) -> list[str | None]:
    return [step.key for step in driver.steps if isinstance(step, Send)]


def test_a_refused_key_is_fetched_again_once() -> None:
    driver = Driver(core_of(keys("old", "new", "newer"), None), [status(401), status(200)])
    answer = driver.run()
    assert answer.response == "200 of http://h0/v1"
    assert sent(driver) == ["old", "new"]
    assert [type(step) for step in driver.steps] == [Send, Keep, Send]
    ends(answer)
    first, _ = driver.core.stats().endpoints
    assert (first.requests, first.failures, first.in_flight) == (1, 0, 0)


def test_a_key_that_is_refused_again_is_the_callers_answer() -> None:
    driver = Driver(core_of(keys("a", "b", "c", "d"), None), [status(401)])
    answer = driver.run()
    assert answer.response == "401 of http://h0/v1"
    assert sent(driver) == ["a", "b"]
    ends(answer)


@pytest.mark.parametrize("key", ["same", keys("same"), None])
def test_without_another_key_the_refusal_is_the_answer(key: Any) -> None:
    driver = Driver(core_of(key, None), [status(401)])
    answer = driver.run()
    assert answer.response == "401 of http://h0/v1"
    assert len(driver.steps) == 1  # what was refused is passed on as it came
    ends(answer)


def test_only_401_asks_for_another_key() -> None:
    driver = Driver(core_of(keys("a", "b")), [status(403)])
    ends(driver.run())
    assert sent(driver) == ["a"]


def test_what_cannot_be_sent_again_is_not() -> None:
    driver = Driver(core_of(keys("a", "b")), [status(401)], {"resendable": False, "once": True})
    ends(driver.run())
    assert sent(driver) == ["a"]


def test_a_caller_who_tries_again_himself_gets_the_new_key_too() -> None:
    driver = Driver(core_of(keys("a", "b")), [status(401), status(200)], {"once": True})
    ends(driver.run())
    assert sent(driver) == ["a", "b"]


def test_no_key_is_fetched_when_the_time_is_up() -> None:
    clock = FakeClock()
    driver = Driver(core_of(keys("a", "b"), clock=clock, deadline_s=1.0), [])

    def late(host: str) -> Any:
        clock.tick(2.0)
        return status(401)(host)

    driver.replies = [late]
    ends(driver.run())
    assert sent(driver) == ["a"]


def test_it_takes_no_attempt_from_the_others() -> None:
    replies = [status(401), status(503), status(401), status(200)]
    driver = Driver(core_of(keys("a", "b"), keys("c", "d"), max_attempts=2), replies)
    answer = driver.run()
    assert sent(driver) == ["a", "b", "c", "d"]
    assert answer.response == "200 of http://h1/v1"
    ends(answer)


def test_the_second_sending_may_fail_like_any_other() -> None:
    replies = [status(401), fails(Failure.NOT_CONNECTED), status(200)]
    driver = Driver(core_of(keys("a", "b"), None), replies)
    ends(driver.run())
    assert sent(driver) == ["a", "b", None]
    assert driver.core.stats().endpoints[0].failures == 1


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (keys(OSError("the vault said hunter2")), "raised OSError"),
        (lambda: None, "returned a value of type NoneType"),
        (lambda: b"hunter2", "returned a value of type bytes"),
        (lambda: " \n", "returned an empty text"),
        (lambda: "hunter2\r\nx-evil: 1", "control characters"),
        (lambda: "hunter2\x0b1", "control characters"),
    ],
)
def test_a_function_that_gives_no_key_ends_the_call(key: Any, what: str) -> None:
    driver = Driver(core_of(key, None), [status(200)])
    with pytest.raises(KeyUnavailable) as failed:
        driver.run()
    message = str(failed.value)
    assert "'http://h0/v1'" in message
    assert what in message
    assert "hunter2" not in message
    assert driver.sent == []
    assert driver.core.stats().in_flight == 0
    assert driver.core.stats().failures == 0


def test_the_functions_own_error_is_the_cause() -> None:
    error = OSError("no vault")
    with pytest.raises(KeyUnavailable) as failed:
        key_of(Endpoint("http://h", api_key=keys(error)))
    assert failed.value.__cause__ is error


def test_a_refresh_that_fails_gives_the_connection_back_and_is_raised() -> None:
    driver = Driver(core_of(keys("a", OSError()), None), [status(401)])
    with pytest.raises(KeyUnavailable):
        driver.run()
    assert [type(step) for step in driver.steps] == [Send, Keep]
    assert driver.core.stats().in_flight == 0


def test_a_key_is_trimmed_and_not_blank() -> None:
    assert key_of(Endpoint("http://h", api_key=" k ")) == "k"
    with pytest.raises(ConfigurationError, match="api_key=''"):
        Endpoint("http://h", api_key=" ")


def test_an_async_function_is_refused() -> None:
    async def key() -> str:
        return "k"

    class Vault:
        async def __call__(self) -> str:
            return "k"

    for given in (key, Vault()):
        with pytest.raises(ConfigurationError, match="returns the key at once"):
            Endpoint("http://h", api_key=given)  # type: ignore[arg-type]


def test_a_key_is_in_no_repr_of_a_step() -> None:
    driver = Driver(core_of("hunter2"), [status(200)])
    ends(driver.run())
    assert "hunter2" not in repr(driver.steps)
