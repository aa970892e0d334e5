"""A second placement decides for every request, influences none, and is judged by what it did."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import pytest

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed, LeastLoaded, RoundRobin
from prefixroute.core.health import HealthPolicy
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore
from prefixroute.core.shadow import Shadow
from prefixroute.core.shadow_stats import ShadowStats
from tests.core.support import FakeClock, chat, conversation, text, urls


def router_with(shadow: Placement | None, **given: Any) -> RouterCore:
    settings = {"clock": FakeClock(), "wall_clock": lambda: 0.0, "seed": 0, **given}
    endpoints = settings.pop("endpoints", urls(4))
    return RouterCore(endpoints, shadow=shadow, **settings)


def told(router: RouterCore) -> ShadowStats:
    shadow = router.stats().shadow
    assert shadow is not None
    return shadow


def drive(router: RouterCore, clock: FakeClock) -> list[str]:
    """Serve 41 conversations whose turns interleave; return where they went."""
    chats = [conversation(number, 4, system=text(number % 5, 3000)) for number in range(41)]
    went = []
    for turn in range(4):
        for bodies in chats:
            lease = router.acquire({**bodies[turn], "stream": True})
            clock.tick(0.05)
            lease.first_token(cached_tokens=100)
            clock.tick(0.01)
            lease.release()
            went.append(lease.endpoint.id)
    return went


@pytest.mark.parametrize("placement", [Nested(), RoundRobin(), Fixed(), LeastLoaded()], ids=repr)
@pytest.mark.parametrize("shadow", [Nested(), Fixed(prefix_bytes=99), RoundRobin()], ids=repr)
def test_it_never_influences(placement: Placement, shadow: Placement) -> None:
    clock, other = FakeClock(), FakeClock()
    alone = router_with(None, placement=placement, clock=clock)
    beside = router_with(shadow, placement=placement, clock=other)
    assert drive(alone, clock) == drive(beside, other)
    assert alone.stats().endpoints == beside.stats().endpoints
    assert alone.fingerprint == beside.fingerprint
    assert told(beside).requests == 164


def test_a_placement_in_its_own_shadow_moves_nothing() -> None:
    clock = FakeClock()
    router = router_with(Nested(), clock=clock, peers=1)
    drive(router, clock)
    shadow = told(router)
    assert shadow.moved == 0
    assert shadow.moved_share == 0.0
    assert shadow.given_hit_rate == shadow.shadow_hit_rate


@pytest.mark.parametrize("placement", [RoundRobin(), Fixed(prefix_bytes=8)], ids=repr)
def test_what_the_user_would_gain_is_told(placement: Placement) -> None:
    clock = FakeClock()
    router = router_with(Nested(), placement=placement, clock=clock)
    drive(router, clock)
    shadow = told(router)
    given, would = shadow.given_hit_rate, shadow.shadow_hit_rate
    assert given is not None
    assert would is not None
    if isinstance(placement, RoundRobin):
        assert would > given + 0.1
        assert shadow.moved > 80
    assert 0.0 < given <= 1.0
    assert 0.5 < would <= 1.0
    assert f"{would:.1%}" in shadow.sentence


def test_two_windows_are_judged_by_the_whole_chain() -> None:
    clock = FakeClock()
    router = router_with(Fixed(prefix_bytes=64), placement=Fixed(), clock=clock)
    drive(router, clock)
    shadow = told(router)
    assert shadow.shadow_hit_rate is not None
    assert 0.5 < shadow.shadow_hit_rate < 1.0


def test_before_any_request_it_says_so() -> None:
    shadow = told(router_with(Nested()))
    assert shadow.moved_share is shadow.given_hit_rate is shadow.shadow_hit_rate is None
    assert "no request" in shadow.sentence


def test_its_own_load_is_what_it_would_have_placed() -> None:
    router = router_with(Fixed(load_slack=100), placement=RoundRobin())
    body = chat(text(1, 4000))
    held = [router.acquire(body) for _ in range(8)]
    assert router._trials is not None
    assert router._trials.shadow is not None
    own = sorted(state.in_flight for state in router._trials.shadow._twins.values())
    assert own == [0, 0, 0, 8]  # one home, rather than all in turn
    for lease in held:
        lease.release()
    assert all(state.in_flight == 0 for state in router._trials.shadow._twins.values())


def test_it_keeps_to_who_is_well() -> None:
    router = router_with(Nested(), placement=LeastLoaded(), endpoints=urls(2))
    first, second = urls(2)
    router.eject(first)
    for number in range(20):
        router.acquire(chat(text(number, 300))).release()
    assert told(router).moved == 0
    router.readmit(first)
    router.start_drain(second)
    for number in range(20):
        router.acquire(chat(text(number, 300))).release()
    assert told(router).moved == 0


def test_an_ejected_endpoint_holds_nothing_any_more() -> None:
    router = router_with(Nested(), endpoints=urls(1))
    body = chat(text(1, 4000))
    router.acquire(body).release()
    router.acquire(body).release()
    assert told(router).given_cached_tokens > 0
    before = told(router)
    router.eject(urls(1)[0])
    router.readmit(urls(1)[0])
    router.acquire(body).release()
    assert told(router).given_cached_tokens == before.given_cached_tokens
    assert told(router).shadow_cached_tokens == before.shadow_cached_tokens


def test_endpoints_come_and_go() -> None:
    router = router_with(Nested(), placement=RoundRobin())
    for change in range(30):
        added = router.add(f"http://more-{change}:8000/v1")
        for number in range(10):
            with router.acquire(chat(text(number, 300))):
                pass
        held = router.acquire(chat(text(change, 300)))
        router.remove(added)
        held.release()
    assert told(router).requests == 330
    assert router.stats().in_flight == 0


def test_it_has_room_of_its_own() -> None:
    endpoints = [Endpoint(f"http://{name}:1/v1", max_in_flight=2) for name in "ab"]
    router = router_with(Nested(), placement=RoundRobin(), endpoints=endpoints)
    held = [router.acquire(chat(text(number, 300))) for number in range(4)]
    for lease in held:
        lease.release()
    assert told(router).full == 0
    assert told(router).requests == 4


def test_dropped_leases_and_threads_leave_nothing() -> None:
    router = router_with(Nested(), placement=RoundRobin(), health=HealthPolicy(failures=1))

    def use(thread: int) -> None:
        for number in range(50):
            lease = router.acquire(chat(text((thread, number % 7), 500), stream=True))
            if number % 5 == 0:
                lease.failed(status=500)
            elif number % 3:
                lease.first_token(cached_tokens=3)
            if number % 4:
                lease.release()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    gc.collect()
    assert router.stats().in_flight == 0
    assert router._trials is not None
    assert router._trials.shadow is not None
    assert all(state.in_flight == 0 for state in router._trials.shadow._twins.values())
    assert told(router).requests == 400


def test_with_a_holdout_too() -> None:
    router = router_with(LeastLoaded(), holdout=0.5)
    for number in range(40):
        for body in conversation(number, 2):
            router.acquire(body).release()
    stats = router.stats()
    assert stats.holdout is not None
    assert stats.holdout.held_out.requests + stats.holdout.routed.requests == 80
    assert told(router).requests == 80


@pytest.mark.parametrize("method", ["place", "first_token", "ended", "ejected", "prepare"])
def test_one_that_breaks_never_hurts_a_request(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the shadow is broken")

    router = router_with(Nested(), placement=RoundRobin())
    monkeypatch.setattr(Shadow, method, broken)
    with caplog.at_level(logging.ERROR, "prefixroute"):
        for number in range(5):
            with router.acquire(chat(text(number, 300), stream=True)) as lease:
                lease.first_token(cached_tokens=1)
        router.eject(urls(1)[0])
        router.acquire(chat("x")).release()
    assert router.stats().in_flight == 0
    assert router.stats().requests == 6
    assert len(caplog.records) == 1
    assert "left off from now on" in caplog.text


def test_it_may_be_full_where_the_given_one_is_not() -> None:
    endpoints = [Endpoint(f"http://{name}:1/v1", max_in_flight=2) for name in "ab"]
    router = router_with(Fixed(load_slack=9), placement=RoundRobin(), endpoints=endpoints)
    body = chat(text(1, 300))
    home = router_with(None, placement=Fixed(), endpoints=endpoints).route(body).endpoint
    held = [router.acquire(body) for _ in range(2)]  # one each; for the shadow two at the home
    [other] = [endpoint for endpoint in endpoints if endpoint != home]
    router.eject(other)
    held.append(router.acquire(body))
    assert (told(router).full, told(router).requests) == (1, 2)
    for lease in held:
        lease.release()


def test_a_forks_child_starts_without_the_parents_requests() -> None:
    router = router_with(Nested(), holdout=0.5)
    held = [router.acquire(chat(text(number, 300))) for number in range(6)]
    router._after_fork()
    for lease in held:
        lease.release()
    assert router.stats().in_flight == 0
    assert router._trials is not None
    assert router._trials.shadow is not None
    assert all(state.in_flight == 0 for state in router._trials.shadow._twins.values())
    router.acquire(chat("x")).release()
    assert told(router).requests == 7
