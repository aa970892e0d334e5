"""Faults that were reported in public against software of this kind, by their number in the list.

Each stands for a class; the others of it are tried here, too. Those that are a line of another
module's tests stay there (``grep -r test_case_``).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from typing import Any

import pytest

from prefixroute.core.decision import Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore

from .support import FakeClock, blocks, chat, conversation, make_router, serve, text, urls
from .world import World, places

KEYED: dict[str, Placement] = {"Nested": Nested(), "Fixed": Fixed()}
keyed = pytest.mark.parametrize("name", list(KEYED))


# -- 6: a chat stays where it is -----------------------------------------------


@keyed
@pytest.mark.parametrize("first", [1, 5, 30, 200])
@pytest.mark.parametrize("system", [None, "You are helpful.", text("system", 6000)])
def test_case_06_a_chat_alone_on_a_fresh_router(name: str, first: int, system: str | None) -> None:
    for seed in range(8):
        for count in (2, 3, 8):
            router = make_router(count, placement=KEYED[name], seed=seed)
            used = [
                serve(router, body)
                for body in conversation(("chat", seed), 5, first=first, system=system)
            ]
            assert len(set(used)) == 1, (seed, count, used)


@keyed
@pytest.mark.parametrize("how", ["text", "tokens", "responses", "session"])
def test_case_06_other_forms_of_a_growing_prompt(name: str, how: str) -> None:
    for seed in range(10):
        router = make_router(8, placement=KEYED[name], seed=seed)
        used: list[str] = []
        said = "hi" if name == "Nested" else text(("first", seed), 1200)  # more than the window
        for turn in range(8 if how == "session" else 5):
            body: Any = said
            options: dict[str, Any] = {}
            match how:
                case "tokens":
                    body = {"model": "m", "prompt": list(said.encode())}
                case "responses":
                    body = {"model": "m", "instructions": "Be brief.", "input": said}
                case "session":
                    body, options = chat(text((seed, turn), 900)), {"session": "s-1"}
                case _:
                    pass
            with router.acquire(body, **options) as lease:
                used.append(lease.endpoint.id)
            said += text((seed, turn), 700)
        if how == "responses":  # its text is one message, which grows: another one every time
            assert len({router.route(body).endpoint.id for _ in range(3)}) == 1
        else:
            assert len(set(used)) == 1, (seed, used)


@keyed
@pytest.mark.parametrize("first", [2, 5, 200])
@pytest.mark.parametrize("others", [20, 200])
@pytest.mark.parametrize("shared", [False, True])
def test_case_06_a_chat_among_others(name: str, first: int, others: int, *, shared: bool) -> None:
    """Its turns come between requests of other chats, which may share its system prompt."""
    system = text("system", 4000)
    for seed in range(3):
        rng = random.Random(seed)
        router = make_router(8, placement=KEYED[name], seed=seed)

        def another(rng: random.Random = rng) -> dict[str, Any]:
            own = text(("system", rng.randrange(6)), rng.choice((30, 3000)))
            return chat(
                text(rng.random(), rng.choice((5, 300, 2000))), system=system if shared else own
            )

        for _ in range(others):
            serve(router, another())
        used = []
        for body in conversation(("chat", seed), 5, first=first, system=system):
            used.append(serve(router, body))
            for _ in range(others // 5):
                serve(router, another())
        assert len(set(used)) == 1, (seed, used)


@pytest.mark.parametrize("first", [5, 200])
@pytest.mark.parametrize("rate", [1.0, 5.0])
def test_case_06_a_chat_among_others_in_time(first: int, rate: float) -> None:
    """The same against engines that are busy with the others."""
    for seed in range(4):
        clock, rng = FakeClock(), random.Random(seed)
        router, world = make_router(8, clock=clock, seed=seed), World(clock)
        arrivals: list[tuple[float, RouterCore, Any, object]] = []
        at = 0.0
        while at < 120.0:
            at += rng.expovariate(rate)
            system = text(("s", rng.randrange(7)), 2000) if rng.random() < 0.5 else None
            body = chat(text((seed, at), rng.randrange(600, 3600)), system=system, stream=True)
            arrivals.append((at, router, body, "other"))
        for turn, body in enumerate(conversation(("chat", seed), 5, first=first)):
            arrivals.append((60.0 + 8.0 * turn, router, {**body, "stream": True}, "chat"))
        used = places(world.play(arrivals), "chat")
        assert len(set(used)) == 1, (seed, used)


def fifty_suffixes(seed: object) -> list[str]:
    prefix = text(("prefix", seed), 4096)
    return [prefix + text((seed, number), 600) for number in range(50)]


@keyed
@pytest.mark.parametrize("kind", ["text", "chat", "system"])
def test_case_06_one_prefix_as_1_percent_of_the_traffic_goes_to_one_endpoint(
    name: str, kind: str
) -> None:
    seed = len(kind)
    router, serial = make_router(8, placement=KEYED[name], seed=seed), itertools.count(1000)
    used = []
    for prompt in fifty_suffixes(seed):
        for _ in range(99):
            router.lease(blocks(next(serial), 1, 2)).release()
        body: Any = prompt
        if kind == "chat":
            body = chat(prompt)
        if kind == "system":
            body = chat(prompt[4096:], system=prompt[:4096])
        used.append(serve(router, body))
    assert len(set(used)) == 1, Counter(used)


def test_case_06_alone_with_fixed_50_suffixes_go_to_one_endpoint() -> None:
    for seed in range(10):
        router = make_router(8, placement=Fixed(), seed=seed)
        assert len({serve(router, prompt) for prompt in fifty_suffixes(seed)}) == 1


# -- 7: hashes are chained -----------------------------------------------------


@keyed
def test_case_07_a_prompt_follows_its_beginning_not_its_end(name: str) -> None:
    for seed in range(10):
        router = make_router(8, placement=KEYED[name], seed=seed)
        for number in range(40):  # so that it is no fresh router
            serve(router, text((seed, number), 900))
        a, b = text("A", 2048), text("B", 2048)
        went = {"B": serve(router, b), "A": serve(router, a)}
        assert serve(router, b + a) == went["B"]
        assert serve(router, a + b) == went["A"]
        fresh = make_router(8, placement=KEYED[name], seed=seed)
        assert fresh.route(chat(a[:40], b)).key != fresh.route(chat(b[:40], a)).key


# -- 8: one hot system prompt is spread, and the bound holds -------------------


@keyed
@pytest.mark.parametrize("count", [2, 4, 8])
def test_case_08_the_same_8k_system_prompt_and_200_users_at_once(name: str, count: int) -> None:
    router = make_router(count, placement=KEYED[name])
    system, held = text("system", 8192), []
    for user in range(200):
        lease = router.acquire(chat(text(user, 300), system=system))
        held.append(lease)
        limit = lease.decision.bound
        assert limit is not None
        assert router.in_flight(lease.endpoint) <= limit
    counts = [e.in_flight for e in router.stats().endpoints]
    most = math.ceil(1.25 * 200 / count)
    assert max(counts) <= (most if name == "Fixed" else max(most, 199 // count + 8))
    assert sum(held > 0 for held in counts) >= math.ceil(200 / most)
    assert min(counts) > 0 or name == "Fixed"
    for lease in held:
        lease.release()


def test_case_08_in_time_the_hot_prompt_is_computed_once_per_endpoint() -> None:
    clock, rng = FakeClock(), random.Random(0)
    router, world = make_router(4, clock=clock), World(clock)
    system = text("system", 32_000)
    arrivals = [
        (
            user * 0.05 + rng.random(),
            router,
            chat(text(user, 300), system=system, stream=True),
            user,
        )
        for user in range(200)
    ]
    sent = world.play(arrivals)
    used = Counter(one.decision.endpoint.id for one in sent)
    assert len(used) == 4
    assert min(used.values()) >= 20


# -- 26: many endpoints, one hot prefix ----------------------------------------


@pytest.mark.parametrize(("share", "least"), [(0.25, 40), (1.0, 120)])
def test_case_26_300_endpoints_and_a_hot_prefix_from_idle(share: float, least: int) -> None:
    router = make_router(300, placement=Nested(virtual_nodes=8))
    assert router.route(blocks(1, 2)).reason is Reason.HOME  # an idle ring is never full
    rng, held, used = random.Random(0), [], set()
    for number in range(600):
        hot = rng.random() < share
        lease = router.acquire(blocks(1, number) if hot else blocks(number, number))
        assert lease.decision.reason is not Reason.OVERFLOW
        if hot:
            used.add(lease.endpoint.id)
        held.append(lease)
    assert len(used) >= least
    assert max(e.in_flight for e in router.stats().endpoints) <= 600 / 300 + 8
    for lease in held:
        lease.release()


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_case_26_an_idle_ring_never_calls_itself_full(factor: float) -> None:
    router = make_router(300, placement=Fixed(load_factor=factor, virtual_nodes=16))
    for number in range(300):
        decision = router.route(blocks(number))
        assert (decision.reason, decision.bound) == (Reason.HOME, 1)
        router.acquire(blocks(number)).release()
    tiny = [Endpoint(url, weight=1e-6 if at else 1.0) for at, url in enumerate(urls(50))]
    router = make_router(tiny, placement=Fixed(load_factor=factor, virtual_nodes=16))
    for number in range(200):
        assert (router.route(blocks(number)).bound or 0) >= 1


# -- 32: deterministic second choice -------------------------------------------


@keyed
def test_case_32_a_second_attempt_goes_elsewhere_and_to_the_same(name: str) -> None:
    for number in range(20):
        seconds = set()
        for _ in range(3):
            router = make_router(6, placement=KEYED[name])
            with router.acquire(blocks(number, number)) as first:
                first.failed(ConnectionRefusedError())
            with router.acquire(blocks(number, number), exclude=[first.endpoint.id]) as second:
                assert second.endpoint != first.endpoint
                if name == "Fixed":
                    assert second.endpoint == first.decision.candidates[1]
                seconds.add(second.endpoint.id)
        assert len(seconds) == 1


# -- 41: flat memory -----------------------------------------------------------


def test_case_41_unique_prompts_leave_the_tables_within_bounds() -> None:
    bound = 1024
    clock = FakeClock()
    router = make_router(8, placement=Nested(max_prefixes=bound, virtual_nodes=64), clock=clock)
    policy: Any = router._ledger.policy
    rng = random.Random(0)
    for number in range(6000):
        clock.tick(0.01)
        lease = router.lease(blocks(*(rng.getrandbits(40) for _ in range(7))))
        if number % 7 == 0:
            lease.answered(f"resp_{number}")
            lease.failed(status=500, digest=number)
        lease.release()
    assert len(policy._map) <= bound
    assert len(policy._traffic) <= bound
    assert len(router._ledger.placer._pins) <= 65_536
    for state in router._members.states:
        assert not state.open
        assert not state.silent
    assert not router._ledger.events


# -- 53: partial views ---------------------------------------------------------


@pytest.mark.parametrize(("routers", "count"), [(32, 8), (32, 16), (8, 4)])
def test_case_53_routers_that_see_a_part_do_not_spill_by_accident(routers: int, count: int) -> None:
    """Each has two requests in flight on the mean; together the load is balanced."""
    clock, rng = FakeClock(), random.Random(routers)
    fleet = [make_router(count, clock=clock) for _ in range(routers)]
    world = World(clock, decode_s=2.0)
    serial, arrivals = 0, []
    seconds = 40.0
    at = 0.0
    while at < seconds:
        at += rng.expovariate(routers * 2 / 2.05)  # Little: 2 in flight each
        serial += 1
        body = chat(text(serial, 400), stream=True)
        arrivals.append((at, rng.choice(fleet), body, None))
    sent = world.play(arrivals)
    mean = sum(one.eligible for one in sent) / len(sent)
    assert 1.2 < mean < 2.8
    refused = sum(one.decision.reason in (Reason.BOUND, Reason.OVERFLOW) for one in sent)
    assert refused < 0.01 * len(sent), (refused, len(sent))


# -- 54: sequential requests ---------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(
    "kind", ["text", "chat", "shared system", "short", "blocks", "tokens", "none"]
)
@pytest.mark.parametrize("name", ["Nested", "Fixed"])
def test_case_54_sequential_requests_with_nothing_in_flight_are_spread(
    name: str, kind: str, count: int
) -> None:
    clock = FakeClock()
    router = make_router(count, placement=KEYED[name], clock=clock)
    used: Counter[str] = Counter()
    system = text("system", 500)
    for number in range(40 * count):
        fresh = text(number, 700)
        body: Any = {
            "text": fresh,
            "chat": chat(fresh),
            "shared system": chat(fresh, system=system),
            "short": f"q{number}",
            "blocks": blocks(number, number),
            "tokens": [number, number + 1, 7],
            "none": {},
        }[kind]
        assert router.stats().in_flight == 0
        used[serve(router, body, clock=clock)] += 1
        clock.tick(0.5)
    assert len(used) == count
    assert min(used.values()) >= 8
    assert max(used.values()) <= 40 * count * 0.8
