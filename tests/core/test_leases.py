from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import urllib.error
from email.message import Message
from typing import Any

import anyio
import httpx
import httpx2
import pytest

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.health import HealthPolicy, HealthState
from prefixroute.core.lease import Lease
from prefixroute.core.router import RouterCore
from prefixroute.errors import Saturated

from .support import FakeClock, blocks, chat, make_router, states, urls

STREAMED = chat("hello there", stream=True)


def state_of(router: RouterCore, id_: str) -> HealthState:
    return next(e.state for e in router.stats().endpoints if e.id == id_)


# -- released exactly once -----------------------------------------------------


@pytest.mark.parametrize("first", ["release", "abandon"])
@pytest.mark.parametrize("again", ["release", "abandon", "exit", "drop"])
def test_a_lease_is_released_once(first: str, again: str) -> None:
    router = make_router(1)
    other = router.acquire(blocks(1))
    lease = router.acquire(blocks(1))
    getattr(lease, first)()
    assert repr(lease) == f"<Lease {lease.endpoint.id}, released>"
    match again:
        case "exit":
            with lease:
                pass
        case "drop":
            del lease
            gc.collect()
        case _:
            getattr(lease, again)()
    assert router.in_flight(other.endpoint) == 1
    other.release()
    assert router.in_flight(other.endpoint) == 0


def test_after_its_release_a_lease_changes_nothing() -> None:
    router = make_router(1, health=HealthPolicy(failures=1))
    lease = router.acquire(STREAMED)
    lease.release()
    before = router.stats()
    lease.first_token(5)
    lease.usage(prompt_tokens=10, cached_tokens=5)
    lease.failed(OSError())
    lease.failed(status=503)
    lease.answered("resp_1")
    assert router.stats() == before
    assert router.route({"input": "x", "previous_response_id": "resp_1"}).reason.value != "pinned"


def test_a_dropped_lease_is_released_when_it_is_collected() -> None:
    router = make_router(1)
    lease = router.acquire(blocks(1))
    cycle: list[Any] = [lease]
    cycle.append(cycle)
    del lease, cycle
    gc.collect()
    assert router.stats().in_flight == 0
    assert router.in_flight(urls(1)[0]) == 0


def test_dropped_leases_make_room_for_the_next_call() -> None:
    router = make_router([Endpoint("http://a", max_in_flight=1)])
    for _ in range(5):
        router.acquire(blocks(1))  # each is dropped at once
    with router.acquire(blocks(1)), pytest.raises(Saturated):
        router.acquire(blocks(1))


def test_a_dropped_lease_says_nothing_about_its_endpoint() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock, health=HealthPolicy(failures=2, jitter=0))
    with router.acquire(blocks(1)) as lease:
        lease.failed(OSError())
    router.acquire(blocks(1))
    with router.acquire(blocks(1)) as lease:
        lease.failed(OSError())
    assert state_of(router, urls(1)[0]) is HealthState.EJECTED  # two in a row


def test_a_lease_collected_while_the_lock_is_held_does_not_deadlock() -> None:
    router = make_router(1)
    cycle: list[Any] = [router.acquire(blocks(1))]
    cycle.append(cycle)
    with router._locked() as (ledger, _):
        del cycle
        gc.collect()
        assert ledger.members is not None
        assert ledger.members.states[0].in_flight == 1  # only noted
    assert router.stats().in_flight == 0


def test_a_lease_ended_by_a_finalizer_within_the_lock_does_not_deadlock() -> None:
    router = make_router(1)

    class Holder:
        def __init__(self) -> None:
            self.lease = router.acquire(STREAMED)

        def __del__(self) -> None:
            self.lease.first_token(1)
            self.lease.usage(prompt_tokens=3)
            self.lease.answered("x")
            self.lease.failed(OSError())
            self.lease.release()

    holder = Holder()
    with router._locked():
        del holder
        gc.collect()
    assert router.stats().in_flight == 0


@pytest.mark.parametrize("change", ["remove", "set", "weight"])
def test_a_lease_of_who_left_and_came_back_does_not_touch_the_new_counts(change: str) -> None:
    router = make_router([Endpoint("http://a", id="a"), "http://b"])
    held = [router.acquire({}) for _ in range(6)]
    old = states(router)["a"]
    match change:
        case "remove":
            router.remove("a")
            router.add(Endpoint("http://a", id="a"))
        case "set":
            router.set_endpoints(["http://b"])
            router.set_endpoints([Endpoint("http://a", id="a"), "http://b"])
        case _:
            router.set_endpoints([Endpoint("http://a", id="a", weight=2), "http://b"])
    new = states(router)["a"]
    assert (new is old) == (change == "weight")
    later = [router.acquire({}) for _ in range(3)]
    for lease in held:
        lease.failed(status=500)
        lease.release()
    counted = sum(lease.endpoint.id == "a" for lease in later)
    assert router.in_flight("a") == counted
    assert old.in_flight == (counted if new is old else 0)
    assert (new.failures > 0) == (new is old)
    for lease in later:
        lease.release()
    assert router.stats().in_flight == 0


def test_late_failures_of_who_left_keep_nothing_of_it() -> None:
    router = make_router(3, health=HealthPolicy(failures=1))
    held = [router.acquire(blocks(number)) for number in range(12)]
    for url in urls(2):
        router.remove(url)
    policy: Any = router._ledger.policy
    before = policy._map._alive.bit_count()
    for lease in held:
        lease.failed(OSError())
        lease.release()
    assert policy._map._alive.bit_count() == before == 1


def test_a_request_that_raises_when_it_is_placed_counts_nothing() -> None:
    router = make_router([Endpoint("http://a", max_in_flight=1)])
    with router.acquire(blocks(1)):
        for _ in range(3):
            with pytest.raises(Saturated):
                router.acquire(blocks(1))
    assert router.stats().in_flight == 0
    assert router.stats().requests == 1


# -- the context manager -------------------------------------------------------


def test_a_good_end_clears_the_failures() -> None:
    router = make_router(1, health=HealthPolicy(failures=2))
    for _ in range(5):
        with router.acquire({}) as lease:
            lease.failed(OSError())
        with router.acquire({}):
            pass
    assert state_of(router, urls(1)[0]) is HealthState.HEALTHY
    assert router.stats().failures == 5


NETWORK = [
    httpx.ConnectError("x"),
    httpx.ReadTimeout("x"),
    httpx.RemoteProtocolError("x"),
    httpx2.ConnectError("x"),
    httpx2.ReadError("x"),
    ConnectionRefusedError("x"),
    ConnectionResetError("x"),
    BrokenPipeError("x"),
    TimeoutError("timed out"),  # a socket's
    TimeoutError(110, "Connection timed out"),
    OSError(101, "Network is unreachable"),
    OSError(113, "No route to host"),
    socket.gaierror(-2, "Name or service not known"),
    ssl.SSLCertVerificationError("x"),
    urllib.error.URLError("refused"),
    type("ClientConnectorError", (type("ClientConnectionError", (Exception,), {}),), {})("aiohttp"),
    type("ConnectTimeout", (type("Timeout", (OSError,), {}),), {})("requests"),
    type("APITimeoutError", (type("APIConnectionError", (Exception,), {}),), {})("an SDK"),
]
OWN = [
    ValueError("x"),
    KeyError("x"),
    FileNotFoundError(2, "No such file"),
    PermissionError(13, "x"),
    OSError("x"),
    httpx.PoolTimeout("x"),
    httpx2.PoolTimeout("x"),
    httpx.UnsupportedProtocol("x"),
    httpx.LocalProtocolError("x"),
    httpx.HTTPStatusError(
        "404", request=httpx.Request("GET", "http://a"), response=httpx.Response(404)
    ),
    urllib.error.HTTPError("http://a", 404, "x", Message(), None),
    TimeoutError(),  # of the caller's own asyncio.timeout()
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    GeneratorExit(),
    type("HTTPError", (type("RequestException", (OSError,), {}),), {})("requests: 404"),
    type("ClientResponseError", (type("ClientError", (Exception,), {}),), {})("aiohttp: 404"),
    type("NotFoundError", (type("APIStatusError", (Exception,), {}),), {})("an SDK: 404"),
]


def name_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__name__}{error.args}"


@pytest.mark.parametrize("error", NETWORK, ids=name_of)
def test_case_28_an_error_of_the_network_counts_and_the_lease_ends(error: Exception) -> None:
    router = make_router(1)
    with pytest.raises(type(error)), router.acquire({}):
        raise error
    assert (router.stats().failures, router.stats().in_flight) == (1, 0)


@pytest.mark.parametrize("error", OWN, ids=name_of)
def test_case_28_an_error_of_the_callers_own_does_not(error: BaseException) -> None:
    router = make_router(1, health=HealthPolicy(failures=2))
    with router.acquire({}) as lease:
        lease.failed(OSError())
    with pytest.raises(type(error)), router.acquire({}):
        raise error
    assert (router.stats().failures, router.stats().in_flight) == (1, 0)
    assert states(router)[urls(1)[0]].health.failures == 1  # neither blamed nor cleared


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_case_27_cancelled_a_thousand_times(backend: str) -> None:
    router = make_router(2)

    async def call() -> None:
        with router.acquire(STREAMED):
            await anyio.sleep_forever()

    async def run() -> None:
        for _ in range(20):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                assert router.stats().in_flight > 0
                group.cancel_scope.cancel()

    anyio.run(run, backend=backend)
    stats = router.stats()
    assert (stats.in_flight, stats.failures) == (0, 0)
    assert [e.state for e in stats.endpoints] == [HealthState.HEALTHY] * 2


def test_a_callers_own_deadline_is_not_the_endpoints_fault() -> None:
    router = make_router(1)

    async def run() -> None:
        with router.acquire({}):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert (router.stats().failures, router.stats().in_flight) == (0, 0)


# -- failures ------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 422, 499])
def test_case_37_a_hundred_bad_requests_never_eject(status: int) -> None:
    router = make_router(1)
    for _ in range(100):
        with router.acquire({}) as lease:
            lease.failed(status=status)
    stats = router.stats().endpoints[0]
    assert (stats.state, stats.failures) == (HealthState.HEALTHY, 0)


@pytest.mark.parametrize("status", [500, 502, 504, 507, 200, 206])
def test_server_errors_and_broken_replies_count(status: int) -> None:
    router = make_router(2)
    for _ in range(5):
        with router.acquire({}, exclude=[urls(1)[0]]) as lease:
            lease.failed(OSError(), status=status)
            lease.failed(OSError(), status=status)  # told twice, counted once
    stats = router.stats().endpoints[1]
    assert (stats.state, stats.failures) == (HealthState.EJECTED, 5)


@pytest.mark.parametrize("status", [429, 503])
def test_too_many_requests_is_load_not_death(status: int) -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    for _ in range(20):
        with router.acquire({}) as lease:
            lease.failed(status=status)
    stats = router.stats().endpoints[0]
    assert (stats.state, stats.failures) == (HealthState.COOLING, 0)
    clock.tick(1.0)
    assert state_of(router, urls(1)[0]) is HealthState.HEALTHY


@pytest.mark.parametrize(
    ("asked", "cooled"),
    [
        (None, 1.0),
        (5.0, 5.0),
        (0.0, 0.0),
        (-5.0, 0.0),
        (float("nan"), 0.0),
        (float("inf"), 60.0),
        (1e18, 60.0),
        (0.5, 0.5),
    ],
)
def test_case_36_retry_after_is_clamped(asked: float | None, cooled: float) -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    with router.acquire({}) as lease:
        lease.failed(status=503, retry_after_s=asked)
    until = states(router)[urls(1)[0]].health.cooling_until
    assert until - clock.now == pytest.approx(cooled)


def test_case_36_a_later_shorter_retry_after_does_not_shorten() -> None:
    clock = FakeClock()
    router = make_router(2, clock=clock)
    for seconds in (60.0, 1.0):
        with router.acquire({}, exclude=[urls(1)[0]]) as lease:
            lease.failed(status=429, retry_after_s=seconds)
    clock.tick(59.0)
    assert state_of(router, urls(2)[1]) is HealthState.COOLING
    clock.tick(1.0)
    assert state_of(router, urls(2)[1]) is HealthState.HEALTHY


def test_failed_wants_to_know_how() -> None:
    router = make_router(1)
    with router.acquire({}) as lease, pytest.raises(ValueError, match="the error or the status"):
        lease.failed()


def test_the_500s_of_one_request_count_once_over_all_endpoints() -> None:
    router = make_router(3, health=HealthPolicy(failures=1))
    tried: list[str] = []
    for _ in range(3):
        with router.acquire({}, exclude=tried) as lease:
            lease.failed(status=500, digest=77)
            tried.append(lease.endpoint.id)
    assert router.stats().failures == 1
    with router.acquire({}) as lease:
        lease.failed(status=500, digest=78)
    assert router.stats().failures == 2


def test_case_38_fifty_requests_when_a_probe_is_due_send_one() -> None:
    clock = FakeClock()
    policy = HealthPolicy(failures=1, jitter=0)
    router = make_router(2, clock=clock, health=policy, placement=Fixed())
    key = blocks(1)
    with router.acquire(key) as lease:
        lease.failed(OSError())
    home = lease.endpoint.id
    clock.tick(10.0)
    for _ in range(3):
        router.route(key)  # asking is no probe
    held = [router.acquire(key) for _ in range(50)]
    there = [one for one in held if one.endpoint.id == home]
    assert len(there) == 1
    assert state_of(router, home) is HealthState.PROBING
    there[0].release()
    assert state_of(router, home) is HealthState.HEALTHY
    for one in held:
        one.release()


@pytest.mark.parametrize("end", ["failed", "busy", "abandon", "drop"])
def test_case_38_a_probe_that_does_not_end_well_readmits_nobody(end: str) -> None:
    clock = FakeClock()
    policy = HealthPolicy(failures=1, jitter=0)
    router = make_router(2, clock=clock, health=policy, placement=Fixed())
    with router.acquire(blocks(1)) as lease:
        lease.failed(OSError())
    home = lease.endpoint.id
    clock.tick(10.0)
    probe = router.acquire(blocks(1))
    assert probe.endpoint.id == home
    match end:
        case "failed":
            probe.failed(OSError())
        case "busy":
            probe.failed(status=503, retry_after_s=5.0)
        case "abandon":
            probe.abandon()
        case _:
            pass
    probe.release() if end != "drop" else None
    del probe
    gc.collect()
    assert state_of(router, home) is HealthState.EJECTED
    clock.tick({"failed": 20.0, "busy": 5.0}.get(end, 0.0))
    with router.acquire(blocks(1)) as again:
        assert again.endpoint.id == home  # the next probe
    assert state_of(router, home) is HealthState.HEALTHY


def test_what_an_ejected_endpoint_held_is_forgotten() -> None:
    clock = FakeClock()
    router = make_router(4, clock=clock)
    prompt = blocks(1, 2, 3, 4)
    with router.acquire(prompt) as lease:
        pass
    assert router.route(prompt).expected_cached_tokens > 1000
    router.eject(lease.endpoint.id)
    router.readmit(lease.endpoint.id)
    policy: Any = router._ledger.policy
    everybody = sum(state.bit for state in states(router).values())
    assert policy._map.holders(prompt.chain, everybody) == []


def test_what_failed_before_its_first_byte_is_not_held() -> None:
    router = make_router(4)
    policy: Any = router._ledger.policy

    def held(prompt: Any) -> int:
        everybody = sum(state.bit for state in states(router).values())
        found = policy._map.holders(prompt.chain, everybody)
        return found[-1][0] if found else 0

    with router.acquire(blocks(1, 2, 3)) as lease:
        lease.failed(OSError())
    assert held(blocks(1, 2, 3)) == 0
    router.acquire(blocks(1)).release()
    with router.acquire(blocks(1, 2, 3)) as lease:
        lease.failed(OSError())
    assert held(blocks(1, 2, 3)) == 1  # what was there before is there still
    with router.acquire(chat("x", stream=True)) as lease:
        lease.first_token()
        lease.failed(OSError())
    assert held(router.read(chat("x"))) > 0


# -- what replies report -------------------------------------------------------


def test_only_the_first_report_of_usage_counts() -> None:
    router = make_router(1)
    with router.acquire(STREAMED) as lease:
        lease.first_token(4)
        lease.first_token(900)
        lease.usage(prompt_tokens=10, cached_tokens=900)
        lease.usage(prompt_tokens=900)
    stats = router.stats()
    assert stats.cached_tokens == 4
    assert stats.prompt_tokens == max(4, round(lease.decision.tokens))


def test_usage_may_come_after_the_first_token_and_in_parts() -> None:
    router = make_router(1)
    with router.acquire(STREAMED) as lease:
        lease.first_token()
        lease.usage(prompt_tokens=100)
        lease.usage(cached_tokens=64)
        lease.usage()
    stats = router.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (100, 64)


@pytest.mark.parametrize("cached", [-5, 10**9])
def test_nonsense_counts_of_cached_tokens_do_no_harm(cached: int) -> None:
    router = make_router(2)
    with router.acquire(blocks(1)) as lease:
        lease.usage(prompt_tokens=100, cached_tokens=cached)
    hit_rate = router.stats().hit_rate
    assert hit_rate is not None
    assert 0.0 <= hit_rate <= 1.0
    router.route(blocks(1))


def test_sizes_learn_from_usage() -> None:
    router = make_router(1)
    body = chat("x" * 40_000)
    assert router.route(body).tokens == pytest.approx(10_000, rel=0.02)
    for _ in range(100):
        with router.acquire(body) as lease:
            lease.usage(prompt_tokens=5000)
    assert router.route(body).tokens == pytest.approx(5000, rel=0.05)


def test_work_is_0_when_nothing_is_open() -> None:
    router = make_router(1)
    held: list[Lease] = [router.acquire(body) for body in (STREAMED, chat("x"), blocks(1), {}) * 3]
    assert router.stats().endpoints[0].work > 0
    for number, lease in enumerate(held):
        if number % 2:
            lease.first_token()
        lease.release()
    assert router.stats().endpoints[0].work == 0.0
    assert not states(router)[urls(1)[0]].open
    assert not states(router)[urls(1)[0]].silent
