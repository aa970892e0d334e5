"""What a router tells others of itself and takes from them, without anything in between."""

from __future__ import annotations

from random import Random

import pytest

from prefixroute import (
    Endpoint,
    EngineLoad,
    HealthPolicy,
    HealthState,
    LeastLoaded,
    Nested,
    Router,
    UnknownEndpointError,
)
from prefixroute.core.hashing import digest64, utf8
from prefixroute.core.others import OthersLoad
from prefixroute.core.roster import PLACEMENT_VERSION
from prefixroute.core.router import RouterCore
from prefixroute.core.sharing import traffic_key
from prefixroute.core.traffic import Hot, Traffic
from tests.core.support import FakeClock, chat, homes, make_router, serve, states, text, urls

A, B, C, D = urls(4)


def assistants(first: int, count: int, *, of: int = 2) -> list[dict[str, object]]:
    """Questions to a few assistants, whose system prompts are hot."""
    return [
        chat(text(("question", number), 400), system=text(("assistant", number % of), 6000))
        for number in range(first, first + count)
    ]


def told(*routers: RouterCore) -> Hot:
    """What these routers tell a further one, added up."""
    found = [router.hot(1000) for router in routers]
    return Hot(
        totals={group: n for one in found for group, n in one.totals.items()},
        prefixes=[prefix for one in found for prefix in one.prefixes],
    )


# -- load ----------------------------------------------------------------------------------------


def test_own_load_is_what_is_not_computed_yet() -> None:
    clock = FakeClock()
    router = make_router(clock=clock)
    assert {(load.requests, load.tokens) for load in router.own_loads().values()} == {(0, 0.0)}
    lease = router.acquire(chat(text("a", 40_000), stream=True))
    load = router.own_loads()[lease.endpoint.id]
    uncached = lease.decision.tokens - lease.decision.expected_cached_tokens
    assert load.requests == 1
    assert load.tokens == pytest.approx(uncached, rel=0.01)
    clock.tick(load.tokens / 8000 / 2)
    assert router.own_loads()[lease.endpoint.id].tokens == pytest.approx(load.tokens / 2, rel=0.01)
    lease.release()
    assert router.own_loads()[lease.endpoint.id].requests == 0


def test_what_others_have_counts_while_it_is_fresh_and_drains_meanwhile() -> None:
    clock = FakeClock()
    router = make_router(clock=clock)
    body = chat("Hi")
    home = router.route(body).endpoint.id
    router.report_others({home: OthersLoad(requests=2, tokens=16_000.0)}, for_s=10.0)
    loads = dict(zip(router.route(body).candidates, router.route(body).loads, strict=True))
    assert next(load for e, load in loads.items() if e.id == home) == pytest.approx(2.0)
    assert router.route(body).endpoint.id != home
    clock.tick(1.5)
    assert max(router.route(body).loads) == pytest.approx(0.5)
    clock.tick(9.0)  # too old to be believed
    assert max(router.route(body).loads) == 0.0


def test_who_is_not_here_is_ignored() -> None:
    router = make_router([A, B])
    router.report_others({C: OthersLoad(requests=9), f"{A}/": OthersLoad(requests=1)}, for_s=1.0)
    assert [state.others is not None for state in router._members.states] == [True, False]


def test_a_request_without_a_key_goes_where_others_have_least() -> None:
    router = make_router(3, placement=LeastLoaded())
    a, b, c = (endpoint.id for endpoint in router.endpoints)
    router.report_others({a: OthersLoad(requests=5), b: OthersLoad(requests=2)}, for_s=1.0)
    assert {router.route("x").endpoint.id for _ in range(5)} == {c}
    router.report_load({c: EngineLoad(running=3)})
    assert router.route("x").endpoint.id == b


def test_engines_and_routers_tell_of_the_same_requests_which_count_once() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    [state] = router._members.states
    queues = router._ledger.queues
    each_s = queues.mean_uncached / queues.rate
    others = OthersLoad(requests=4, tokens=3 * queues.mean_uncached)
    for _ in range(100):
        clock.tick(1.0)
        router.report_others({state.endpoint.id: others}, for_s=2.0)
        router.report_load({state.endpoint.id: EngineLoad(running=1, waiting=3)})
    assert queues.foreign_s(state, clock()) == pytest.approx(3 * each_s)
    assert queues.foreign_requests(state, clock()) == 4


def test_what_engines_report_beyond_the_routers_requests_is_others() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    [state] = router._members.states
    queues = router._ledger.queues
    each_s = queues.mean_uncached / queues.rate
    lease = router.acquire("own")
    for count in range(200):
        clock.tick(1.0)
        swing = 2 * (-1) ** count  # counted at another time
        others = OthersLoad(requests=3 + swing, tokens=(2 + swing) * queues.mean_uncached)
        router.report_others({state.endpoint.id: others}, for_s=2.0)
        router.report_load({state.endpoint.id: EngineLoad(running=3, waiting=6)})
    said_s = others.tokens / queues.rate
    outside_s = queues.foreign_s(state, clock()) - said_s
    assert outside_s == pytest.approx(4 * each_s, rel=0.1)
    assert queues.foreign_requests(state, clock()) - others.requests == 5
    clock.tick(2.5)  # the routers are not heard of any more
    assert queues.foreign_s(state, clock()) == pytest.approx(6 * each_s - 2.5)
    assert queues.foreign_requests(state, clock()) == 8
    clock.tick(9.0)
    assert not queues.told(state, clock())
    lease.release()


def test_what_is_crowded_for_long_is_learned_from_others_too() -> None:
    clock = FakeClock()
    router = make_router(clock=clock)
    for _ in range(600):
        clock.tick(1.0)
        loads = {url: OthersLoad(requests=9 if url == A else 1) for url in urls(4)}
        router.report_others(loads, for_s=3.0)
    crowds = {url: state.crowd / state.crowd_weight for url, state in states(router).items()}
    assert crowds[A] == pytest.approx(9.0)
    assert crowds[B] == pytest.approx(1.0)


# -- ejections -----------------------------------------------------------------------------------


def test_hearsay_ejects_no_more_than_failures_may() -> None:
    router = make_router(4, health=HealthPolicy(max_ejected_share=0.5))
    assert [router.suspect(url) for url in urls(4)] == [True, True, False, False]
    assert not any(load.ejected for load in router.own_loads().values())
    with pytest.raises(UnknownEndpointError):
        router.suspect("http://nowhere:1/v1")


def test_own_failures_after_hearsay_are_own() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    [endpoint] = router.endpoints
    assert router.suspect(endpoint)
    clock.tick(60.0)
    lease = router.acquire("probe")
    lease.failed(RuntimeError())
    lease.release()
    assert router.stats().endpoints[0].state is HealthState.EJECTED
    assert router.own_loads()[endpoint.id].ejected


def test_an_ejection_by_hand_is_own_and_readmitting_ends_both() -> None:
    router = make_router(2)
    router.suspect(A)
    router.eject(A)
    assert router.own_loads()[A].ejected
    router.readmit(A)
    router.suspect(A)
    router.readmit(A)
    assert not router.own_loads()[A].ejected
    assert router.stats().endpoints[0].state is HealthState.HEALTHY


# -- traffic -------------------------------------------------------------------------------------


def test_with_others_counts_a_new_router_finds_the_same_homes() -> None:
    old, new, alone = (make_router(8) for _ in range(3))
    for body in assistants(0, 200):
        serve(old, body)
    new.report_traffic(told(old))
    news = assistants(1000, 50)
    assert homes(new, news) == homes(old, news)
    assert homes(alone, news) != homes(old, news)


def test_many_who_have_seen_little_know_together_what_one_does_who_saw_all() -> None:
    one = make_router(8)
    some = [make_router(8) for _ in range(16)]
    random = Random(0)
    for body in assistants(0, 320, of=7):
        serve(one, body)
        serve(random.choice(some), body)
    each = [router.hot(1000) for router in some]
    group = next(iter(each[0].totals))
    counts: dict[int, float] = {}
    for hot in each[1:]:
        for prefix, count, _ in hot.prefixes:
            counts[prefix] = counts.get(prefix, 0.0) + count
    news = assistants(1000, 50, of=7)
    before = sum(a == b for a, b in zip(homes(some[0], news), homes(one, news), strict=True))
    some[0].report_traffic(
        Hot(
            totals={group: sum(hot.totals[group] for hot in each[1:])},
            prefixes=[(prefix, count, 1) for prefix, count in counts.items()],
        )
    )
    after = sum(a == b for a, b in zip(homes(some[0], news), homes(one, news), strict=True))
    assert before < 0.9 * len(news)
    assert after > 0.95 * len(news)


def test_only_own_counts_are_told_on() -> None:
    """Else two routers would make each other believe in ever more traffic."""
    one, other = make_router(8), make_router(8)
    for body in assistants(0, 50):
        serve(one, body)
        serve(other, body)
    before = other.hot(100)
    other.report_traffic(told(one))
    assert other.hot(100).totals == before.totals
    assert {(p, n) for p, n, _ in other.hot(100).prefixes} == {
        (p, n) for p, n, _ in before.prefixes
    }


def test_what_was_heard_is_replaced_and_decays() -> None:
    traffic = Traffic(half_life_s=100.0, max_prefixes=100)
    traffic.advance(0.0)
    traffic.record([1, 2], "g")
    traffic.set_others(Hot(totals={"g": 9.0}, prefixes=[(1, 5.0, 3), (7, 4.0, 1)]))
    assert (traffic.count(1), traffic.count(2), traffic.count(7)) == (6.0, 1.0, 4.0)
    assert traffic.total("g") == 10.0
    assert (traffic.spread(1), traffic.spread(7)) == (3, 1)
    traffic.advance(100.0)
    assert traffic.count(1) == pytest.approx(3.0)
    assert traffic.total("g") == pytest.approx(5.0)
    traffic.set_spread(1, 1)
    assert traffic.spread(1) == 1
    traffic.set_others(Hot(totals={"g": 2.0}, prefixes=[(7, 1.0, 1)]))
    assert traffic.count(1) == pytest.approx(0.5)
    assert traffic.count(7) == 1.0
    traffic.advance(100.0 + 100.0 * 600)  # so long that all weights start anew
    assert traffic.total("g") == pytest.approx(0.0)
    traffic.set_others(Hot())
    assert traffic.count(7) == 0.0


def test_what_is_told_is_bounded_and_begins_with_the_hottest() -> None:
    router = make_router(8)
    for body in assistants(0, 300, of=20):
        serve(router, body)
    hot = router.hot(10)
    assert len(hot.prefixes) == 10
    counts = [count for _, count, _ in hot.prefixes]
    assert counts == sorted(counts, reverse=True)
    assert all(type(prefix) is int for prefix, _, _ in hot.prefixes)
    assert hot.tokens.keys() >= {prefix for prefix, _, spread in hot.prefixes if spread > 1}
    assert hot.tokens.keys() <= {prefix for prefix, *_ in hot.prefixes}
    assert all(100 < tokens < 2000 for tokens in hot.tokens.values())
    traffic = Traffic(half_life_s=100.0, max_prefixes=100_000)
    traffic.advance(0.0)
    for _ in range(2):
        for prefix in range(20_000):
            traffic.record([prefix], "g")
    assert 0 < len(traffic.hot().prefixes) <= 4096


def test_traffic_of_groups_that_are_not_here_is_ignored() -> None:
    old = make_router([Endpoint(url, models=["other"]) for url in urls(2)])
    for body in assistants(0, 20):
        serve(old, body)
    new = make_router(2)
    new.report_traffic(Hot(totals={1: 5.0}, prefixes=[]))
    assert new.explain(chat("Hi")) is not None
    assert new._ledger.policy._traffic._others_totals == {}  # type: ignore[attr-defined]


def test_a_placement_that_counts_nothing_tells_nothing() -> None:
    router = make_router(2, placement=LeastLoaded())
    serve(router, chat("Hi"))
    assert (dict(router.hot(10).totals), list(router.hot(10).prefixes)) == ({}, [])
    router.report_traffic(Hot(totals={1: 1.0}, prefixes=[(1, 1.0, 1)]))


# -- settings ------------------------------------------------------------------------------------


def test_settings_say_what_the_fingerprint_is_made_of() -> None:
    one, same, other = make_router(2), make_router(2), make_router(2, seed=5)
    assert one.settings == same.settings
    differing = {name for name in one.settings if one.settings[name] != other.settings[name]}
    assert differing == {"seed"}
    assert one.fingerprint != other.fingerprint


def test_the_tokenizer_is_among_them() -> None:
    class Letters:
        name = "letters"

        def encode(self, text: str) -> list[int]:
            return [ord(letter) for letter in text]

    router = Router(urls(2), tokenizer=Letters())
    assert "letters" in router.settings["tokenizer"]
    assert "tokenizer" not in make_router(2).settings


def test_routers_that_hold_out_tell_and_hear_what_is_hot() -> None:
    old, new = (Router(urls(4), holdout=0.2, seed=0, clock=FakeClock()) for _ in range(2))
    for body in assistants(0, 40):
        serve(old, body)
    hot = old.hot(10)
    assert hot.prefixes
    new.report_traffic(hot)
    told = new._ledger.policy._routed._traffic._others  # type: ignore[attr-defined]
    assert set(told) == {prefix for prefix, *_ in hot.prefixes}


def test_the_traffic_key_tells_who_counts_alike() -> None:
    assert make_router(2).traffic_key == make_router(5, seed=3).traffic_key
    assert make_router(2).traffic_key != make_router(2, placement=Nested(target=0.2)).traffic_key


def test_the_traffic_key_can_be_told_from_the_settings() -> None:
    """As who watches a fleet does; and it stays what it was."""
    router = make_router(2, placement=Nested(target=0.2))
    before = repr((PLACEMENT_VERSION, Nested(target=0.2), None))
    assert traffic_key(router.settings) == router.traffic_key == f"{digest64(utf8(before)):016x}"


def test_settings_hold_no_secret() -> None:
    router = make_router([Endpoint("http://u:hunter2@a/v1?key=hunter2", api_key="hunter2")])
    assert "hunter2" not in repr(router.settings)
