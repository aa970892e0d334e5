"""One router in many threads, and in a forked child."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.lease import Lease
from prefixroute.core.load import EngineLoad
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore
from prefixroute.errors import Saturated

from .support import FakeClock, blocks, chat, make_router, states, text, urls

THREADS = 16


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let threads be interrupted anywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("placement", [Nested(virtual_nodes=32), Fixed(virtual_nodes=32)], ids=type)
def test_counts_end_at_0_and_the_bound_is_never_exceeded(placement: Placement) -> None:
    router = make_router(4, placement=placement)

    def work(number: int) -> None:
        rng = random.Random(number)
        held: list[Lease] = []
        for step in range(150):
            lease = router.acquire(blocks(rng.choice((1, 1, 2, step))))
            held.append(lease)
            decision = lease.decision
            at = decision.candidates.index(decision.endpoint)
            assert decision.bound is not None
            assert decision.in_flight[at] + 1 <= decision.bound  # as it was when it was admitted
            if rng.random() < 0.7:
                one = held.pop(rng.randrange(len(held)))
                one.first_token(rng.randrange(100))
                one.release()
                one.release()
        for lease in held:
            lease.release()

    run_threads(work)
    stats = router.stats()
    assert (stats.in_flight, stats.requests) == (0, THREADS * 150)
    assert all(e.work == 0.0 for e in stats.endpoints)


def test_max_in_flight_holds_among_threads() -> None:
    router = make_router([Endpoint(url, max_in_flight=2) for url in urls(3)])
    most = 0
    full = 0

    def work(number: int) -> None:
        nonlocal most, full
        for step in range(100):
            try:
                with router.acquire(blocks(step % 5)):
                    most = max(most, *(e.in_flight for e in router.stats().endpoints))
            except Saturated:
                full += 1

    run_threads(work)
    assert most <= 2
    assert full > 0
    assert router.stats().in_flight == 0


def test_case_45_add_and_remove_while_routing_from_threads() -> None:
    router = make_router([*urls(3), "http://a"], placement=Nested(virtual_nodes=16))
    done = threading.Event()
    removed: set[str] = set()
    accounts = list(states(router).values())

    def change() -> None:
        rng = random.Random(0)
        for number in range(120):
            name = f"http://new-{number}/v1"
            weight = rng.choice((0.5, 1, 2))
            router.add(Endpoint(name, weight=weight, tier=rng.choice((0, 0, 1))))
            accounts.append(states(router)[name])
            changed = Endpoint("http://a", weight=rng.choice((0, 1, 2)))
            rest = [e for e in router.endpoints if e.id != changed.id]
            router.set_endpoints([changed, *rest])
            router.eject(name)
            router.readmit(name)
            router.report_load({name: EngineLoad(waiting=number % 3)})
            router.remove(name)
            removed.add(name)
        done.set()

    def use(number: int) -> None:
        step = 0
        while not done.is_set():
            step += 1
            gone = set(removed)
            lease = router.acquire(blocks(step % 7, number) if step % 3 else {})
            assert lease.endpoint.id not in gone  # who was removed before gets nothing
            assert lease.endpoint.weight > 0
            lease.first_token(1)
            lease.release()

    run_threads(lambda number: change() if number == 0 else use(number), 8)
    assert router.stats().in_flight == 0
    assert all(state.in_flight == 0 for state in accounts)
    assert all(state.queued == state.backlog == 0.0 for state in accounts)


def test_dropped_leases_of_many_threads_are_all_released() -> None:
    router = make_router(3)

    def work(number: int) -> None:
        for step in range(100):
            lease = router.acquire(blocks(step))
            cycle: list[object] = [lease]
            cycle.append(cycle)
            if step % 10 == 0:
                gc.collect()

    run_threads(work)
    gc.collect()
    assert router.stats().in_flight == 0


def test_a_collection_at_any_allocation_does_not_deadlock() -> None:
    """Finalizers then run inside the lock all the time."""
    router = make_router(3)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(300):
            cycle: list[object] = [router.acquire(blocks(step))]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert router.stats().in_flight == 0


def test_two_threads_that_end_the_same_lease_count_it_once() -> None:
    router = make_router(1)
    keep = router.acquire({})
    for _ in range(200):
        lease = router.acquire({})
        run_threads(lambda _, lease=lease: lease.release(), 2)  # type: ignore[misc]
        assert router.in_flight(keep.endpoint) == 1
    keep.release()


def test_case_19_routing_from_threads_gives_the_same_answers() -> None:
    router = make_router(5)
    bodies = [chat(text(number, 3000)) for number in range(20)]
    expected = [router.route(body) for body in bodies]

    def work(number: int) -> None:
        for body, decision in zip(bodies, expected, strict=True):
            assert router.route(body) == decision

    run_threads(work)


# -- fork ----------------------------------------------------------------------


def fork(test: Callable[[], None]) -> Callable[[], None]:
    test = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(test)  # beside threads
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")(test)


def in_child(work: Callable[[], None]) -> None:
    """Run in a forked child; fail with what failed there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(write, repr(error).encode())
        finally:
            os._exit(code)
    os.close(write)
    said = os.read(read, 65536).decode()
    os.close(read)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said


@fork
def test_case_44_a_child_starts_with_nothing_in_flight_and_routes() -> None:
    router = make_router([Endpoint(url, max_in_flight=4) for url in urls(3)])
    held = [router.acquire(blocks(1, number)) for number in range(12)]
    before = router.stats()

    def child() -> None:
        stats = router.stats()
        assert stats.in_flight == 0
        assert [e.work for e in stats.endpoints] == [0.0] * 3
        for lease in held:  # the parent's: it will end them, not the child
            lease.first_token(3)
            lease.failed(OSError())
            lease.release()
        del held[:]
        gc.collect()
        assert router.stats().in_flight == 0
        assert router.stats().failures == 0
        mine = [router.acquire(blocks(1, number)) for number in range(12)]
        assert router.stats().in_flight == 12
        for lease in mine:
            lease.release()
        assert router.stats().in_flight == 0
        assert router.explain(blocks(1)).requests_seen > 12  # what was learned is kept

    in_child(child)
    assert router.stats() == before
    for lease in held:
        lease.release()


@fork
def test_case_44_a_child_forked_while_a_thread_holds_the_locks_does_not_hang() -> None:
    router = make_router(3)
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with router._change, router._locked():
            holding.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(10)

    def child() -> None:
        with router.acquire(blocks(1)):
            router.add("http://new")
        assert router.stats().in_flight == 0

    in_child(child)
    done.set()
    thread.join(10)
    assert len(router.endpoints) == 3


@fork
def test_a_probe_under_way_is_not_the_childs() -> None:
    clock = FakeClock()
    router = make_router(1, clock=clock)
    for _ in range(5):
        with router.acquire({}) as lease:
            lease.failed(OSError())
    clock.tick(20)
    probe = router.acquire({})

    def child() -> None:
        assert states(router)[urls(1)[0]].health.takes(clock.now)
        with router.acquire({}):
            pass
        assert states(router)[urls(1)[0]].health.ejected_until is None

    in_child(child)
    assert not states(router)[urls(1)[0]].health.takes(clock.now)
    probe.release()


@fork
def test_children_break_ties_each_in_its_own_way() -> None:
    router = make_router(16, seed=None)
    seen = set()
    for _ in range(12):
        read, write = os.pipe()

        def child(write: int = write) -> None:
            os.write(write, router.route({}).endpoint.id.encode())

        in_child(child)
        os.close(write)
        seen.add(os.read(read, 100))
        os.close(read)
    assert len(seen) > 3


@fork
def test_children_place_keys_like_their_parent() -> None:
    router: RouterCore = make_router(5)
    expected = [router.route(blocks(number)).endpoint.id for number in range(50)]

    def child() -> None:
        assert [router.route(blocks(number)).endpoint.id for number in range(50)] == expected

    in_child(child)
