"""The Prometheus metrics of a router, through real decisions and replies."""

from __future__ import annotations

import math
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from prefixroute import ConfigurationError, Endpoint, EngineLoad, Fixed, HealthState, RoundRobin
from prefixroute.core.events import EndpointEjected, FirstToken, RequestDone
from prefixroute.core.router import RouterCore
from prefixroute.metrics import FleetMetrics, PrometheusObserver, RouterMetrics
from tests.core.support import FakeClock, blocks, chat, make_router, text, urls

A, B = urls(2)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def router(registry: CollectorRegistry, clock: FakeClock) -> RouterCore:
    return make_router([A, B], clock=clock, observers=[PrometheusObserver(registry)])


def value(registry: CollectorRegistry, name: str, endpoint: str = A, **labels: str) -> float | None:
    return registry.get_sample_value(f"prefixroute_{name}", {"endpoint": endpoint, **labels})


def to(router: RouterCore, endpoint: str) -> list[str]:
    return [e.id for e in router.endpoints if e.id != endpoint]


def test_one_request_from_the_first_byte_to_the_last(
    router: RouterCore, registry: CollectorRegistry, clock: FakeClock
) -> None:
    lease = router.acquire(blocks(1, block_tokens=100))
    name = lease.endpoint.id
    assert value(registry, "in_flight", name) == 1
    clock.tick(0.2)
    lease.first_token()
    clock.tick(0.3)
    lease.usage(prompt_tokens=100, cached_tokens=40)
    lease.release()
    assert value(registry, "in_flight", name) == 0
    assert value(registry, "requests_total", name) == 1
    assert value(registry, "attempts_total", name) == 1
    assert value(registry, "failovers_total", name) == 0
    assert value(registry, "prompt_tokens_total", name) == 100
    assert value(registry, "cached_tokens_total", name) == 40
    expected = lease.decision.expected_cached_tokens
    assert value(registry, "expected_cached_tokens_total", name) == pytest.approx(expected)
    assert value(registry, "hit_rate", name) == 0.4
    assert value(registry, "ttft_seconds_count", name) == 1
    assert value(registry, "ttft_seconds_sum", name) == pytest.approx(0.2)
    assert value(registry, "request_seconds_sum", name) == pytest.approx(0.5)
    assert registry.get_sample_value("prefixroute_decision_seconds_count") == 1


def test_replies_without_a_report_leave_the_hit_rate_alone(
    router: RouterCore, registry: CollectorRegistry
) -> None:
    with router.acquire({}, exclude=to(router, A)) as lease:
        lease.usage(prompt_tokens=100)
    assert value(registry, "prompt_tokens_total") is None
    assert value(registry, "hit_rate") is None


def test_a_failover_is_an_attempt_and_no_request(
    router: RouterCore, registry: CollectorRegistry
) -> None:
    with router.acquire({}, exclude=[B]) as first:
        first.failed(OSError())
    with router.acquire({}, exclude=[A]):
        pass
    assert value(registry, "failures_total", A) == 1
    assert value(registry, "attempts_total", B) == 1
    assert value(registry, "failovers_total", B) == 1
    assert value(registry, "requests_total", B) is None


def test_what_is_rare_begins_at_0_for_its_rate_misses_what_a_series_begins_with(
    router: RouterCore, registry: CollectorRegistry
) -> None:
    with router.acquire({}) as lease:
        at = lease.endpoint.id
    (other,) = to(router, at)
    for name in ("failovers", "failures", "ejections", "readmissions", "cooldowns"):
        assert value(registry, f"{name}_total", at) == 0
        assert value(registry, f"{name}_total", other) is None
    assert value(registry, "ejected", at) == 0


def test_ejections_come_and_go(router: RouterCore, registry: CollectorRegistry) -> None:
    router.eject(A)
    assert (value(registry, "ejections_total"), value(registry, "ejected")) == (1, 1)
    router.readmit(A)
    assert (value(registry, "readmissions_total"), value(registry, "ejected")) == (1, 0)
    with router.acquire({}, exclude=[B]) as lease:
        lease.failed(status=429)
    assert value(registry, "cooldowns_total") == 1


def test_spills_name_their_reason(registry: CollectorRegistry) -> None:
    router = make_router(
        [A, B, Endpoint("http://c")],
        placement=Fixed(),
        observers=[PrometheusObserver(registry)],
    )
    held = [router.acquire(blocks(1)) for _ in range(40)]
    spilled = [one.decision for one in held if one.decision.reason.is_spill]
    assert spilled
    for one in held:
        one.release()
    for decision in spilled:
        assert value(
            registry, "spills_total", decision.endpoint.id, reason=decision.reason.value
        ) == sum(
            other.endpoint == decision.endpoint and other.reason is decision.reason
            for other in spilled
        )


def test_the_series_of_an_endpoint_leave_with_it(
    router: RouterCore, registry: CollectorRegistry
) -> None:
    for name in (A, B):
        with router.acquire(blocks(1), exclude=to(router, name)) as lease:
            lease.first_token()
            lease.usage(prompt_tokens=10, cached_tokens=5)
    router.remove(A)
    text = generate_latest(registry).decode()
    assert A not in text
    assert B in text


def test_what_was_in_flight_does_not_bring_them_back(
    router: RouterCore, registry: CollectorRegistry
) -> None:
    lease = router.acquire({}, exclude=[B])
    router.remove(A)
    lease.first_token()
    lease.usage(prompt_tokens=10, cached_tokens=5)
    lease.failed(status=429)
    lease.release()
    assert A not in generate_latest(registry).decode()


def test_one_that_returns_starts_anew(router: RouterCore, registry: CollectorRegistry) -> None:
    old = router.acquire({}, exclude=[B])
    router.remove(A)
    router.add(A)
    with router.acquire({}, exclude=[B]):
        pass
    old.release()
    assert value(registry, "in_flight") == 0
    assert value(registry, "attempts_total") == 1


def test_ten_thousand_changes_of_the_membership_leave_nothing(
    registry: CollectorRegistry,
) -> None:
    observer = PrometheusObserver(registry)
    router = make_router([A], observers=[observer])
    before = len(generate_latest(registry))
    for number in range(200):
        added = router.add(f"http://node-{number}")
        router.acquire({}, exclude=[A]).release()
        router.remove(added)
    assert len(generate_latest(registry)) == before
    assert not observer._tokens
    assert not observer._held
    assert not observer._leaving


def test_a_second_observer_needs_a_registry_or_a_namespace_of_its_own(
    registry: CollectorRegistry,
) -> None:
    PrometheusObserver(registry)
    with pytest.raises(ConfigurationError, match="a namespace of its own"):
        PrometheusObserver(registry)
    PrometheusObserver(registry, namespace="other")


def test_events_of_another_process_never_count_below_zero(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.on_event(
        RequestDone(
            endpoint_id=A,
            duration_s=1.0,
            failed=False,
            prompt_tokens=None,
            cached_tokens=7,
            expected_cached_tokens=0.0,
        )
    )
    observer.on_event(FirstToken(endpoint_id=A, ttft_s=0.1))
    observer.on_event(EndpointEjected(endpoint_id=A, until=math.inf, for_s=math.inf))
    assert value(registry, "in_flight") == 0
    assert value(registry, "prompt_tokens_total") == 7


def test_threads_are_counted_exactly(router: RouterCore, registry: CollectorRegistry) -> None:
    def use() -> None:
        for _ in range(200):
            router.acquire({}).release()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(value(registry, "requests_total", name) or 0 for name in (A, B)) == 1600
    assert [value(registry, "in_flight", name) for name in (A, B)] == [0, 0]


class Told:
    """A fleet that says what it is told to."""

    connected, peers, losses = True, 3, 1
    age_s: float | None = None

    def stats(self) -> Told:
        return self


def test_a_fleet_shows_how_it_fares(registry: CollectorRegistry) -> None:
    fleet = Told()
    FleetMetrics(fleet, registry)

    def shown(name: str) -> float | None:
        return registry.get_sample_value(f"prefixroute_fleet_{name}")

    assert [shown(name) for name in ("connected", "peers", "losses")] == [1.0, 3.0, 1.0]
    assert shown("age_seconds") == math.inf
    fleet.age_s, fleet.connected = 2.5, False
    assert (shown("age_seconds"), shown("connected")) == (2.5, 0.0)
    with pytest.raises(ConfigurationError, match="of its own"):
        FleetMetrics(fleet, registry)
    FleetMetrics(fleet, registry, namespace="other")


def labelled(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"prefixroute_{name}", labels)


def test_a_holdout_and_a_shadow_have_series(registry: CollectorRegistry) -> None:
    clock = FakeClock()
    router = RouterCore(
        urls(4),
        holdout=0.5,
        shadow=RoundRobin(),
        seed=0,
        clock=clock,
        wall_clock=clock,
        observers=[PrometheusObserver(registry)],
    )
    for number in range(40):
        with router.acquire(chat(text(number, 300), stream=True)) as lease:
            clock.tick(0.2)
            lease.first_token()
            lease.usage(prompt_tokens=100, cached_tokens=number)
    stats = router.stats()
    holdout, shadow = stats.holdout, stats.shadow
    assert holdout is not None
    assert shadow is not None
    for group, counted in (("routed", holdout.routed), ("held_out", holdout.held_out)):
        assert labelled(registry, "group_replies_total", group=group) == counted.requests > 0
        prompt = labelled(registry, "group_prompt_tokens_total", group=group)
        assert prompt == counted.prompt_tokens
        cached = labelled(registry, "group_cached_tokens_total", group=group)
        assert cached == counted.cached_tokens
        times = labelled(registry, "group_ttft_seconds_count", group=group)
        assert times == counted.ttft_count
    assert labelled(registry, "shadow_requests_total") == 40
    assert labelled(registry, "shadow_moved_total") == shadow.moved
    assert labelled(registry, "shadow_tokens_total") == pytest.approx(shadow.tokens)
    for placement in ("given", "shadow"):
        found = labelled(registry, "shadow_expected_cached_tokens_total", placement=placement)
        assert found == pytest.approx(getattr(shadow, f"{placement}_cached_tokens"))


# -- how a router stands -------------------------------------------------------------------------


def test_the_state_of_every_endpoint_is_there_from_the_start(
    router: RouterCore, registry: CollectorRegistry
) -> None:
    RouterMetrics(router, registry)
    router.eject(A)
    states = {
        name: {s.value: value(registry, "state", name, state=s.value) for s in HealthState}
        for name in (A, B)
    }
    assert states[A] == {
        "healthy": 0, "cooling": 0, "ejected": 1, "probing": 0, "draining": 0,
    }  # fmt: skip
    assert states[B]["healthy"] == 1
    router.start_drain(B)
    assert value(registry, "state", B, state="draining") == 1
    router.remove(A)
    assert value(registry, "state", A, state="ejected") is None


def test_queues_are_told_as_the_engine_last_reported(
    router: RouterCore, registry: CollectorRegistry, clock: FakeClock
) -> None:
    RouterMetrics(router, registry)
    assert value(registry, "engine_waiting") is None
    router.report_load({A: EngineLoad(running=3, waiting=2)})
    assert (value(registry, "engine_running"), value(registry, "engine_waiting")) == (3, 2)
    clock.tick(3600)  # too old to be believed
    assert value(registry, "engine_waiting") is None
    lease = router.acquire({"prompt": "x" * 4000}, exclude=[B])
    queued = value(registry, "queued_tokens")
    lease.release()
    assert queued is not None
    assert 100 < queued <= 1010
    assert value(registry, "queued_tokens") == 0


def test_calls_that_wait_are_counted(registry: CollectorRegistry) -> None:
    router = make_router([Endpoint(A, max_in_flight=1)])
    RouterMetrics(router, registry)
    lease = router.acquire("x")
    waiter = router.queue(router.read("y"))
    assert waiter is not None
    assert registry.get_sample_value("prefixroute_waiting") == 1
    router.unqueue(waiter)
    assert registry.get_sample_value("prefixroute_waiting") == 0
    lease.release()


def hot_prefixes(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.labels["prefix"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "prefixroute_hot_prefix_requests"
    }


def test_the_hottest_prefixes_are_told_if_asked_for_and_no_more_of_them(clock: FakeClock) -> None:
    router = make_router([A, B], clock=clock)
    for number in range(60):
        clock.tick(0.1)
        system = text(("assistant", number % 6), 6000)
        with router.acquire(chat(f"{number}", system=system)):
            pass
    none, some = CollectorRegistry(), CollectorRegistry()
    RouterMetrics(router, none)
    RouterMetrics(router, some, hot_prefixes=4)
    assert hot_prefixes(none) == {}
    found = hot_prefixes(some)
    assert len(found) == 4
    assert max(found.values()) == pytest.approx(10, rel=0.05)
    digest = max(found, key=lambda one: found[one])
    assert some.get_sample_value("prefixroute_hot_prefix_share", {"prefix": digest}) == (
        pytest.approx(1 / 6, rel=0.05)
    )
    boundaries = {
        one.key: one.tokens
        for number in range(6)
        for one in router.explain(chat(system=text(("assistant", number), 6000))).boundaries
    }
    size = some.get_sample_value("prefixroute_hot_prefix_tokens", {"prefix": digest})
    spread = some.get_sample_value("prefixroute_hot_prefix_endpoints", {"prefix": digest})
    assert spread == 2
    assert size == round(boundaries[digest])


def test_two_routers_need_two_namespaces(router: RouterCore, registry: CollectorRegistry) -> None:
    RouterMetrics(router, registry)
    with pytest.raises(ConfigurationError, match="namespace of its own"):
        RouterMetrics(router, registry)
    RouterMetrics(router, registry, namespace="other")
    assert registry.get_sample_value("other_waiting") == 0
    with pytest.raises(ConfigurationError, match="hot_prefixes"):
        RouterMetrics(router, registry, namespace="third", hot_prefixes=-1)
