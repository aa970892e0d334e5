"""Routers that hear of each other through a real server: loads, ejections, hot prefixes."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anyio
import msgspec
import pytest
import trio

from prefixroute import ConfigurationError, Endpoint, HealthState, Nested, Router
from prefixroute.core.others import OthersLoad
from prefixroute.signals.hot import Snapshot
from prefixroute.signals.redis import RedisFleet
from tests.signals.redis_server import RedisServer, redis_server, until

__all__ = ["redis_server"]

URLS = [f"http://gpu-{number}:8000/v1" for number in range(4)]
SECRET = "the quick brown fox "


def chat(number: int = 0) -> dict[str, object]:
    text = f"{number} " + SECRET * 400
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}


@pytest.fixture
def routers() -> Iterator[list[Router]]:
    """Three, for whom time stands still: nothing that is sent is ever computed."""
    with ExitStack() as stack:
        yield [stack.enter_context(Router(URLS, clock=lambda: 0.0)) for _ in range(3)]


@pytest.fixture
def fleets(routers: list[Router], redis_server: RedisServer) -> Iterator[list[RedisFleet]]:
    made = [patient(router, redis_server.url) for router in routers]
    yield made
    for one in made:
        one._link.close()


def patient(router: Router, url: str, **settings: Any) -> RedisFleet:
    """A fleet that takes a busy machine neither for a lost server nor for old news."""
    return RedisFleet(router, url, **{"timeout_s": 30.0, "every_s": 5.0, **settings})


def heard(router: Router) -> dict[str, tuple[int, float]]:
    """What others have, by endpoint, as far as it may still be believed."""
    now = router.now()
    return {
        state.endpoint.id: (state.others.requests, state.others.tokens)
        for state in router._members.states
        if state.others is not None and state.others.fresh(now)
    }


def requests_heard(router: Router) -> int:
    return sum(requests for requests, _ in heard(router).values())


def rounds(fleets: list[RedisFleet], times: int = 2) -> None:
    for _ in range(times):
        for fleet in fleets:
            assert fleet.turn()


def fleet_threads() -> int:
    return sum(thread.name == "prefixroute-fleet" for thread in threading.enumerate())


# -- load ----------------------------------------------------------------------------------------


def test_each_hears_what_the_others_have(routers: list[Router], fleets: list[RedisFleet]) -> None:
    leases = [routers[0].acquire(chat()) for _ in range(5)] + [routers[1].acquire(chat(1))]
    rounds(fleets)
    own = [sum(e.in_flight for e in router.stats().endpoints) for router in routers]
    assert own == [5, 1, 0]
    assert [requests_heard(router) for router in routers] == [1, 5, 6]
    home = leases[0].endpoint.id
    assert heard(routers[2])[home][1] > 1000  # uncached tokens that are not computed yet
    for lease in leases:
        lease.release()
    rounds(fleets)
    assert [requests_heard(router) for router in routers] == [0, 0, 0]
    assert all(tokens == 0.0 for router in routers for _, tokens in heard(router).values())
    assert [fleet.stats().peers for fleet in fleets] == [2, 2, 2]


def test_what_others_have_sends_requests_elsewhere(
    routers: list[Router], fleets: list[RedisFleet]
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    home = routers[1].route(body).endpoint
    routers[1].report_others({home.id: OthersLoad(requests=9, tokens=1e6)}, for_s=60)
    assert routers[1].route(body).endpoint != home


def test_a_turn_costs_the_same_with_many_routers(
    routers: list[Router], fleets: list[RedisFleet], redis_server: RedisServer
) -> None:
    rounds(fleets[:1], 3)
    fleets[0]._talk.hot_at = math.inf  # what is hot is not told in every turn

    def cost() -> tuple[int, int]:
        link = fleets[0]._link
        before = link.commands, link.bytes
        rounds(fleets[:1], 1)
        return link.commands - before[0], link.bytes - before[1]

    alone = cost()
    many = [patient(routers[1], redis_server.url) for _ in range(100)]
    for one in many:
        one._talk.owner = one._talk.owner[::-1]
        assert one.turn()
        one._link.close()
    among_many = cost()
    assert fleets[0].stats().peers == 100
    assert among_many[0] == alone[0] == 1
    assert among_many[1] < alone[1] + 100


def test_more_endpoints_than_lua_passes_arguments(
    fleets: list[RedisFleet], redis_server: RedisServer
) -> None:
    def share(count: int) -> bytes:
        fields = [part for number in range(9000) for part in (f"n:{number}", count)]
        return msgspec.msgpack.encode(fields)

    assert fleets[0].turn()
    fleets[0]._talk.say(share(2))
    fleets[1]._talk.say(share(3))
    with redis_server.client() as client:
        totals: dict[bytes, bytes] = client.hgetall("{prefixroute}:totals")
        assert {totals[b"n:%d" % number] for number in range(9000)} == {b"5"}
        fleets[0]._talk.leave()
        fleets[1]._talk.leave()
        assert client.hlen("{prefixroute}:totals") == 1  # when they are to be added up anew


def test_leaving_takes_the_share_along(routers: list[Router], redis_server: RedisServer) -> None:
    lease = routers[0].acquire(chat())
    watcher = patient(routers[1], redis_server.url)
    with patient(routers[0], redis_server.url, every_s=0.05, ttl_s=3600):
        until(lambda: watcher.turn() and requests_heard(routers[1]) == 1)
        assert fleet_threads() == 1
    assert watcher.turn()
    assert requests_heard(routers[1]) == 0
    assert watcher.stats().peers == 0
    assert fleet_threads() == 0
    lease.release()
    watcher._link.close()


@pytest.mark.parametrize("key", ["owners", "deadlines", "totals"])
def test_whatever_becomes_of_a_key_the_totals_come_right(
    routers: list[Router], fleets: list[RedisFleet], redis_server: RedisServer, key: str
) -> None:
    leases = [routers[0].acquire(chat()) for _ in range(3)]
    rounds(fleets)
    with redis_server.client() as client:
        client.delete("{prefixroute}:" + key)
        rounds(fleets)
        client.hset("{prefixroute}:totals", "@", 0)  # a minute has passed
    rounds(fleets)
    assert [requests_heard(router) for router in routers] == [0, 3, 3]
    assert fleets[0].stats().peers == 2
    for lease in leases:
        lease.release()


def test_nothing_of_a_prompt_or_a_key_reaches_the_server(redis_server: RedisServer) -> None:
    endpoints = [Endpoint(url, api_key="sk-endpoint", headers={"x-a": "sk-head"}) for url in URLS]
    router = Router(endpoints)
    fleet = patient(router, redis_server.url, share_membership=True)
    for number in range(40):
        router.acquire(chat(number % 2)).release()
    assert fleet.turn()
    fleet._talk.leave_hot()
    router.remove(URLS[3])
    assert fleet.turn()
    with redis_server.client() as client:
        keys: list[bytes] = list(client.scan_iter())
        kept = b"".join(client.dump(key) or b"" for key in keys)
        names = {key.split(b":")[1] for key in keys}
        assert all(client.pttl(key) > 0 for key in keys)
    assert names == {b"owners", b"deadlines", b"totals", b"members", b"about", b"hot"}
    for secret in (b"quick", b"fox", b"sk-endpoint", b"sk-head"):
        assert secret not in kept
    fleet._link.close()


# -- ejections -----------------------------------------------------------------------------------


def states(router: Router) -> list[HealthState]:
    return [endpoint.state for endpoint in router.stats().endpoints]


def test_what_two_have_ejected_the_third_ejects(
    routers: list[Router], fleets: list[RedisFleet]
) -> None:
    rounds(fleets)
    routers[0].eject(URLS[1])
    rounds(fleets)
    assert states(routers[2]).count(HealthState.EJECTED) == 0  # one alone may be wrong
    routers[1].eject(URLS[1])
    rounds(fleets)
    assert states(routers[2])[1] is HealthState.EJECTED
    assert not routers[2].own_loads()[routers[2].endpoints[1].id].ejected  # it is no vote itself
    routers[2].readmit(URLS[1])
    rounds(fleets)
    assert states(routers[2])[1] is HealthState.HEALTHY  # it has been heard of
    for router in routers[:2]:
        router.readmit(URLS[1])
    rounds(fleets)
    for router in routers[:2]:
        router.eject(URLS[1])
    rounds(fleets)
    assert states(routers[2])[1] is HealthState.EJECTED  # anew


def test_an_ejection_is_heard_between_turns(
    routers: list[Router], fleets: list[RedisFleet]
) -> None:
    rounds(fleets)
    for router, fleet in zip(routers[:2], fleets[:2], strict=True):
        router.eject(URLS[1])
        assert fleet.turn()

    def hears() -> bool:
        message = fleets[2]._link.listen(1.0)
        if message is not None:
            fleets[2]._talk.hear(message)
        return states(routers[2])[1] is HealthState.EJECTED

    until(hears)


def test_a_router_whose_own_network_is_ill_has_no_vote(
    routers: list[Router], fleets: list[RedisFleet]
) -> None:
    for router in routers[:2]:
        for url in URLS[1:]:
            router.eject(url)
    rounds(fleets)
    assert states(routers[2]) == [HealthState.HEALTHY] * 4


def test_hearsay_ends_like_a_first_ejection() -> None:
    now = [0.0]
    router = Router(URLS, clock=lambda: now[0], seed=1)
    assert router.suspect(URLS[2])
    assert not router.suspect(URLS[2])
    home = next(
        body
        for body in map(chat, range(200))
        if (found := router.route(body).home) and found.url == URLS[2]
    )
    assert router.route(home).endpoint.url != URLS[2]
    now[0] = 12.0
    with router.acquire(home) as probe:
        assert probe.endpoint.url == URLS[2]
    assert states(router)[2] is HealthState.HEALTHY


# -- hot prefixes --------------------------------------------------------------------------------


def assistants(number: int) -> dict[str, object]:
    """A request of one of two assistants, whose system prompts are in half of the traffic each."""
    system = f"You are assistant {number % 2}. " * 200
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Question {number}: " + "why? " * 50},
        ],
    }


def test_a_new_router_places_a_hot_prefix_as_an_old_one_does(redis_server: RedisServer) -> None:
    old, fresh, alone = Router(URLS, seed=1), Router(URLS, seed=1), Router(URLS, seed=1)
    for number in range(300):
        old.acquire(assistants(number)).release()
    first = patient(old, redis_server.url)
    assert first.turn()
    first._talk.leave_hot()
    second = patient(fresh, redis_server.url)
    assert second.turn()
    assert second.stats().hot_prefixes > 2
    news = [assistants(number) for number in range(1000, 1060)]
    homes = [[router.route(body).home for body in news] for router in (old, fresh, alone)]
    agreeing = sum(a == b for a, b in zip(homes[0], homes[1], strict=True))
    assert agreeing == len(news)
    assert sum(a == b for a, b in zip(homes[0], homes[2], strict=True)) < len(news) * 0.7
    for fleet in (first, second):
        fleet._link.close()


def test_who_counts_otherwise_takes_nothing_over(redis_server: RedisServer) -> None:
    old = Router(URLS)
    for number in range(100):
        old.acquire(assistants(number)).release()
    first = patient(old, redis_server.url)
    assert first.turn()
    first._talk.leave_hot()
    second = patient(Router(URLS, placement=Nested(block_bytes=512)), redis_server.url)
    assert second.turn()
    assert second.stats().hot_prefixes == 0
    for fleet in (first, second):
        fleet._link.close()


def test_what_is_no_snapshot_is_passed_over(
    routers: list[Router], fleets: list[RedisFleet], redis_server: RedisServer
) -> None:
    wrong = [
        b"\xff",
        b"",
        b"x" * 100_000,
        msgspec.msgpack.encode(Snapshot("a", 0, 600.0, {1: float("inf")}, [])),
        msgspec.msgpack.encode(Snapshot("a", 0, 0.0, {1: 1.0}, [])),
        msgspec.msgpack.encode(Snapshot("a", 0, 600.0, {1: 1.0}, [(1, -5.0, 2)])),
        msgspec.msgpack.encode({"owner": 3}),
    ]
    with redis_server.client() as client:
        for number, content in enumerate(wrong):
            client.set(fleets[0]._talk.place(number), content)
    assert fleets[0].turn()
    assert fleets[0].stats().hot_prefixes == 0


# -- who agrees ----------------------------------------------------------------------------------


def test_routers_that_cannot_agree_say_so_once(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Router(URLS, seed=1), Router(URLS[:3], seed=2)
    fleets = [patient(one, redis_server.url), patient(other, redis_server.url)]
    for fleet in fleets:
        fleet._talk.view._settled_s = 0.0
    with caplog.at_level(logging.WARNING, "prefixroute"):
        rounds(fleets, 4)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2  # each says it once
    assert one.fingerprint in warnings[0]
    assert other.fingerprint in warnings[0]
    assert "seed: 1 here, 2 there" in "".join(warnings)
    assert "gpu-3" in "".join(warnings)
    assert fleets[0].stats().fingerprints == {one.fingerprint: 1, other.fingerprint: 1}
    for fleet in fleets:
        fleet._link.close()


def test_those_who_agree_and_those_who_change_together_say_nothing(
    routers: list[Router], fleets: list[RedisFleet], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "prefixroute"):
        rounds(fleets)
        for router, fleet in zip(routers, fleets, strict=True):
            router.remove(URLS[0])
            rounds([fleet], 1)
        rounds(fleets)
    assert caplog.records == []
    assert fleets[0].stats().fingerprints == {routers[0].fingerprint: 3}


# -- threads, loops and forks --------------------------------------------------------------------


@pytest.mark.parametrize("library", [asyncio, trio])
def test_two_loops_one_after_the_other(redis_server: RedisServer, library: object) -> None:
    router = Router(URLS)
    fleet = patient(router, redis_server.url, every_s=0.02)

    async def main() -> None:
        async with fleet:
            while not heard(router):  # noqa: ASYNC110 - a thread hears it
                await anyio.sleep(0.01)

    for _ in range(2):
        asyncio.run(main()) if library is asyncio else trio.run(main)
        assert fleet_threads() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.leaves_in_flight
def test_a_fork_is_a_router_of_its_own(routers: list[Router], redis_server: RedisServer) -> None:
    lease = routers[0].acquire(chat())
    watcher = patient(routers[1], redis_server.url)
    with patient(routers[0], redis_server.url, every_s=0.05) as fleet:
        until(lambda: watcher.turn() and requests_heard(routers[1]) == 1)
        seen, see = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                own = [routers[0].acquire(chat()) for _ in range(2)]
                until(lambda: fleet_threads() == 1 and requests_heard(routers[0]) == 1)
                os.close(see)
                os.read(seen, 1)  # until the parent has seen it too
                code = len(own) - 2
            finally:
                os._exit(code)
        try:
            until(lambda: watcher.turn() and requests_heard(routers[1]) == 3)
        finally:
            os.close(see)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.close(seen)
        until(lambda: watcher.turn() and requests_heard(routers[1]) == 1)  # the child's vanishes
        assert fleet.stats().connected  # the parent's connection is its own
    lease.release()
    watcher._link.close()


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"url": "http://:hunter2@host"}, "url"),
        ({"url": "redis://:hunter2@host:port"}, "url"),
        ({"url": None}, "url"),
        ({"every_s": 0}, "every_s"),
        ({"ttl_s": 1.0}, "ttl_s"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "{a}"}, "prefix"),
        ({"accept": lambda endpoint: endpoint}, "accept"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], name: str) -> None:
    given = {"url": "redis://localhost", **settings}
    with pytest.raises(ConfigurationError, match=rf"RedisFleet\({name}=") as caught:
        RedisFleet(Router(URLS), **given)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__context__)
    with pytest.raises(ConfigurationError, match="must be a Router"):
        RedisFleet("http://a", "redis://localhost")  # type: ignore[arg-type]


def test_nothing_is_asked_before_it_starts() -> None:
    fleet = RedisFleet(Router(URLS), "redis://:hunter2@no-such-host:1/0")
    assert repr(fleet) == "<RedisFleet redis://no-such-host:1/0, 0 peers, not connected>"
    assert fleet.stats().age_s is None
    fleet.stop()


_WITHOUT = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {blocked!r}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Block())
from prefixroute.signals import RedisFleet
"""


def test_a_missing_extra_is_named_and_no_other_is_needed() -> None:
    def run(blocked: str) -> subprocess.CompletedProcess[str]:
        code = _WITHOUT.format(blocked=blocked)
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )

    assert "pip install 'prefixroute[redis]'" in run("redis").stderr
    assert run("prometheus_client").returncode == 0
