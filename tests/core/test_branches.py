"""What ordinary use seldom comes to: the last branches of the core."""

from __future__ import annotations

from collections import UserList
from typing import Any

import pytest

from prefixroute import AttemptsFailed, Endpoint, Failover
from prefixroute.core.exchange import Exchange
from prefixroute.core.failover import Rounds
from prefixroute.core.fixed import LeastLoaded, Random_
from prefixroute.core.health import Health
from prefixroute.core.nested import Nested
from prefixroute.core.pieces import plain_ids
from prefixroute.core.placement import Placement
from prefixroute.core.prompt import Prompt
from prefixroute.core.rendered import _tool
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Keep, Responded, Send
from prefixroute.core.urls import shown_url
from prefixroute.core.waiters import Waiter
from tests.core.support import FakeClock, blocks, chat, make_router, states


class Whole(int):
    """An int of a library's own, as numpy's are."""


class Real(float):
    """A float of a library's own."""


def test_values_of_libraries_count_as_what_they_are() -> None:
    router = make_router()
    plain = router.read({"model": "m", "prompt": [1, 2, 3], "temperature": 0.5, "tools": [0.5]})
    assert plain.chain
    odd = {
        "model": "m",
        "prompt": UserList([Whole(1), 2, 3]),
        "temperature": Real(0.5),
        "tools": [Real(0.5)],
    }
    assert router.read(odd) == plain
    assert router.read({"model": "m", "prompt": range(1, 4)}) == plain


def test_an_address_of_a_later_version_is_left_as_it_is() -> None:
    assert Endpoint("http://[v1.fe80:a]:8000").url == "http://[v1.fe80:a]:8000/v1"


def test_a_url_that_cannot_be_read_is_shown_without_its_secrets() -> None:
    assert shown_url("ftp://me:secret@h/x?key=secret") == "h/x"


def test_without_a_stop_strategy_there_is_one_round() -> None:
    rounds = Rounds(Failover(), 0.0, once=False)
    assert rounds.next_in_s(1.0, None, 5.0) is None
    assert rounds.count == 0


def test_a_request_before_its_time_is_no_probe() -> None:
    health = Health()
    health.eject(20.0)
    assert health.sent(10.0) == 0
    assert health.sent(10.0, panic=True) == 1


@pytest.mark.parametrize("placement", [Nested(), LeastLoaded(), Random_()])
def test_a_child_of_a_fork_begins_with_nothing_in_flight(placement: Placement) -> None:
    router = make_router(2, placement=placement, seed=None)
    lease, dropped = router.acquire(blocks(1)), router.acquire(chat("hello", stream=True))
    del dropped
    router._after_fork()
    assert router.stats().in_flight == 0
    own = router.acquire(blocks(1))
    lease.release()  # the parent's
    assert router.stats().in_flight == 1
    own.release()
    for state in states(router).values():
        assert state.queued == state.backlog == 0.0
        assert not state.open
        assert not state.silent


def test_a_probe_of_one_that_left_says_nothing() -> None:
    router = make_router(2)
    state = router._members.states[0]
    router.remove(state.endpoint)
    router._ledger.judge.probed(state, None, 0.0)
    assert state.failures == 0


def test_an_account_tells_its_load() -> None:
    router = make_router(1)
    with router.acquire(blocks(1)):
        assert repr(router._members.states[0]).endswith(" 1 in flight>")


def test_a_reply_that_does_not_tell_after_some_that_did() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    rates = []
    for cached in (0, None):
        lease = router.acquire(chat("hello " * 900, stream=True))
        clock.tick(0.5)
        lease.first_token(cached)
        lease.release()
        rates.append(router._ledger.queues.rate)
    assert rates[0] == rates[1]


def test_who_comes_late_to_a_lease_is_told_at_once() -> None:
    router = make_router(1)
    waiter, told = Waiter(Prompt()), []
    with router.acquire(blocks(1)) as lease:
        waiter.grant(lease)
        waiter.on_granted(lambda: told.append(1))
    assert told == [1]


def test_ids_of_an_array() -> None:
    class Array:
        def tolist(self) -> list[int]:
            return [1, 2]

    assert plain_ids(Array()) == [1, 2]


@pytest.mark.parametrize(
    ("tool", "parameters"),
    [
        ({"name": "f", "description": "d", "input_schema": {"a": 1}}, {"a": 1}),
        ({"name": "f", "description": "d", "type": "function", "parameters": {"b": 1}}, {"b": 1}),
    ],
)
def test_tools_of_other_paths(tool: dict[str, Any], parameters: dict[str, Any]) -> None:
    function = {"name": "f", "description": "d", "parameters": parameters}
    assert _tool(tool) == {"type": "function", "function": function}


def test_what_is_no_function_of_the_callers_is_no_tool() -> None:
    assert _tool({"type": "web_search"}) is None
    assert _tool({"type": "web_search", "name": "search"}) is None


# -- calls


def one_server() -> RouterCore:
    endpoints = [Endpoint("http://a", models=["m"]), Endpoint("http://b", models=["n"])]
    return make_router(endpoints)


def start(router: RouterCore) -> Any:
    prompt = router.read(chat("hello"))
    exchange: Exchange[str] = Exchange(router, prompt, router.failover, digest=lambda: None)
    return exchange.run()


@pytest.mark.parametrize("kept", [True, False])
def test_nobody_else_serves_the_model(kept: bool) -> None:
    router = one_server()
    script = start(router)
    assert isinstance(next(script), Send)
    refusal = Responded("busy", 503)
    assert isinstance(script.send(refusal), Keep)
    if kept:
        with pytest.raises(StopIteration) as done:
            script.send(refusal)
        assert done.value.value.response == "busy"
    else:  # it could not be read
        with pytest.raises(AttemptsFailed):
            script.send(None)
    assert router.stats().in_flight == 0


def test_a_driver_says_how_an_attempt_ended() -> None:
    router = one_server()
    script = start(router)
    lease = next(script).lease
    with pytest.raises(TypeError, match="outcome"):
        script.send(None)
    lease.release()
