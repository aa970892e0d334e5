from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from prefixroute.core.decision import Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed, LeastLoaded, Random_, RoundRobin
from prefixroute.core.lease import Lease
from prefixroute.core.load import EngineLoad
from prefixroute.errors import ConfigurationError

from .support import blocks, chat, conversation, make_router, text, urls

# -- the published guarantee ---------------------------------------------------


@pytest.mark.parametrize("factor", ["1", "1.05", "1.25", "1.5", "2", "4"])
def test_nobody_is_above_the_bound_at_admission(factor: str) -> None:
    """``ceil(c (m + 1) w / W)`` with m requests in flight, over a grid of weights, one hot key."""
    for weights in itertools.product((0.5, 1, 2, 3), repeat=3):
        total = sum(Fraction(str(weight)) for weight in weights)
        router = make_router(
            [Endpoint(url, weight=w) for url, w in zip(urls(3), weights, strict=True)],
            placement=Fixed(load_factor=float(factor), virtual_nodes=16),
        )
        held = []
        for in_flight in range(24):
            lease = router.acquire(blocks(7))
            held.append(lease)
            share = Fraction(str(lease.endpoint.weight)) / total
            bound = math.ceil(Fraction(factor) * (in_flight + 1) * share)
            assert router.in_flight(lease.endpoint) <= bound
            assert lease.decision.bound == bound
            assert lease.decision.reason in (Reason.HOME, Reason.BOUND)  # never an overflow
        for lease in held:
            lease.release()


@pytest.mark.parametrize("count", [1, 2, 5, 8, 32])
def test_requests_that_come_and_go_stay_below_the_bound(count: int) -> None:
    rng = random.Random(count)
    weights = [rng.choice((0.5, 1.0, 2.0)) for _ in range(count)]
    total = sum(weights)
    router = make_router(
        [Endpoint(url, weight=w) for url, w in zip(urls(count), weights, strict=True)],
        placement=Fixed(virtual_nodes=64),
    )
    held: list[Lease] = []
    for _ in range(1500):
        if held and rng.random() < 0.45:
            held.pop(rng.randrange(len(held))).release()
            continue
        lease = router.acquire(blocks(rng.choice((1, 1, 1, 2, rng.randrange(1000)))))
        held.append(lease)
        bound = math.ceil(1.25 * len(held) * lease.endpoint.weight / total - 1e-9)
        assert router.in_flight(lease.endpoint) <= bound
    for lease in held:
        lease.release()


def test_a_hot_key_fills_its_ring_order_up_to_the_bound() -> None:
    router = make_router(8, placement=Fixed())
    order = [e.id for e in router.route(blocks(1)).candidates]
    held = [router.acquire(blocks(1)) for _ in range(80)]
    counts = Counter(lease.endpoint.id for lease in held)
    filled = [counts[id_] for id_ in order]
    assert filled == sorted(filled, reverse=True)
    assert filled[:4] == [13] * 4  # ceil(1.25 * 80 / 8)
    assert sum(filled) == 80
    for lease in held:
        lease.release()


def test_with_room_at_home_a_key_stays_home() -> None:
    router = make_router(8, placement=Fixed())
    for number in range(100):
        decision = router.route(blocks(number))
        assert decision.endpoint == decision.home == decision.candidates[0]
        assert decision.reason is Reason.HOME
        assert (decision.bound, decision.spread, decision.loads) == (1, 1, ())


def test_slack_keeps_a_key_home_while_little_is_in_flight() -> None:
    router = make_router(8, placement=Fixed(load_slack=8))
    held = [router.acquire(blocks(1)) for _ in range(8)]
    assert {lease.endpoint.id for lease in held} == {held[0].endpoint.id}
    for lease in held:
        lease.release()


def test_who_is_full_or_ejected_is_not_counted_on() -> None:
    """The bound is over those who can be sent to: their sum always leaves room for one more."""
    router = make_router(
        [Endpoint(url, max_in_flight=3 if at < 2 else None) for at, url in enumerate(urls(4))],
        placement=Fixed(load_factor=1.0),
    )
    router.eject(urls(4)[3])
    held = []
    for _ in range(40):
        lease = router.acquire(blocks(1))
        held.append(lease)
        assert router.in_flight(lease.endpoint) <= (lease.decision.bound or 0)
        assert lease.decision.reason is not Reason.OVERFLOW
    counts = {e.url: e.in_flight for e in router.stats().endpoints}
    assert counts[urls(4)[3]] == 0
    assert counts[urls(1)[0]] <= 3
    assert sum(counts.values()) == 40
    for lease in held:
        lease.release()


def test_after_admission_a_bound_may_be_exceeded_only_because_others_left() -> None:
    router = make_router(4, placement=Fixed())
    held = [router.acquire(blocks(1)) for _ in range(20)]
    home = held[0].endpoint
    for lease in held:
        if lease.endpoint != home:
            lease.release()
    assert router.stats().in_flight == router.in_flight(home) == 7
    with router.acquire(blocks(1)) as lease:
        assert lease.endpoint != home
        assert router.in_flight(lease.endpoint) == 1
    for lease in held:
        lease.release()


# -- keys ----------------------------------------------------------------------


def test_case_06_the_turns_of_a_chat_keep_their_key() -> None:
    for first in (1, 5, 400, 5000):
        for system in (None, "You are helpful.", text("system", 8000)):
            router = make_router(8, placement=Fixed())
            bodies = conversation(("chat", first), 5, first=first, system=system)
            assert len({router.route(body).key for body in bodies}) == 1


def test_case_06_one_prefix_with_50_suffixes_goes_to_one_endpoint() -> None:
    prefix = text("prefix", 4096)
    for seed in range(5):
        router = make_router(8, placement=Fixed(), seed=seed)
        used = set()
        for number in range(50):
            with router.acquire(prefix + text(number, 500)) as lease:
                used.add(lease.endpoint.id)
            assert router.route(chat(prefix + text(number, 500))).key is not None
        assert len(used) == 1


def test_a_window_longer_than_the_common_part_tells_prompts_apart() -> None:
    bodies = [text("prefix", 2000) + text(number, 500) for number in range(20)]
    short = make_router(8, placement=Fixed(prefix_bytes=1000))
    long = make_router(8, placement=Fixed(prefix_bytes=2500))
    assert len({short.route(body).key for body in bodies}) == 1
    assert len({long.route(body).key for body in bodies}) == 20


@pytest.mark.parametrize("window", [512, 1024, 4096])
def test_a_trace_is_keyed_by_the_blocks_of_the_window(window: int) -> None:
    router = make_router(8, placement=Fixed(prefix_bytes=window))
    depth = max(0, math.ceil(window / 4 / 256) - 1)
    prompt = blocks(*range(20), block_tokens=256)
    assert router.route(prompt).depth == depth
    assert router.route(prompt).key == f"{prompt.chain[depth]:016x}"
    short = blocks(1, block_tokens=256)
    assert router.route(short).depth == 0


def test_a_session_is_kept_together_and_sessions_are_spread() -> None:
    router = make_router(8, placement=Fixed())
    system = text("system", 3000)
    where = {}
    for session in range(40):
        places = {
            router.route(body, session=f"s{session}").endpoint.id
            for body in conversation(session, 4, system=system)
        }
        assert len(places) == 1
        where[session] = places.pop()
    assert len(set(where.values())) > 4


# -- configuration -------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("load_factor", v) for v in (0.99, 0, -1, math.nan, math.inf, "1.25", None, True)),
        *(("load_slack", v) for v in (-1, math.nan, math.inf, "8", None, False)),
        *(("virtual_nodes", v) for v in (0, -1, 1.5, "128", None, True)),
        *(("prefix_bytes", v) for v in (0, -1, 1.5, "128", None, True)),
    ],
)
def test_case_52_a_setting_that_cannot_work_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"Fixed\({field}=.*\) must be .*"):
        Fixed(**{field: value})  # type: ignore[arg-type]


def test_a_load_factor_below_1_is_explained() -> None:
    with pytest.raises(
        ConfigurationError, match=r"load_factor=0\.5.* 1 or greater.*1\.25 is usual"
    ):
        Fixed(load_factor=0.5)


def test_equal_settings_are_equal_and_print_alike() -> None:
    assert repr(Fixed(load_factor=2, load_slack=0)) == repr(Fixed(load_factor=2.0, load_slack=0.0))


# -- the baselines -------------------------------------------------------------


def test_round_robin_takes_everybody_in_turn() -> None:
    router = make_router(5, placement=RoundRobin())
    used = []
    for number in range(20):
        with router.acquire(blocks(number)) as lease:
            used.append(lease.endpoint.id)
            assert lease.decision.reason is Reason.BASELINE
    assert used == used[:5] * 4
    assert len(set(used[:5])) == 5


def test_round_robin_passes_over_who_is_out_and_goes_on() -> None:
    router = make_router(4, placement=RoundRobin())
    router.eject(urls(4)[1])
    used = [router.acquire(blocks(number)) for number in range(9)]
    counts = Counter(lease.endpoint.id for lease in used)
    assert counts == {urls(4)[0]: 3, urls(4)[2]: 3, urls(4)[3]: 3}
    for lease in used:
        lease.release()


def test_least_loaded_evens_out_by_weight() -> None:
    endpoints = [Endpoint(url, weight=w) for url, w in zip(urls(3), (1, 2, 3), strict=True)]
    router = make_router(endpoints, placement=LeastLoaded())
    held = [router.acquire(blocks(1)) for _ in range(60)]
    counts = [e.in_flight for e in router.stats().endpoints]
    assert counts == [10, 20, 30]
    for lease in held:
        lease.release()


def test_least_loaded_looks_at_fresh_reports() -> None:
    router = make_router(2, placement=LeastLoaded())
    router.report_load({urls(1)[0]: EngineLoad(running=5)})
    for number in range(5):
        assert router.route(blocks(number)).endpoint.id == urls(2)[1]


def test_random_draws_by_weight() -> None:
    endpoints = [Endpoint(url, weight=w) for url, w in zip(urls(3), (1, 2, 3), strict=True)]
    router = make_router(endpoints, placement=Random_(), seed=3)
    counts: Counter[str] = Counter()
    for number in range(3000):
        with router.acquire(blocks(number)) as lease:
            counts[lease.endpoint.id] += 1
    for url, share in zip(urls(3), (1 / 6, 2 / 6, 3 / 6), strict=True):
        assert counts[url] / 3000 == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("placement", [RoundRobin, LeastLoaded, Random_])
def test_baselines_are_values(placement: type[RoundRobin]) -> None:
    assert placement() == placement()
    assert hash(placement()) == hash(placement())
    assert placement.__name__ in repr(placement())
