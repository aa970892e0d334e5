"""How endpoints come back: probes, panic, a small share at first, and how many may be away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import httpx2
import pytest

from prefixroute.core.decision import Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import EndpointReadmitted, Event
from prefixroute.core.fixed import LeastLoaded
from prefixroute.core.health import HealthPolicy, HealthState
from prefixroute.core.router import RouterCore
from tests.core.support import FakeClock, blocks, make_router, urls


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Seen:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def readmitted(self) -> list[str]:
        return [e.endpoint_id for e in self.events if isinstance(e, EndpointReadmitted)]


def fail(router: RouterCore, endpoint: str, times: int = 5, error: Exception | None = None) -> None:
    others = [e.id for e in router.endpoints if e.id != endpoint]
    for _ in range(times):
        with router.acquire({}, exclude=others) as lease:
            assert lease.endpoint.id == endpoint
            lease.failed(error or OSError())


def states(router: RouterCore) -> list[HealthState]:
    return [endpoint.state for endpoint in router.stats().endpoints]


def counts(router: RouterCore) -> list[int]:
    return [endpoint.in_flight for endpoint in router.stats().endpoints]


def test_an_endpoint_that_returns_gets_a_small_share_that_grows(held: ExitStack) -> None:
    clock = FakeClock()
    router = make_router(4, clock=clock, placement=LeastLoaded())
    router.eject(urls(1)[0])
    for _ in range(30):
        held.enter_context(router.acquire({}))
    router.readmit(urls(1)[0])
    for _ in range(10):
        held.enter_context(router.acquire({}))
    assert counts(router)[0] == 1  # not all of them, though it is the least loaded by far
    clock.tick(5.0)
    for _ in range(20):
        held.enter_context(router.acquire({}))
    mean = sum(counts(router)) / 4
    assert 0.4 * mean <= counts(router)[0] <= 0.5 * mean + 1
    clock.tick(5.0)
    for _ in range(20):
        held.enter_context(router.acquire({}))
    assert counts(router) == [20, 20, 20, 20]


def test_endpoints_that_join_later_warm_up_and_the_first_ones_do_not() -> None:
    clock = FakeClock()
    router = make_router(2, clock=clock)
    router.add(urls(3)[2])
    assert [e.warmth for e in router.stats().endpoints] == [1.0, 1.0, 0.0]
    clock.tick(2.5)
    assert router.stats().endpoints[2].warmth == 0.25
    router.remove(urls(3)[2])
    assert router._ledger.judge._warming == set()


def test_warming_up_never_refuses(held: ExitStack) -> None:
    router = make_router(1)
    router.eject(urls(1)[0])
    router.readmit(urls(1)[0])
    for _ in range(10):
        held.enter_context(router.acquire(blocks(1)))
    assert counts(router) == [10]


def test_without_warm_up_all_is_as_before() -> None:
    router = make_router(2, health=HealthPolicy(warm_up_s=0))
    router.eject(urls(1)[0])
    router.readmit(urls(1)[0])
    assert [e.warmth for e in router.stats().endpoints] == [1.0, 1.0]


def test_no_more_than_the_share_is_ejected_and_one_always_is() -> None:
    router = make_router(4, health=HealthPolicy(max_ejected_share=0.5))
    for url in urls(3):
        fail(router, url)
    assert states(router).count(HealthState.EJECTED) == 2
    assert states(router)[2] is HealthState.HEALTHY
    lone = make_router(4, health=HealthPolicy(max_ejected_share=0.0))
    fail(lone, urls(1)[0])
    assert states(lone)[0] is HealthState.EJECTED


def test_one_that_could_not_be_ejected_is_when_there_is_room() -> None:
    router = make_router(2, health=HealthPolicy(max_ejected_share=0.5))
    fail(router, urls(1)[0])
    fail(router, urls(2)[1])
    assert states(router)[1] is HealthState.HEALTHY
    router.readmit(urls(1)[0])
    fail(router, urls(2)[1], times=1)
    assert states(router)[1] is HealthState.EJECTED


def test_case_39_in_a_panic_a_good_reply_readmits() -> None:
    seen = Seen()
    router = make_router(2, observers=[seen])
    for url in urls(2):
        fail(router, url)
    assert states(router) == [HealthState.EJECTED] * 2
    with router.acquire(blocks(1)) as lease:
        pass
    assert seen.readmitted() == [lease.endpoint.id]


@pytest.mark.parametrize(
    ("status", "failures", "state"),
    [
        (200, 0, HealthState.HEALTHY),
        (404, 0, HealthState.HEALTHY),  # it is there, and knows no such path
        (503, 0, HealthState.COOLING),  # it loads its model
        (500, 1, HealthState.HEALTHY),
        (None, 1, HealthState.HEALTHY),
    ],
)
def test_probes_of_the_routers_own_tell_how_an_endpoint_is(
    status: int | None, failures: int, state: HealthState
) -> None:
    router = make_router(1, health=HealthPolicy(probe_every_s=5))
    router.probed(router.endpoints[0], status)
    [stats] = router.stats().endpoints
    assert (stats.failures, stats.state, stats.requests) == (failures, state, 0)


def test_a_good_probe_readmits_before_the_ejection_is_over() -> None:
    seen = Seen()
    router = make_router(2, observers=[seen])
    fail(router, urls(1)[0])
    router.probed(router.endpoints[0], 200)
    assert seen.readmitted() == urls(1)
    assert states(router)[0] is HealthState.HEALTHY


def test_probes_eject_as_requests_do() -> None:
    router = make_router(2)
    for _ in range(5):
        router.probed(router.endpoints[0], None)
    assert states(router)[0] is HealthState.EJECTED


def test_probes_do_not_readmit_what_was_ejected_by_hand() -> None:
    router = make_router(2)
    router.eject(urls(1)[0])
    router.probed(router.endpoints[0], 200)
    assert states(router)[0] is HealthState.EJECTED


def test_the_probe_of_one_that_left_is_ignored() -> None:
    router = make_router(2)
    router.probed(Endpoint("http://elsewhere:8000"), None)
    assert router.stats().failures == 0


def test_a_good_probe_says_little_of_one_that_answers_requests_with_errors() -> None:
    clock = FakeClock()
    router = make_router(2, clock=clock, health=HealthPolicy(jitter=0))
    for digest in range(5):
        with router.acquire({}, exclude=urls(2)[1:]) as lease:
            lease.failed(status=500, digest=digest)
    router.probed(router.endpoints[0], 200)
    assert states(router)[0] is HealthState.EJECTED  # its health page was fine all the time
    clock.tick(10.0)
    with router.acquire({}, exclude=urls(2)[1:]):
        pass
    assert states(router)[0] is HealthState.HEALTHY


def test_a_good_probe_takes_back_that_nobody_is_there() -> None:
    router = make_router(2)
    first = router.endpoints[0]
    for _ in range(20):  # flapping, with no request in between: never five in a row
        router.probed(first, None)
        router.probed(first, 502)
        router.probed(first, 200)
    fail(router, first.id, 4)
    router.probed(first, 200)
    fail(router, first.id, 4)
    assert states(router)[0] is HealthState.HEALTHY
    fail(router, first.id, 1)
    assert states(router)[0] is HealthState.EJECTED


@pytest.mark.parametrize("error", [httpx.ReadTimeout("x"), httpx2.WriteTimeout("x"), 500])
def test_a_good_probe_takes_nothing_back_of_requests_that_are_not_served(
    error: Exception | int,
) -> None:
    clock = FakeClock()
    router = make_router(2, clock=clock, health=HealthPolicy(jitter=0))
    first = router.endpoints[0]

    def fails(digest: int) -> None:
        with router.acquire({}, exclude=urls(2)[1:]) as lease:
            if isinstance(error, int):
                lease.failed(status=error, digest=digest)
            else:
                lease.failed(error)

    for digest in range(5):
        assert states(router)[0] is HealthState.HEALTHY
        router.probed(first, 200)
        fails(digest)
    assert states(router)[0] is HealthState.EJECTED
    router.probed(first, 200)
    assert states(router)[0] is HealthState.EJECTED
    router.probed(first, None)  # not even this is answered: it has stopped, or starts anew
    router.probed(first, 200)
    assert states(router)[0] is HealthState.HEALTHY
    clock.tick(100.0)
    for digest in range(4):
        fails(10 + digest)
    assert states(router)[0] is HealthState.HEALTHY, "it began with a clean slate"


def test_probes_count_in_no_error_rate() -> None:
    router = make_router(2, health=HealthPolicy(error_rate=0.5, error_window=4))
    for _ in range(20):
        router.probed(router.endpoints[0], None)
        router.probed(router.endpoints[0], 200)
    assert states(router)[0] is HealthState.HEALTHY
    for _ in range(2):
        with router.acquire({}, exclude=urls(2)[1:]):
            pass
        fail(router, urls(1)[0], 1)
    assert states(router)[0] is HealthState.EJECTED


def test_a_home_that_is_due_a_probe_gets_it_though_others_hold_the_prefix(
    held: ExitStack,
) -> None:
    clock = FakeClock()
    router = make_router(4, clock=clock, peers=1, health=HealthPolicy(jitter=0))
    for number in range(100, 200):  # among others the prefix is not hot
        router.acquire(blocks(number)).release()
    prompt = blocks(1, 2, 3, 4)
    with router.acquire(prompt) as first:
        home = first.endpoint.id
    fail(router, home)
    for _ in range(2):  # the prefix has a copy elsewhere now
        with router.acquire(prompt) as lease:
            assert lease.endpoint.id != home
            assert lease.decision.home is not None
            assert lease.decision.home.id == home
    clock.tick(10.0)
    sent = [held.enter_context(router.acquire(prompt)) for _ in range(3)]
    assert [lease.endpoint.id == home for lease in sent] == [True, False, False]
    assert sent[0].decision.reason is not Reason.PANIC
