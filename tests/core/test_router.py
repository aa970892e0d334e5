from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from prefixroute.core.decision import Decision, Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import (
    EndpointCooling,
    EndpointEjected,
    EndpointReadmitted,
    Event,
    FirstToken,
    MembershipChanged,
    RequestDone,
    RequestSent,
)
from prefixroute.core.fixed import Fixed, Random_, RoundRobin
from prefixroute.core.health import HealthPolicy, HealthState
from prefixroute.core.load import EngineLoad
from prefixroute.core.nested import Nested
from prefixroute.core.prompt import KeySource
from prefixroute.core.router import RouterCore
from prefixroute.errors import ConfigurationError, Saturated

from .support import (
    EVERY_PLACEMENT,
    FakeClock,
    answer,
    blocks,
    chat,
    make_router,
    states,
    text,
    urls,
)

every_placement = pytest.mark.parametrize("name", list(EVERY_PLACEMENT))
NO_KEY: list[Any] = [None, {}, b"", b"[]", b"not json", {"messages": []}, {"model": "m"}, "", []]


def router_of(name: str, endpoints: Any = 4, **kwargs: Any) -> RouterCore:
    return make_router(endpoints, placement=EVERY_PLACEMENT[name](), **kwargs)


def snapshot(  # noqa: PLR0911 - a kind of object each
    value: object, seen: dict[int, object] | None = None
) -> object:
    """All that an object's graph of the project's own objects holds, for comparison."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return "seen"
    if isinstance(value, str | bytes | int | float | bool | None | frozenset):
        return value
    seen[id(value)] = value
    if isinstance(value, dict):
        return [(repr(k), snapshot(v, seen)) for k, v in value.items()]
    if isinstance(value, list | tuple | set):
        return [snapshot(item, seen) for item in value]
    if type(value).__name__ == "Random":
        return value.getstate()  # type: ignore[attr-defined]
    if not type(value).__module__.startswith("prefixroute"):
        return [snapshot(item, seen) for item in value] if hasattr(value, "__iter__") else "other"
    names = {n for cls in type(value).__mro__ for n in getattr(cls, "__slots__", ())}
    names |= set(getattr(value, "__dict__", {}))
    skipped = {"__weakref__", "_groups", "_orders", "_normal", "_holder"}  # caches
    return {
        n: snapshot(getattr(value, n), seen) for n in sorted(names - skipped) if hasattr(value, n)
    }


# -- route ---------------------------------------------------------------------


@every_placement
@pytest.mark.parametrize("warm", [0, 30])
def test_route_and_explain_change_nothing(name: str, warm: int) -> None:
    clock = FakeClock()
    router = router_of(name, [*urls(3), Endpoint("http://d", max_in_flight=2)], clock=clock)
    held = [
        router.acquire(chat(text(number % 5, 3000), text(number, 30))) for number in range(warm)
    ]
    for lease in held[::2]:
        clock.tick(0.3)
        lease.first_token(100)
    router.route(blocks(9))  # from here on the router knows what time it is
    before = deepcopy(snapshot(router))
    for number in range(20):
        for body in (chat(text(number % 5, 3000)), text(number, 500), {}, blocks(1, number)):
            router.route(body)
            router.explain(body)
    assert snapshot(router) == before
    for lease in held:
        lease.release()


def test_a_snapshot_sees_what_acquire_changes() -> None:
    for name in EVERY_PLACEMENT:
        router = router_of(name)
        before = deepcopy(snapshot(router))
        with router.acquire(blocks(1)):
            assert snapshot(router) != before


@every_placement
def test_acquire_goes_where_route_says(name: str) -> None:
    router = router_of(name)
    held = []
    for number in range(60):
        chats = chat(text(number % 7, 3000), text(number, 9))
        body: Any = (chats, text(number % 3, 400), {})[number % 3]
        expected = router.route(body)
        assert router.explain(body).decision == expected
        lease = router.acquire(body)
        assert lease.decision == expected
        if number % 2:
            lease.release()
        else:
            held.append(lease)
    for lease in held:
        lease.release()


@every_placement
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    runs = []
    for _ in range(2):
        router, used = router_of(name, seed=5), []
        for number in range(50):
            with router.acquire(blocks(number % 9) if number % 2 else {}) as lease:
                used.append(lease.endpoint.id)
        runs.append(used)
    assert runs[0] == runs[1]


def test_without_a_seed_ties_start_anywhere() -> None:
    first = {make_router(8, seed=None).route({}).endpoint.id for _ in range(60)}
    assert len(first) > 3
    keyed = {make_router(8, seed=None).route(blocks(1)).endpoint.id for _ in range(20)}
    assert len(keyed) == 1  # keyed ties never rotate


# -- requests without a key ----------------------------------------------------


@every_placement
@pytest.mark.parametrize("body", NO_KEY, ids=repr)
def test_case_02_what_has_no_key_is_spread_and_never_raises(name: str, body: Any) -> None:
    router = router_of(name)
    used: Counter[str] = Counter()
    for _ in range(40):
        decision = router.route(body)
        assert (decision.key, decision.depth, decision.home) == (None, -1, None)
        assert decision.key_source is KeySource.NONE
        with router.acquire(body) as lease:
            used[lease.endpoint.id] += 1
    assert len(used) == 4
    if name != "Random":
        assert set(used.values()) == {10}


@every_placement
def test_case_30_all_idle_without_a_key_300_calls_are_spread(name: str) -> None:
    router = router_of(name, 5, seed=None)
    used = Counter(router.acquire({}).endpoint.id for _ in range(300))  # each dropped at once
    assert len(used) == 5
    assert min(used.values()) >= (35 if name == "Random" else 60)


def test_case_30_held_calls_without_a_key_are_spread_by_weight() -> None:
    endpoints = [Endpoint(url, weight=w) for url, w in zip(urls(3), (1, 2, 3), strict=True)]
    router = make_router(endpoints)
    held = [router.acquire({}) for _ in range(300)]
    assert [e.in_flight for e in router.stats().endpoints] == [50, 100, 150]
    for lease in held:
        lease.release()


def test_requests_with_a_key_in_between_do_not_disturb_the_turns() -> None:
    router = make_router(2)
    used: Counter[str] = Counter()
    for number in range(20):
        with router.acquire({}) as lease:
            used[lease.endpoint.id] += 1
        router.acquire(blocks(number)).release()
    assert set(used.values()) == {10}


@every_placement
def test_the_order_of_the_list_is_irrelevant_also_without_a_key(name: str) -> None:
    runs = []
    for endpoints in (urls(5), urls(5)[::-1]):
        router = router_of(name, endpoints, seed=9)
        runs.append([router.acquire({}).endpoint.id for _ in range(12)])
    assert runs[0] == runs[1]


def test_without_a_key_the_least_loaded_is_chosen_also_by_what_engines_report() -> None:
    router = make_router(3)
    router.report_load({urls(1)[0]: EngineLoad(running=9), urls(2)[1]: EngineLoad(waiting=4)})
    for _ in range(4):
        with router.acquire({}) as lease:
            assert lease.endpoint.id == urls(3)[2]


# -- one endpoint --------------------------------------------------------------


@every_placement
def test_a_single_endpoint_gets_everything_and_is_counted(name: str) -> None:
    router = router_of(name, 1)
    held = [
        router.acquire(body) for body in (chat("a"), "text", {}, blocks(1), [1, 2, 3]) for _ in "12"
    ]
    stats = router.stats()
    assert (stats.in_flight, stats.requests) == (10, 10)
    for lease in held:
        answer(lease)
    assert router.stats().in_flight == 0
    router.eject(urls(1)[0])
    assert router.route(blocks(1)).reason is Reason.PANIC
    with router.acquire(blocks(1)) as lease:
        assert lease.endpoint.id == urls(1)[0]


# -- max_in_flight -------------------------------------------------------------


@every_placement
def test_all_full_is_saturated(name: str) -> None:
    router = router_of(name, [Endpoint(url, max_in_flight=2) for url in urls(3)])
    held = [router.acquire(blocks(1)) for _ in range(6)]
    bodies: list[Any] = [blocks(1), {}]
    calls: list[Callable[[Any], object]] = [router.acquire, router.route, router.explain]
    for call in calls:
        for body in bodies:
            with pytest.raises(Saturated, match=r"max_in_flight.*add an endpoint") as raised:
                call(body)
            assert raised.value.retry_after_s > 0
    assert router.stats().requests == 6
    held.pop().release()
    held.append(router.acquire(blocks(1)))
    for lease in held:
        lease.release()


@every_placement
def test_nobody_exceeds_its_max_in_flight(name: str) -> None:
    limits = dict(zip(urls(4), (1, 2, 3, None), strict=True))
    router = router_of(name, [Endpoint(u, max_in_flight=limit) for u, limit in limits.items()])
    held = [router.acquire(blocks(number % 3)) for number in range(50)]
    for endpoint in router.stats().endpoints:
        limit = limits[endpoint.url]
        assert limit is None or endpoint.in_flight <= limit
    for lease in held:
        lease.release()


def test_full_but_well_is_waited_for_rather_than_an_ejected_one_tried() -> None:
    router = make_router([Endpoint("http://a", max_in_flight=1), "http://b"])
    router.eject("http://b")
    with router.acquire(blocks(1)) as lease:
        assert lease.endpoint.url == "http://a/v1"
        with pytest.raises(Saturated):
            router.acquire(blocks(1))


def test_full_by_the_bound_alone_never_saturates() -> None:
    router = make_router(2, placement=Nested(load_factor=1.0, load_slack=0))
    held = [router.acquire(blocks(number)) for number in range(100)]
    assert router.stats().in_flight == 100
    for lease in held:
        lease.release()


# -- panic ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Nested", "Fixed"])
def test_case_39_all_ejected_the_home_gets_it(name: str) -> None:
    router = router_of(name, 5)
    before = [router.route(blocks(number)).home for number in range(30)]
    for url in urls(5):
        router.eject(url)
    for number, home in enumerate(before):
        decision = router.route(blocks(number))
        assert decision.endpoint == decision.home == home
        assert decision.reason is Reason.PANIC
        assert "No endpoint is available" in decision.reason.sentence


@every_placement
def test_case_39_all_ejected_draining_or_cooling_still_routes(name: str) -> None:
    router = router_of(name, 3)
    router.eject(urls(3)[0])
    router.start_drain(urls(3)[1])
    while router.stats().endpoints[2].state is HealthState.HEALTHY:
        with router.acquire(blocks(1)) as lease:
            lease.failed(status=429, retry_after_s=30)
    bodies: list[Any] = [blocks(1), {}, None]
    for body in bodies:
        with router.acquire(body) as lease:
            assert lease.decision.reason is Reason.PANIC
            assert lease.endpoint.id != urls(3)[1]  # rather an ejected one than one that leaves
    for url in urls(3):
        router.start_drain(url)
    with router.acquire(blocks(1)):
        assert router.stats().in_flight == 1


def test_a_retry_that_finds_the_rest_ejected_panics_among_the_rest() -> None:
    router = make_router(3)
    router.eject(urls(3)[1])
    router.eject(urls(3)[2])
    with router.acquire(blocks(1), exclude=[urls(1)[0]]) as lease:
        assert lease.endpoint.id in urls(2, 1)
    with pytest.raises(Saturated, match="3 excluded"):
        router.acquire(blocks(1), exclude=urls(3))


# -- pins ----------------------------------------------------------------------


def responses(previous: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "and?", "previous_response_id": previous, **fields}


@every_placement
def test_case_04_a_response_is_continued_where_it_was_given(name: str) -> None:
    router = router_of(name, 8)
    for number in range(30):
        with router.acquire(responses(input=text(number, 50))) as lease:
            lease.answered(f"resp_{number}")
            given = lease.endpoint.id
        for unrelated in (
            responses(f"resp_{number}"),
            responses(f"resp_{number}", input=text(9, 99)),
        ):
            decision = router.route(unrelated)
            assert (decision.endpoint.id, decision.reason) == (given, Reason.PINNED)
            with router.acquire(unrelated) as lease:
                assert lease.endpoint.id == given


def test_a_pin_is_followed_into_a_higher_tier() -> None:
    router = make_router(["http://a", Endpoint("http://b", tier=1)])
    router.eject("http://a")
    with router.acquire(responses()) as lease:
        lease.answered("resp_1")
        assert lease.endpoint.url == "http://b/v1"
    router.readmit("http://a")
    assert router.route(responses("resp_1")).endpoint.url == "http://b/v1"
    assert router.route(responses("other")).endpoint.url == "http://a/v1"


@pytest.mark.parametrize("out", ["eject", "start_drain", "remove"])
def test_a_pin_to_who_is_out_falls_back_to_the_key(out: str) -> None:
    router = make_router(4)
    with router.acquire(responses()) as lease:
        lease.answered("resp_1")
    getattr(router, out)(lease.endpoint.id)
    decision = router.route(responses("resp_1"))
    assert decision.endpoint.id != lease.endpoint.id
    assert decision.key is not None


def test_a_pin_is_not_followed_where_it_was_tried_or_is_full() -> None:
    router = make_router([Endpoint(url, max_in_flight=1) for url in urls(3)])
    with router.acquire(responses()) as lease:
        lease.answered("resp_1")
        assert router.route(responses("resp_1")).endpoint != lease.endpoint
    with router.acquire(responses("resp_1"), exclude=[lease.endpoint.id]) as other:
        assert other.endpoint != lease.endpoint


# -- retries -------------------------------------------------------------------


@every_placement
def test_what_is_excluded_is_not_chosen(name: str) -> None:
    router = router_of(name, 4)
    for number in range(20):
        tried: list[str] = []
        for _ in range(4):
            with router.acquire(blocks(number), exclude=tried) as lease:
                assert lease.endpoint.id not in tried
                tried.append(lease.endpoint.id)


@pytest.mark.parametrize("spelling", ["http://GPU-0:8000", Endpoint("http://gpu-0:8000")])
def test_excluded_may_be_any_spelling_and_unknown_names(spelling: Any) -> None:
    router = make_router(2)
    for number in range(10):
        with router.acquire(blocks(number), exclude=[spelling, "http://nobody", "x"]) as lease:
            assert lease.endpoint.id == urls(2)[1]
        with router.acquire(blocks(number), exclude=spelling) as lease:
            assert lease.endpoint.id == urls(2)[1]


def test_a_retry_does_not_count_in_the_traffic_again() -> None:
    router = make_router(4)
    for number in range(10):
        with router.acquire(blocks(1, number)) as first:
            pass
        for _ in range(3):
            router.acquire(blocks(1, number), exclude=[first.endpoint.id]).release()
    assert router.explain(blocks(1, 0)).requests_seen == 10.0
    assert router.stats().requests == 40


# -- engines' reports ----------------------------------------------------------


def test_a_report_steers_away_and_goes_stale() -> None:
    clock = FakeClock()
    router = make_router(4, clock=clock)
    home = router.route(blocks(1)).endpoint.id
    router.report_load({id_: EngineLoad(waiting=500 * (id_ == home)) for id_ in urls(4)})
    decision = router.route(blocks(1))
    assert decision.endpoint.id != home
    assert decision.home is not None
    assert decision.home.id == home
    assert decision.reason is Reason.LOAD
    clock.tick(2.9)
    assert router.route(blocks(1)).endpoint.id != home
    clock.tick(0.2)
    assert router.route(blocks(1)).endpoint.id == home


def test_a_small_queue_does_not_move_a_key() -> None:
    router = make_router(4)
    home = router.route(blocks(1, 2, 3, 4, 5)).endpoint.id
    router.report_load({id_: EngineLoad(waiting=int(id_ == home)) for id_ in urls(4)})
    assert router.route(blocks(1, 2, 3, 4, 5)).endpoint.id == home


def test_reports_are_taken_by_id_or_url_and_of_strangers_ignored() -> None:
    router = make_router([Endpoint("http://a", id="x"), "http://b"])
    router.report_load(
        {"http://A:80/": EngineLoad(running=4), "http://gone": EngineLoad(running=1)}
    )
    assert states(router)["x"].foreign_requests == 4
    router.report_load({})


@pytest.mark.parametrize(
    "loads", [None, 5, "x", [("http://a", EngineLoad())], {"http://gpu-0:8000": 3}, {"x": None}]
)
def test_what_is_no_report_is_refused_and_nothing_of_it_taken(loads: Any) -> None:
    router = make_router(2)
    with pytest.raises(ConfigurationError, match=r"report_load\(.*EngineLoad"):
        router.report_load(loads)
    mixed = {urls(1)[0]: EngineLoad(running=3), urls(2)[1]: "no"}
    with pytest.raises(ConfigurationError):
        router.report_load(mixed)  # type: ignore[arg-type]
    assert states(router)[urls(1)[0]].foreign_requests == 0


def test_case_31_probes_and_reports_touch_no_counters() -> None:
    router = make_router(3)
    held = [router.acquire(blocks(number)) for number in range(9)]
    before = [(e.in_flight, e.requests, e.failures) for e in router.stats().endpoints]
    for _ in range(50):
        router.report_load({id_: EngineLoad(running=9, waiting=9, kv_usage=1.0) for id_ in urls(3)})
        router.stats()
    assert [(e.in_flight, e.requests, e.failures) for e in router.stats().endpoints] == before
    for lease in held:
        lease.release()


# -- the clock -----------------------------------------------------------------


def test_while_the_clock_steps_back_no_time_passes() -> None:
    clock = FakeClock()
    router = make_router(2, clock=clock, health=HealthPolicy(failures=1, jitter=0.0))
    with router.acquire({}) as lease:
        lease.failed(OSError())
    out = lease.endpoint.id
    clock.tick(-1e6)
    assert states(router)[out].health.state(router._now()) is HealthState.EJECTED
    clock.tick(9.9)
    assert router.stats().endpoints[urls(2).index(out)].state is HealthState.EJECTED
    assert {router.acquire({}, exclude=()).endpoint.id for _ in range(4)} == set(urls(2)) - {out}
    clock.tick(0.2)  # and then it goes on from there: 10.1 s since the ejection
    assert out in {router.acquire({}).endpoint.id for _ in range(4)}


def test_a_report_does_not_live_on_because_the_clock_stepped_back() -> None:
    clock = FakeClock()
    router = make_router(2, clock=clock)
    home = router.route(blocks(1)).endpoint.id
    router.report_load({id_: EngineLoad(waiting=500 * (id_ == home)) for id_ in urls(2)})
    clock.tick(-3600)
    assert router.route(blocks(1)).endpoint.id != home
    clock.tick(3.1)
    assert router.route(blocks(1)).endpoint.id == home


def test_durations_are_never_negative() -> None:
    clock, events = FakeClock(), Recorder()
    router = make_router(2, clock=clock, observers=[events])
    with router.acquire(chat("x", stream=True)) as lease:
        clock.tick(-50)
        lease.first_token()
        clock.tick(-50)
    [first] = events.of(FirstToken)
    [done] = events.of(RequestDone)
    assert (first.ttft_s, done.duration_s) == (0.0, 0.0)


# -- observers -----------------------------------------------------------------


class Recorder:
    """Notes every event."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.events: list[Event] = []
        self.then = then

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.then()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_observers_are_told_what_happens_in_order() -> None:
    recorder, clock = Recorder(), FakeClock()
    policy = HealthPolicy(failures=1, jitter=0.0)
    router = make_router(2, observers=[recorder], clock=clock, health=policy)
    lease = router.acquire(chat("hello", stream=True))
    clock.tick(0.5)
    lease.first_token(2)
    clock.tick(1.0)
    lease.release()
    lease.release()
    id_ = lease.endpoint.id
    assert recorder.events == [
        RequestSent(decision=lease.decision, retry=False),
        FirstToken(endpoint_id=id_, ttft_s=0.5),
        RequestDone(
            endpoint_id=id_,
            duration_s=1.5,
            failed=False,
            prompt_tokens=None,
            cached_tokens=2,
            expected_cached_tokens=lease.decision.expected_cached_tokens,
        ),
    ]
    recorder.events.clear()
    with router.acquire({}) as lease:
        lease.failed(status=503, retry_after_s=7.0)
    with router.acquire({}) as lease:
        lease.failed(status=500)
    kinds = [type(event) for event in recorder.events]
    assert kinds == [
        RequestSent,
        EndpointCooling,
        RequestDone,
        RequestSent,
        EndpointEjected,
        RequestDone,
    ]
    assert recorder.of(EndpointCooling)[0].for_s == 7.0
    assert recorder.of(EndpointEjected)[0].until == clock.now + 10.0
    assert [done.failed for done in recorder.of(RequestDone)] == [True, True]
    recorder.events.clear()
    router.readmit(lease.endpoint.id)
    router.add("http://c")
    router.remove("http://c")
    router.set_endpoints(router.endpoints)  # changes nothing
    router.eject(urls(1)[0])
    assert recorder.events == [
        EndpointReadmitted(endpoint_id=lease.endpoint.id),
        MembershipChanged(joined=("http://c/v1",), left=()),
        MembershipChanged(joined=(), left=("http://c/v1",)),
        EndpointEjected(endpoint_id=urls(1)[0], until=math.inf, for_s=math.inf),
    ]


def test_a_retry_is_told_as_one() -> None:
    recorder = Recorder()
    router = make_router(2, observers=[recorder])
    with router.acquire({}) as first, router.acquire({}, exclude=[first.endpoint.id]):
        pass
    assert [sent.retry for sent in recorder.of(RequestSent)] == [False, True]


def test_an_observer_that_raises_hurts_nobody_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    bad, good = Recorder(fail), Recorder()
    router = make_router(2, observers=[bad, good])
    with caplog.at_level(logging.ERROR, "prefixroute"):
        for _ in range(5):
            with router.acquire(blocks(1)) as lease:
                lease.first_token(1)
    assert len(good.events) == len(bad.events) == 15
    assert [record.getMessage() for record in caplog.records] == [
        "observer Recorder raised; said once"
    ]


def test_an_observer_may_use_the_router() -> None:
    router: RouterCore
    depth = 0

    def use() -> None:
        nonlocal depth
        if depth < 2:
            depth += 1
            router.stats()
            router.route(blocks(2))
            router.acquire(blocks(2)).release()
            router.set_endpoints(router.endpoints)
            depth -= 1

    router = make_router(2, observers=[Recorder(use)])
    with router.acquire(blocks(1)):
        router.eject(urls(1)[0])


def test_events_are_told_also_when_the_call_raises() -> None:
    recorder = Recorder()
    router = make_router([Endpoint("http://a", max_in_flight=1)], observers=[recorder])
    with router.acquire({}) as lease:
        router._ledger.events.append(EndpointReadmitted(endpoint_id="x"))  # noted, not told yet
        with pytest.raises(Saturated):
            router.acquire({})
    assert recorder.of(EndpointReadmitted)
    assert lease.endpoint.url == "http://a/v1"


def test_case_50_events_and_reprs_hold_no_prompt_and_no_key() -> None:
    recorder = Recorder()
    router = make_router(
        [Endpoint("http://user:hunter2@a", api_key="hunter2"), "http://b"], observers=[recorder]
    )
    with router.acquire(chat("hunter2 is my password")) as lease:
        shown = [repr(lease), repr(lease.decision), repr(router), repr(router.stats())]
        shown += [str(router.explain(chat("hunter2 is my password"))), repr(router.endpoints)]
    assert "hunter2" not in " ".join([*shown, *map(repr, recorder.events)])


# -- what is shown -------------------------------------------------------------


def test_repr_tells_an_operator_the_state() -> None:
    router = make_router(3)
    assert repr(router) == "<RouterCore 3 endpoints, 0 in flight>"
    held = [router.acquire({}) for _ in range(7)]
    router.eject(urls(1)[0])
    assert repr(router) == "<RouterCore 3 endpoints, 1 ejected, 7 in flight>"
    router.start_drain(urls(2)[1])
    assert repr(router) == "<RouterCore 3 endpoints, 1 draining, 1 ejected, 7 in flight>"
    for lease in held:
        lease.release()
    assert repr(make_router(1)) == "<RouterCore 1 endpoint, 0 in flight>"


def test_stats_count_what_happened() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    for cached in (0, 60):
        lease = router.acquire(blocks(1, block_tokens=100))
        assert router.stats().endpoints[0].in_flight == 1
        assert router.stats().endpoints[0].work > 0
        clock.tick(0.1)
        lease.first_token(cached)
        lease.usage(prompt_tokens=100)
        lease.release()
    with router.acquire({}) as lease:
        lease.failed(status=500)
    [stats] = router.stats().endpoints
    assert (stats.id, stats.url, stats.state) == (urls(1)[0], urls(1)[0], HealthState.HEALTHY)
    assert (stats.requests, stats.failures, stats.in_flight, stats.work) == (3, 1, 0, 0.0)
    assert (stats.prompt_tokens, stats.cached_tokens) == (200, 60)
    assert stats.hit_rate == router.stats().hit_rate == 0.3
    assert stats.prefill_tokens_per_s == pytest.approx(1000.0, rel=0.01)
    totals = router.stats()
    assert (totals.requests, totals.failures, totals.in_flight) == (3, 1, 0)
    assert (totals.prompt_tokens, totals.cached_tokens) == (200, 60)


def test_stats_of_a_fresh_router_know_nothing() -> None:
    stats = make_router(2).stats()
    assert (stats.hit_rate, stats.requests, stats.endpoints[0].prefill_tokens_per_s) == (
        None,
        0,
        None,
    )
    assert stats.endpoints[1].hit_rate is None


def test_spills_are_requests_whose_home_was_another() -> None:
    router = make_router(4, placement=Fixed())
    held = [router.acquire(blocks(1)) for _ in range(20)]
    home = held[0].decision.home
    stats = {e.id: e.spills for e in router.stats().endpoints}
    assert home is not None
    assert stats[home.id] == 0
    assert sum(stats.values()) == sum(lease.endpoint != home for lease in held) > 0
    for lease in held:
        lease.release()


def test_an_explanation_reads() -> None:
    router = make_router(3)
    fresh = str(router.explain(chat("hello", system=text("s", 3000))))
    assert "seen none yet" in fresh
    assert "It is the home of this prefix." in fresh
    for number in range(30):
        router.acquire(chat(text(number, 50), system=text("s", 3000))).release()
    body = chat(text(5, 50), system=text("s", 3000))
    explained = router.explain(body)
    shown = str(explained)
    decision = explained.decision
    assert f"goes to   {decision.endpoint.id}" in shown
    assert f"{decision.key} " in shown
    assert "traffic   30 requests seen" in shown
    assert "spread    3 endpoints" in shown
    assert shown.count("<- key") == shown.count("<- chosen") == 1
    assert [b.key for b in explained.boundaries] == [f"{k:016x}" for k in router.read(body).chain]
    assert all(b.share is not None and 0 <= b.share <= 1 for b in explained.boundaries)
    assert [b.tokens for b in explained.boundaries] == sorted(
        b.tokens for b in explained.boundaries
    )


@every_placement
@pytest.mark.parametrize(
    "body", [{}, chat("x"), blocks(*range(40)), "text"], ids=["none", "chat", "b", "t"]
)
def test_everything_can_be_explained(name: str, body: Any) -> None:
    router = router_of(name, 30)
    for _ in range(2):
        shown = str(router.explain(body))
        assert "goes to   " in shown
        assert "... and 20 more" in shown
        router.acquire(body).release()


def test_a_decision_is_a_value() -> None:
    router = make_router(3)
    one, other = router.route(chat("x")), router.route(chat("x"))
    assert one == other
    assert isinstance(one, Decision)
    assert one.candidates[0] == one.home
    assert len(one.candidates) == len(one.loads) == len(one.in_flight) == 3
    assert one.bound == 8
    assert repr(one) == f"<Decision {one.endpoint.id} (home, key {one.key} at depth 1)>"
    assert repr(router.route({})).endswith("(no_key)>")
    with pytest.raises(AttributeError):
        one.bound = 3  # type: ignore[misc]


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence(reason: Reason) -> None:
    assert reason.sentence.endswith(".")


# -- the fingerprint -----------------------------------------------------------


def test_equal_settings_have_equal_fingerprints() -> None:
    some = [Endpoint(url, weight=w) for url, w in zip(urls(3), (1, 2, 3), strict=True)]
    same: list[RouterCore] = [
        make_router(some),
        make_router(some[::-1]),
        make_router(some, seed=None),
        make_router(
            [Endpoint(e.url.replace("http://gpu", "HTTP://GPU"), weight=e.weight) for e in some]
        ),
        make_router(some, placement=Nested(load_slack=8, load_factor=1.25)),
        make_router(
            [Endpoint(e.url, weight=e.weight, api_key="k", headers={"a": "b"}) for e in some]
        ),
        make_router([Endpoint(e.url, weight=e.weight, max_in_flight=5) for e in some]),
    ]
    assert len({router.fingerprint for router in same}) == 1
    same[0].acquire(blocks(1)).release()
    same[0].eject(urls(1)[0])
    assert same[0].fingerprint == same[1].fingerprint


def test_different_settings_have_different_fingerprints() -> None:
    different = [
        make_router(3),
        make_router(2),
        make_router(3, seed=1),
        make_router(3, seed=2**32),
        make_router([*urls(2), "http://other"]),
        make_router([*urls(2), Endpoint(urls(3)[2], weight=2)]),
        make_router([*urls(2), Endpoint(urls(3)[2], id="x")]),
        make_router([*urls(2), Endpoint(urls(3)[2], tier=1)]),
        make_router([*urls(2), Endpoint(urls(3)[2], models=["m"])]),
        make_router(3, placement=Nested(block_bytes=512)),
        make_router(3, placement=Nested(load_factor=2)),
        make_router(3, placement=Fixed()),
        make_router(3, placement=Fixed(prefix_bytes=512)),
        make_router(3, placement=RoundRobin()),
        make_router(3, placement=Random_()),
    ]
    prints = [router.fingerprint for router in different]
    assert len(set(prints)) == len(prints)
    assert all(len(p) == 16 and int(p, 16) >= 0 for p in prints)


def test_golden_fingerprint() -> None:
    """Changes with ``PLACEMENT_VERSION``, or where the settings of a placement change."""
    assert make_router(3).fingerprint == "08f1c96e9da93953"
