"""Load headers are read leniently, and what they say is heeded as any report of load is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.load import EngineLoad
from prefixroute.core.load_header import HeaderLoad, read_load_header
from prefixroute.core.router import RouterCore
from tests.core.support import FakeClock, chat, make_router, states, text, urls

A, B = urls(2)
VLLM = "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0"


@pytest.mark.parametrize(
    "value",
    [
        VLLM,
        "text named_metrics.num_requests_waiting=3,named_metrics.kv_cache_usage_perc=.4,",
        "  TEXT   vllm:num_requests_waiting = 3 , kv_cache_usage_perc = 4e-1, eps=1",
        'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}',
        'json {"kv_cache_usage_perc":0.4,"num_requests_waiting":3,"application":"x","other":{}}',
        "TEXT junk, named_metrics.num_requests_waiting=3, =, ==, kv_cache_usage_perc=0.4, a=b",
    ],
)
def test_what_engines_send_is_read(value: str) -> None:
    assert read_load_header(value) == HeaderLoad(waiting=3, kv_usage=0.4)


def test_running_requests_are_read_where_they_are_said() -> None:
    value = f"{VLLM}, named_metrics.num_requests_running=7"
    assert read_load_header(value) == HeaderLoad(waiting=3, running=7, kv_usage=0.4)


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, b"TEXT num_requests_waiting=3", "", " ", "TEXT", "TEXT ", "JSON", "JSON {"),
        *("BIN CgQIARAB", "XML <a/>", "num_requests_waiting=3", "JSON []", "JSON 3", "JSON null"),
        "TEXT named_metrics.kv_cache_usage_perc=0.4",  # which says nothing of a queue
        *(f"TEXT num_requests_waiting={bad}" for bad in ("nan", "-1", "inf", "1e300", "x", "")),
        *(
            f'JSON {{"num_requests_waiting": {bad}}}'
            for bad in ("null", "true", '"3"', "-3", "1e300", "NaN", "9" * 5000)
        ),
        f"TEXT num_requests_waiting=3, {'x' * 9000}",
        f"JSON {'[' * 5000}",
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_makes_no_sense_is_nothing(value: object) -> None:
    assert read_load_header(value) is None


@pytest.mark.parametrize("usage", ["nan", "-0.1", "1.5", "40"])
def test_a_cache_usage_that_is_none_is_left_out(usage: str) -> None:
    value = f"TEXT num_requests_waiting=3, kv_cache_usage_perc={usage}"
    assert read_load_header(value) == HeaderLoad(waiting=3)


@given(st.text() | st.binary().map(lambda b: f"JSON {b.decode('latin-1')}"))
def test_it_never_raises(value: str) -> None:
    read_load_header(value)
    router = make_router(1)
    with router.acquire(chat("x")) as lease:
        lease.heard_load(value)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def router(clock: FakeClock) -> RouterCore:
    return make_router([A, B], clock=clock)


def reply(router: RouterCore, value: str | None, at: str = A) -> None:
    with router.acquire(chat(text(0, 300)), exclude=[B if at == A else A]) as lease:
        lease.heard_load(value)


def test_it_is_a_report_of_load(router: RouterCore) -> None:
    reply(router, VLLM)
    first, second = router.stats().endpoints
    assert first.load == EngineLoad(running=0, waiting=3, kv_usage=0.4)
    assert second.load is None
    reply(router, None)
    reply(router, "TEXT num_requests_waiting=nan")
    assert router.stats().endpoints[0].load == first.load


def test_who_has_a_queue_is_spared(router: RouterCore) -> None:
    body = chat(text(1, 300))
    home = router.route(body).home
    assert home is not None
    reply(router, "TEXT num_requests_waiting=50", home.id)
    assert router.route(body).endpoint != home


def test_own_requests_that_wait_are_no_others(router: RouterCore) -> None:
    held = [router.acquire(chat(text(n, 300), stream=True), exclude=[B]) for n in range(3)]
    held[0].heard_load("TEXT num_requests_waiting=3")
    assert states(router)[A].foreign_s == 0.0
    held[0].heard_load("TEXT num_requests_waiting=5")
    assert states(router)[A].foreign_s > 0.0
    for lease in held:
        lease.abandon()


def test_it_goes_stale_after_three_of_the_usual_times_between_two(
    router: RouterCore, clock: FakeClock
) -> None:
    for _ in range(30):
        reply(router, VLLM)
        clock.tick(2.0)
    clock.tick(3.5)
    assert router.stats().endpoints[0].load is not None
    clock.tick(1.0)
    assert router.stats().endpoints[0].load is None


def test_what_a_poller_said_of_the_running_ones_stays(router: RouterCore, clock: FakeClock) -> None:
    router.report_load({A: EngineLoad(running=9, waiting=2)})
    crowd = states(router)[A].crowd
    clock.tick(0.5)
    reply(router, VLLM)
    assert router.stats().endpoints[0].load == EngineLoad(running=9, waiting=3, kv_usage=0.4)
    assert states(router)[A].crowd == crowd
    clock.tick(100.0)
    reply(router, VLLM)
    load = router.stats().endpoints[0].load
    assert load is not None
    assert load.running == 0


def test_one_that_counts_all_requests_is_as_good_as_a_poll(router: RouterCore) -> None:
    reply(router, f"{VLLM}, named_metrics.num_requests_running=7")
    assert router.stats().endpoints[0].load == EngineLoad(running=7, waiting=3, kv_usage=0.4)
    assert states(router)[A].crowd > 0.0
    assert states(router)[A].foreign_requests == 9  # its own one left out


def test_a_late_one_of_an_endpoint_that_left_is_ignored(router: RouterCore) -> None:
    lease = router.acquire(chat("x"), exclude=[B])
    router.remove(A)
    lease.heard_load(VLLM)
    lease.release()
    router.add(A)
    assert all(endpoint.load is None for endpoint in router.stats().endpoints)
