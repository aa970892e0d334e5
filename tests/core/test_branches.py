"""What ordinary use seldom comes to: the last branches of the core."""

from __future__ import annotations

import sys
from array import array
from collections import UserList
from random import Random
from typing import Any
from weakref import WeakSet

import pytest

from prefixroute import AttemptsFailed, ConfigurationError, Endpoint, Failover, Router
from prefixroute.core import roster
from prefixroute.core.exchange import Exchange
from prefixroute.core.failover import Rounds
from prefixroute.core.fixed import Fixed, LeastLoaded, Random_
from prefixroute.core.health import Health, HealthPolicy
from prefixroute.core.nested import Nested
from prefixroute.core.pieces import pack_ids, plain_ids
from prefixroute.core.placement import Placement
from prefixroute.core.prompt import Prompt
from prefixroute.core.queues import Queues
from prefixroute.core.rendered import _tool, split_rendered
from prefixroute.core.request import read_prompt
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Keep, Race, Responded, Send
from prefixroute.core.tokens import TokenReader
from prefixroute.core.urls import shown_url
from prefixroute.core.usage import read_reply
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


def test_tools_nested_deeper_than_marks_are_looked_for_have_a_key() -> None:
    tool: dict[str, Any] = {"x": 1}
    for _ in range(600):
        tool = {"content": tool}
    assert make_router().read(chat("hi", tools=[tool])).chain


def test_an_address_of_a_later_version_is_left_as_it_is() -> None:
    assert Endpoint("http://[v1.fe80:a]:8000").url == "http://[v1.fe80:a]:8000/v1"


def test_a_url_that_cannot_be_read_is_shown_without_its_secrets() -> None:
    assert shown_url("ftp://me:secret@h/x?key=secret") == "h/x"


@pytest.mark.parametrize("url", ["http://gpu-0\x00", "http://gpu\u200b-0/v1", "http://h/\ud800"])
def test_a_url_has_no_characters_that_cannot_be_seen(url: str) -> None:
    with pytest.raises(ConfigurationError, match="characters that no URL has"):
        Endpoint(url)


def test_without_a_stop_strategy_there_is_one_round() -> None:
    rounds = Rounds(Failover(), 0.0, once=False)
    assert rounds.next_in_s(1.0, None, 5.0) is None
    assert rounds.count == 0


def test_what_is_kept_of_past_ends_is_bounded() -> None:
    health, policy = Health(), HealthPolicy(failures=10**9, error_rate=None)
    for _ in range(3000):
        health.failed(0.0, policy, Random(0), probe=0)
        health.succeeded(probe=0)
    assert health._history.bit_length() <= 1000


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


def test_the_child_of_a_fork_keeps_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = make_router(4, placement=Random_(), seed=7)
    monkeypatch.setattr(roster, "_rosters", WeakSet([seeded]))
    roster._after_fork()
    again = make_router(4, placement=Random_(), seed=7)
    again._after_fork()
    went = [[router.acquire({}).endpoint.id for _ in range(8)] for router in (seeded, again)]
    assert went[0] == went[1]


def test_the_child_of_a_fork_goes_on_holding_out() -> None:
    router = Router(["http://a", "http://b"], holdout=0.5, seed=0)
    lease = router.acquire(chat("hello"))
    router._after_fork()
    lease.release()  # the parent's
    with router.acquire(chat("hello")):
        assert router.stats().in_flight == 1
    assert router.stats().holdout is not None


def test_a_clock_that_fails_leaves_the_lock_free() -> None:
    class Stopped(FakeClock):
        stopped = False

        def __call__(self) -> float:
            if self.stopped:
                raise OSError("no clock")
            return super().__call__()

    clock = Stopped()
    router = make_router(2, clock=clock)
    clock.stopped = True
    with pytest.raises(OSError, match="no clock"):
        router.stats()
    clock.stopped = False
    assert router.stats().in_flight == 0
    assert not router.in_lock


def test_a_request_without_a_digest_is_none_that_fails_everywhere() -> None:
    router = make_router(2)
    with router.acquire(chat("hello")) as lease:
        lease.failed(status=500, digest=7)
    router.note_served(lambda: None)
    with router.acquire(chat("hello")) as lease:
        lease.failed(status=500, digest=7)  # still the one that fails everywhere
    assert sum(one.failures for one in router.stats().endpoints) == 1


def test_queues_without_a_clock_yet_have_no_scale() -> None:
    assert Queues(half_life_s=600.0, foreign=True).scale() == 0.0


def test_a_probe_of_one_that_left_says_nothing() -> None:
    router = make_router(2)
    state = router._members.states[0]
    router.remove(state.endpoint)
    router._ledger.judge.probed(state, None, 0.0)
    assert state.failures == 0


def test_a_placement_learns_nothing_of_a_reply_that_does_not_tell() -> None:
    router = make_router(2)
    with router.acquire(blocks(1, 2, 3)) as lease:
        before = router.explain(blocks(1, 2, 3))
        router._ledger.policy.learned(lease._loan)
        assert router.explain(blocks(1, 2, 3)) == before


def test_a_key_at_the_root_is_a_key() -> None:
    decision = make_router(2, placement=Fixed()).route("x" * 4000)
    assert decision.depth == 0
    assert decision.key is not None


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


def test_ids_are_the_same_bytes_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack_ids([1, 2]) == (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    swapped = array("q", [1, 2])
    swapped.byteswap()
    other = "little" if sys.byteorder == "big" else "big"
    monkeypatch.setattr(sys, "byteorder", other)
    expected = [1, 2] if other == "little" else swapped.tolist()
    assert pack_ids([1, 2]) == array("q", expected).tobytes()


def test_a_template_that_puts_the_system_prompt_behind_a_message() -> None:
    system = {"role": "system", "content": "You are kind."}
    asked = {"role": "user", "content": "Hello"}
    answered = {"role": "assistant", "content": "Hi"}
    text = "Chat: <u>Hello You are kind.</u> <a>Hi</a>"
    root, pieces, rest = split_rendered(text, [system, asked, answered], {})
    assert root == "Chat: "
    assert pieces == ["<u>Hello", " You are kind.</u> <a>Hi"]
    assert rest == "</a>"


def test_a_template_without_marks_between_system_prompt_and_message() -> None:
    system = {"role": "system", "content": "You are kind."}
    asked = {"role": "user", "content": "Hello"}
    root, pieces, rest = split_rendered("<s>You are kind. Hello</s>", [system, asked], {})
    assert (root, pieces, rest) == ("<s>You are kind.", [" Hello"], "</s>")


def test_a_chat_of_a_system_prompt_alone() -> None:
    system = {"role": "system", "content": "You are kind."}
    assert split_rendered("<s>You are kind.</s>", [system], {}) == ("<s>You are kind.", [], "</s>")


def test_space_before_a_mark_belongs_to_the_message() -> None:
    asked, answered = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}
    root, pieces, rest = split_rendered("<u>Hello \n<a>Hi </s>", [asked, answered], {})
    assert (root, pieces, rest) == ("", ["<u>Hello \n", "<a>Hi "], "</s>")


def test_two_texts_are_not_one_in_tokens() -> None:
    class Letters:
        name = "letters"

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    def read(*texts: str) -> Prompt:
        system = {"role": "system", "content": [{"type": "text", "text": text} for text in texts]}
        body = {"model": "m", "messages": [system, {"role": "user", "content": "Hello"}]}
        return read_prompt(body, tokens=TokenReader(Letters()))

    assert read("ab", "c").chain != read("a", "bc").chain


def test_a_tokenizer_that_is_interrupted_is_no_template_that_refuses() -> None:
    class Interrupted:
        name = "interrupted"

        def encode(self, text: str) -> list[int]:
            return [1]

        def render(self, chat: object) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TokenReader(Interrupted())._suffixes()


@pytest.mark.parametrize("body", [b"[]", b"[{}]", b'[{"usage": {"prompt_tokens": 1}}, {}]'])
def test_replies_to_a_batch_that_tell_nothing_of_all(body: bytes) -> None:
    assert read_reply(body) == (None, None)


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


def keys_that_end(*keys: str) -> Any:
    left = list(keys)

    def key() -> str:
        if not left:
            raise OSError("the vault is sealed")
        return left.pop(0)

    return key


def test_a_driver_says_how_the_try_with_a_new_key_ended() -> None:
    router = make_router([Endpoint("http://a", api_key=keys_that_end("old", "new"))])
    script = start(router)
    first = next(script)
    refused = Responded("who are you?", 401)
    assert isinstance(script.send(refused), Keep)
    again = script.send(refused)
    assert isinstance(again, Send)
    assert (first.key, again.key) == ("old", "new")
    with pytest.raises(TypeError, match="outcome"):
        script.send(None)
    again.lease.release()


def test_no_hedge_without_a_key() -> None:
    endpoints = [Endpoint("http://a"), Endpoint("http://b", api_key=keys_that_end(), tier=1)]
    router = RouterCore(
        endpoints,
        failover=Failover(replay_sent=True, hedge_after_s=1.0),
        clock=FakeClock(),
        wall_clock=lambda: 0.0,
    )
    race = next(start(router))
    assert isinstance(race, Race)
    assert race.second() is None
    assert router.stats().in_flight == 1
    race.first.lease.release()
