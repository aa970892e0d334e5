from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from prefixroute.core.decision import Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.homes import heads
from prefixroute.core.lease import Lease
from prefixroute.core.nested import Nested, NestedPolicy
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore

from .support import FakeClock, blocks, chat, conversation, make_router, serve, states, text, urls
from .test_load import group
from .world import World


def policy(router: RouterCore) -> NestedPolicy:
    found = router._ledger.policy
    assert isinstance(found, NestedPolicy)
    return found


def warm(router: RouterCore, prompts: Any) -> None:
    for prompt in prompts:
        router.acquire(prompt).release()


# -- how many endpoints a prefix gets ------------------------------------------


@given(st.floats(0.01, 40), st.integers(1, 12))
def test_equal_weights_need_the_next_whole_number(need: float, count: int) -> None:
    some = group((1.0,) * count, (0,) * count)
    assert heads(need, range(count), some) == min(count, max(1, math.ceil(need - 1e-6)))


def test_heavy_endpoints_count_for_more() -> None:
    some = group((4.0, 1.0, 1.0, 1.0, 1.0), (0,) * 5)  # a mean weight is 1.6
    assert heads(2.0, (0, 1, 2, 3, 4), some) == 1  # 4 >= 3.2
    assert heads(2.0, (1, 2, 0, 3, 4), some) == 3
    assert heads(4.0, (1, 2, 3, 4, 0), some) == 5


@pytest.mark.parametrize(("share", "spread"), [(0.02, 1), (0.2, 2), (0.5, 4), (1.0, 8)])
def test_a_prefix_gets_endpoints_by_its_share_of_the_traffic(share: float, spread: int) -> None:
    """Share * 8 endpoints / target 1, and a little less for the error of the count."""
    router = make_router(8, placement=Nested(target=1.0))
    rng = random.Random(0)
    warm(router, (blocks(1 if rng.random() < share else -n, n) for n in range(2000)))
    assert router.route(blocks(1, 99_999)).spread == spread


def test_the_first_request_is_keyed_by_the_second_boundary() -> None:
    router = make_router(8)
    assert router.route(blocks(1, 2, 3)).depth == 1
    assert router.route(blocks(1)).depth == 0
    used = {router.route(chat(text(n, 99), system=text("s", 900))).endpoint.id for n in range(50)}
    assert len(used) == 8  # everybody's system prompt is not a key


def test_after_a_long_pause_a_router_is_as_fresh() -> None:
    clock = FakeClock()
    router, fresh = (make_router(8, clock=clock) for _ in range(2))
    warm(router, (blocks(1, n, n) for n in range(20)))
    clock.tick(30 * 86_400.0)
    for prompt in (blocks(1, 5000, 6), chat("hi", system="s" * 3000), blocks(7)):
        asked, expected = router.route(prompt), fresh.route(prompt)
        assert (asked.home, asked.depth) == (expected.home, expected.depth)
    used = {router.route(blocks(1, 1000 + n, n)).home for n in range(50)}
    assert len(used) == 8


def test_a_cold_prefix_has_one_home_whatever_follows() -> None:
    router = make_router(8)
    warm(router, (blocks(n, n, n) for n in range(500)))
    homes = [router.route(blocks(3, tail)).home for tail in range(30)]
    assert len(set(homes)) == 1
    decision = router.route(blocks(3, 9))
    assert (decision.depth, decision.spread) == (0, 1)


def test_orders_nest_so_that_routers_that_judge_differently_mostly_agree() -> None:
    """One sees twice as much of the prefix as the other does."""
    one, other = (make_router(8, placement=Nested(target=1.0)) for _ in range(2))
    rng = random.Random(1)
    for router, share in ((one, 0.15), (other, 0.3)):
        warm(router, (blocks(1 if rng.random() < share else -n, n) for n in range(1500)))
    probes = [blocks(1, 10_000 + n) for n in range(200)]
    first, second = ([r.route(p) for p in probes] for r in (one, other))
    spreads = (first[0].spread, second[0].spread)
    assert 1 < spreads[0] < spreads[1]
    alike = sum(a.home == b.home for a, b in zip(first, second, strict=True))
    assert alike >= 0.6 * 200
    assert {d.home for d in first} < {d.home for d in second}


def test_the_conversations_under_a_hot_prefix_are_spread_within_its_set() -> None:
    router = make_router(8)
    rng = random.Random(2)
    warm(router, (blocks(1 if rng.random() < 0.06 else -n, n) for n in range(3000)))
    decisions = [router.route(blocks(1, 9000 + n)) for n in range(100)]
    assert 1 < decisions[0].spread < 8
    assert len({d.home for d in decisions}) == decisions[0].spread


# -- hysteresis ----------------------------------------------------------------


def spread_at(placement: Nested, shares: list[float]) -> list[int]:
    """The spread of a prefix while its share of the traffic changes."""
    clock = FakeClock()
    router = make_router(8, placement=placement, clock=clock)
    rng, found, serial = random.Random(3), [], itertools.count()
    for share in shares:
        for _ in range(600):
            clock.tick(10.0)
            n = next(serial)
            router.acquire(blocks(1 if rng.random() < share else -1 - n, n)).release()
        found.append(router.route(blocks(1, 10**9)).spread)
    return found


def test_a_spread_that_has_risen_falls_only_well_below_its_threshold() -> None:
    placement = Nested(target=1.0, half_life_s=1500.0)
    rising = spread_at(placement, [0.1, 0.22])
    falling = spread_at(placement, [0.5, 0.3, 0.22, 0.04])
    assert rising[0] == 1
    assert falling[0] > falling[3] == 1
    # 0.22 of 8 is below 2 endpoints' worth when it comes from below, but not from above.
    assert rising[1] <= falling[2]
    assert falling[2] >= 2


def test_a_spread_that_has_fallen_rises_only_at_its_threshold_again() -> None:
    router = make_router(8, placement=Nested(target=1.0))
    traffic = policy(router)._traffic
    some = router._members.groups(None)[0]
    prompt = blocks(1, 2)
    warm(router, (blocks(-n, n) for n in range(1000)))

    def share_is(wanted: float) -> int:
        total = traffic.total(some.label)
        traffic._counts.put(prompt.chain[0], wanted * total * traffic._weight)
        spread = router.route(prompt).spread
        before = traffic._totals.peek(some.label)
        router.acquire(prompt).release()
        assert before is not None
        traffic._totals.put(some.label, before)
        return spread

    at_8 = [(0.50, 4), (0.36, 4), (0.20, 3), (0.05, 1), (0.12, 1), (0.16, 2)]
    assert [share_is(share) for share, _ in at_8] == [spread for _, spread in at_8]


# -- what is held, and what that decides ---------------------------------------


def test_who_holds_more_gets_it_rather_than_the_home() -> None:
    router = make_router(8)
    warm(router, (blocks(-n, n) for n in range(200)))
    prompt = blocks(1, 2, 3, 4, 5, 6)
    home = router.route(prompt).home
    assert home is not None
    with router.acquire(prompt, exclude=[home.id]) as lease:
        pass
    decision = router.route(blocks(1, 2, 3, 4, 5, 6, 7))
    assert (decision.home, decision.endpoint) == (home, lease.endpoint)
    assert decision.reason is Reason.HOLDER
    assert decision.expected_cached_tokens == 6 * 512


def test_a_home_is_credited_with_what_others_bring_as_far_as_replies_show_it() -> None:
    seldom, often = make_router(4), make_router(4)
    for router, cached in ((seldom, 0), (often, 2048)):
        for number in range(200):
            lease = router.acquire(blocks(number, number, number, number))
            lease.first_token(cached)
            lease.release()
    fresh = blocks(7777, 1, 2, 3)
    assert router.route(fresh).reason is Reason.HOME
    assert seldom.route(fresh).expected_cached_tokens < 200
    assert often.route(fresh).expected_cached_tokens > 1900


def test_alone_in_front_of_the_endpoints_a_home_gets_no_credit() -> None:
    assert make_router(4).route(blocks(1, 2)).expected_cached_tokens == 512.0  # prior: half
    assert make_router(4, peers=1).route(blocks(1, 2)).expected_cached_tokens == 0.0
    assert make_router(4, peers=5).route(blocks(1, 2)).expected_cached_tokens == 512.0


def test_members_of_a_hot_prefix_are_taken_to_hold_it_once_it_was_seen_four_times() -> None:
    router = make_router(4)
    for number in range(8):
        decision = router.route(blocks(1, 2, 1000 + number))
        held = sum(state.bit > 0 for state in states(router).values())
        assert held == 4
        cached = decision.expected_cached_tokens
        assert (cached >= 1024) == (number >= 1), (number, cached)
        router.acquire(blocks(1, 2, 1000 + number)).release()
    used = {router.route(blocks(1, 2, 5000 + number)).endpoint.id for number in range(40)}
    assert len(used) == 4  # before that, who holds it gets it


def test_expected_tokens_never_exceed_the_prompt() -> None:
    router = make_router(4)
    for _ in range(3):
        for prompt in (blocks(1), blocks(1, 2), chat("x"), "x", [5]):
            decision = router.route(prompt)
            assert 0.0 <= decision.expected_cached_tokens <= max(0.0, decision.tokens)
            router.acquire(prompt).release()


# -- load ----------------------------------------------------------------------


def test_a_busy_home_is_left_when_computing_elsewhere_is_faster() -> None:
    router = make_router(4)
    warm(router, (blocks(-n, n) for n in range(100)))
    home = router.route(blocks(1)).endpoint
    others = {e.id for e in router.endpoints} - {home.id}
    held: list[Lease] = []
    while router.route(blocks(1)).endpoint == home:
        long = blocks(*range(100 * len(held) + 1000, 100 * len(held) + 1004))
        held.append(router.acquire(long, exclude=others))
        assert len(held) < 8, "the bound comes first"
    decision = router.route(blocks(1))
    assert (decision.reason, decision.home) == (Reason.LOAD, home)
    at = decision.candidates.index(home)
    assert decision.loads[at] > decision.loads[decision.candidates.index(decision.endpoint)]
    for lease in held:
        lease.release()


def test_loads_are_seconds_of_prefill() -> None:
    router = make_router(2, peers=1)
    with router.acquire({**chat("x" * 32_000), "stream": True}) as lease:
        decision = router.route(blocks(1))
        loads = dict(zip((e.id for e in decision.candidates), decision.loads, strict=True))
        assert loads.pop(lease.endpoint.id) == pytest.approx(
            1.0, rel=0.01
        )  # 8,000 tokens at 8,000/s
        assert set(loads.values()) == {0.0}


def test_an_endpoint_that_first_replied_slowly_is_not_left_for_good() -> None:
    """Its first reply waited behind others', or compiled something: that passes."""
    clock, rng = FakeClock(), random.Random(1)
    router = make_router(4, clock=clock)
    first, late = True, 0
    for number in range(2400):
        lease = router.acquire(chat(text(number, 8000), stream=True))
        unlucky = lease.endpoint.id == urls(1)[0]
        clock.tick(10.0 if unlucky and first else 0.25 * rng.lognormvariate(0, 0.3))
        first &= not unlucky
        lease.first_token(0)
        clock.tick(1.0)
        lease.release()
        late += unlucky and number >= 2000
    assert not first
    assert late > 0.6 * 400 / 4


def test_routers_of_few_requests_do_not_crowd_where_their_first_one_went() -> None:
    """A system prompt of several blocks, 60 routers of five requests each."""
    later: Counter[str] = Counter()
    for number in range(60):
        router = make_router(8)
        used = [serve(router, blocks(1, 2, 3, 4, 9 * number + turn)) for turn in range(5)]
        later.update(used[1:])
    assert max(later.values()) < 0.25 * later.total()


@pytest.mark.parametrize("system", [None, "Be brief.", text("system", 5000)])
@pytest.mark.parametrize("count", [2, 3])
def test_chats_that_take_turns_on_a_fresh_router_stay_where_they_are(
    count: int, system: str | None
) -> None:
    for seed, endpoints in itertools.product(range(5), (2, 4, 8)):
        router = make_router(endpoints, seed=seed)
        chats = [
            conversation(("chat", seed, number), 8, first=60, system=system)
            for number in range(count)
        ]
        used = [[serve(router, body) for body in turn] for turn in zip(*chats, strict=True)]
        for places_of_one in zip(*used, strict=True):
            assert len(set(places_of_one)) == 1, (seed, endpoints, places_of_one)


def test_a_chat_whose_turns_are_asked_for_again_stays_where_it_is() -> None:
    for seed in range(10):
        router = make_router(4, seed=seed)
        turns = conversation(("chat", seed), 4, first=60, system="Be brief.")
        again = [turns[0], turns[1], turns[0], turns[2], turns[1], turns[1], turns[3]]
        assert len({serve(router, body) for body in again}) == 1


@pytest.mark.parametrize("form", [str, lambda said: list(said.encode())], ids=["text", "tokens"])
def test_a_lone_prompt_that_grows_stays_where_it_is(form: Callable[[str], Any]) -> None:
    for seed in range(20):
        router = make_router(8, seed=seed)
        said = [text((seed, turn), 1000) for turn in range(14)]
        used = [
            serve(router, {"model": "m", "prompt": form("".join(said[: turn + 1]))})
            for turn in range(14)
        ]
        assert len(set(used)) == 1, (seed, used)


def test_many_routers_keep_prefixes_together() -> None:
    """32 routers that share nothing, 8 engines, 60 documents, each asked about 20 times."""
    clock = FakeClock()
    routers = [make_router(8, clock=clock) for _ in range(32)]
    world, rng = World(clock), random.Random(4)
    arrivals = [
        (
            n * 0.08 + rng.random(),
            rng.choice(routers),
            blocks(d, *range(d * 100, d * 100 + 10), n),
            d,
        )
        for n, d in enumerate(rng.choices(range(1, 61), k=1200))
    ]
    sent = world.play([(at, r, replace(p, stream=True), d) for at, r, p, d in arrivals])
    where: dict[object, Counter[str]] = {}
    for one in sent:
        where.setdefault(one.tag, Counter())[one.decision.endpoint.id] += 1
    together = sum(max(counts.values()) for counts in where.values())
    assert together > 0.8 * len(sent)


# -- the bound -----------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8, 40, 150])
def test_the_bound_holds_as_long_as_anybody_has_room(count: int) -> None:
    placement = Nested(load_slack=1, virtual_nodes=8)
    router = make_router(count, placement=placement)
    rng, held = random.Random(count), []
    for _ in range(3 * count):
        lease = router.acquire(blocks(1 if rng.random() < 0.9 else rng.randrange(50)))
        held.append(lease)
        m = len(held) - 1
        bound = max(math.ceil(1.25 * (m + 1) / count - 1e-9), math.floor(m / count + 1 + 1e-9))
        assert router.in_flight(lease.endpoint) <= bound
        assert lease.decision.bound == bound
        assert lease.decision.reason is not Reason.OVERFLOW
    for lease in held:
        lease.release()


def test_the_bound_holds_beyond_the_nearest_endpoints() -> None:
    placement = Nested(load_factor=1, load_slack=0, virtual_nodes=8)
    router = make_router(100, placement=placement)
    for number in range(3000):
        router.lease(blocks(-1 - number, number)).release()
    held = [router.acquire(blocks(1)) for _ in range(80)]
    assert held[-1].decision.spread < 32
    assert {router.in_flight(lease.endpoint) for lease in held} == {1}
    for lease in held:
        lease.release()


def test_with_many_endpoints_only_the_nearest_are_weighed() -> None:
    router = make_router(300, placement=Nested(virtual_nodes=8))
    assert len(router.route(blocks(1)).candidates) == 32
    home = router.route(blocks(2, 3, 4)).home
    assert home is not None
    far = router.route(blocks(2, 3, 4)).candidates[-1]
    everybody = {e.id for e in router.endpoints}
    with router.acquire(blocks(2, 3, 4), exclude=everybody - {"http://gpu-250:8000/v1"}) as lease:
        pass
    assert lease.endpoint in router.route(blocks(2, 3, 4)).candidates  # for it holds the prompt
    assert far in router.endpoints


def test_weights_shift_keys_and_hot_prefixes() -> None:
    endpoints = [Endpoint(url, weight=w) for url, w in zip(urls(4), (0.5, 1, 1, 4), strict=True)]
    router = make_router(endpoints)
    homes = Counter(router.route(blocks(n, n)).endpoint.id for n in range(1500))
    assert homes[urls(4)[3]] / 1500 == pytest.approx(4 / 6.5, abs=0.06)
    assert homes[urls(4)[0]] / 1500 == pytest.approx(0.5 / 6.5, abs=0.03)
    held = [router.acquire(blocks(1, n)) for n in range(130)]
    counts = [e.in_flight for e in router.stats().endpoints]
    for number, weight in enumerate((0.5, 1, 1, 4)):
        share = 130 * weight / 6.5
        assert counts[number] <= max(math.ceil(1.25 * share), share + 8)
    for lease in held:
        lease.release()


# -- a lone conversation -------------------------------------------------------


SHAPES: dict[str, dict[str, Any]] = {
    "short": {"first": 5},
    "usual": {"first": 400},
    "long": {"first": 5000},
    "system": {"first": 400, "system": text("system", 8000)},
    "short with system": {"first": 3, "system": "You are helpful."},
}


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("count", [2, 5, 8, 32])
def test_a_lone_conversation_of_14_turns_stays_on_one_endpoint(shape: str, count: int) -> None:
    for seed in range(20):
        clock = FakeClock()
        placement = Nested(virtual_nodes=1024 if count == 8 else 64)
        router = make_router(count, clock=clock, seed=seed, placement=placement)
        world = World(clock)
        for body in conversation(("lone", seed), 14, **SHAPES[shape]):
            world.send(router, {**body, "stream": True})
            world.finish()
            clock.tick(5)
        used = [one.decision.endpoint.id for one in world.sent]
        assert len(set(used)) == 1, (seed, used)


@pytest.mark.parametrize("pause_s", [0.0, 1.0, 60.0, 700.0, 4000.0, 90_000.0])
@pytest.mark.parametrize("reports", [False, True])
def test_a_lone_conversation_survives_pauses_and_silence(pause_s: float, *, reports: bool) -> None:
    """With and without reports of cached tokens, first tokens at once or after a while."""
    for seed, ttft_s in itertools.product(range(6), (0.0, 0.3)):
        clock = FakeClock()
        router = make_router(8, clock=clock, seed=seed)
        used = []
        for body in conversation(("silent", seed), 10, first=8):
            lease = router.acquire(body)
            used.append(lease.endpoint.id)
            clock.tick(ttft_s)
            if reports:
                lease.first_token(round(lease.decision.expected_cached_tokens))
            clock.tick(1.0)
            lease.release()
            clock.tick(pause_s)
        assert len(set(used)) == 1, (seed, ttft_s, used)


def test_a_lone_conversation_with_a_long_paste_stays() -> None:
    for seed in range(10):
        router = make_router(8, seed=seed)
        said, used = [text((seed, 0), 20)], []
        for turn in range(12):
            with router.acquire(chat(*said)) as lease:
                used.append(lease.endpoint.id)
            said += [text((seed, turn, "a"), 500), text((seed, turn), 30_000 if turn == 6 else 80)]
        assert len(set(used)) == 1, (seed, used)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        ("text", (0, 1, 0)),
        ("ids", (0, 1, 0)),
        ("chat", (0, 0, 1)),
        ("chat", (0, 1, 2)),
    ],
)
def test_a_lone_prompt_that_goes_on_or_comes_again_stays(
    kind: str, turns: tuple[int, ...], seed: int
) -> None:
    router = make_router(4, seed=seed)
    long = f"Once upon a time in {seed} lands " * 40

    def body(more: int) -> object:
        text = long + " and so it goes on, as it has always gone" * more
        match kind:
            case "text":
                return {"prompt": text}
            case "ids":
                return {"prompt": [ord(letter) for letter in text]}
            case _:
                messages = [{"role": "user", "content": long}]
                messages += [{"role": "assistant", "content": "Well."}] * more
                return {"messages": messages}

    used = set()
    for more in turns:
        with router.acquire(body(more)) as lease:  # type: ignore[arg-type]
            used.add(lease.endpoint.id)
    assert len(used) == 1


# -- more endpoints than are weighed ---------------------------------------------------------------

MANY = 60


@pytest.mark.parametrize("placement", [Nested(load_slack=0.0), Fixed(load_factor=1.0)])
@pytest.mark.parametrize("hot", [False, True])
def test_among_many_somebody_with_room_is_found(placement: Placement, hot: bool) -> None:
    """However full those are that are weighed first."""
    router = make_router(MANY, placement=placement)
    if hot:
        warm(router, (chat(text(n, 300), system="shared by all") for n in range(200)))
    held = [
        router.acquire(chat("again and again", system="shared by all")) for _ in range(3 * MANY)
    ]
    most = max(router.in_flight(endpoint) for endpoint in router.endpoints)
    assert most <= math.ceil(1.25 * 3)
    for lease in held:
        lease.release()


@pytest.mark.parametrize("placement", [Nested(), Fixed()])
def test_among_many_those_that_are_well_are_found(placement: Placement) -> None:
    router = make_router(MANY, placement=placement)
    prompt = chat(text(1, 300))
    for _ in range(MANY - 1):
        with router.acquire(prompt) as lease:
            gone = lease.endpoint
        router.start_drain(gone)
    well = [name for name, state in states(router).items() if not state.health.draining]
    assert [router.route(prompt).endpoint.id] == well


def test_among_many_who_holds_more_than_the_others_is_weighed() -> None:
    router = make_router(MANY, placement=Nested())
    warm(router, (chat(text(n, 300), system="shared by all") for n in range(200)))
    turn = chat(text(999, 9000), system="shared by all")
    order = [e.id for e in router.route(turn).candidates]
    assert len(order) == 32
    far = next(e for e in router.endpoints if e.id not in order)
    others = [e.id for e in router.endpoints if e is not far]
    router.acquire(turn, exclude=others).release()
    assert router.route(turn).candidates[-1].id == far.id
    assert router.route(turn).endpoint.id == far.id
