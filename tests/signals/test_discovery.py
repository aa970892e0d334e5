"""A router that follows a source: who joins, rests, leaves; threads, tasks, forks, and the end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from prefixroute import ConfigurationError, Endpoint, Router, SourceUnavailable, signals
from prefixroute.core.events import Event, MembershipChanged
from prefixroute.core.lease import Lease
from prefixroute.signals import Discovery, Listing, Reader, Source
from prefixroute.signals.last_good import LastGood
from prefixroute.signals.reconcile import Reconciler
from prefixroute.testing import FakeCluster
from tests.signals.support import CHAT, until

A, B, C, D = (f"http://{name}/v1" for name in "abcd")


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.changes: list[MembershipChanged] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, MembershipChanged):
            self.changes.append(event)


def listing(*endpoints: Endpoint | str, resting: tuple[Endpoint | str, ...] = ()) -> Listing:
    def made(given: tuple[Endpoint | str, ...]) -> tuple[Endpoint, ...]:
        return tuple(e if isinstance(e, Endpoint) else Endpoint(e) for e in given)

    return Listing(endpoints=made(endpoints), resting=made(resting))


def states(router: Router) -> dict[str, str]:
    return {endpoint.id: endpoint.state.value for endpoint in router.stats().endpoints}


def at(router: Router, name: str) -> Lease:
    """A request in flight at one endpoint."""
    return router.acquire(CHAT, exclude=[e.id for e in router.endpoints if e.id != name])


def reconciler(router: Router, drain_timeout_s: float = 60.0, *keep: str) -> Reconciler:
    return Reconciler(router, drain_timeout_s=drain_timeout_s, keep=frozenset(keep))


# -- who joins, stays, leaves ------------------------------------------------------------------


def test_one_change_is_one_event() -> None:
    seen = Seen()
    router = Router([A, B], observers=[seen])
    follow = reconciler(router)
    follow.follow(listing(Endpoint(B, weight=2.0), C, D), 0.0)
    assert [e.url for e in router.endpoints] == [B, C, D]
    assert seen.changes == [MembershipChanged(joined=(C, D), left=(A,), changed=(B,))]
    follow.follow(listing(D, Endpoint(B, weight=2.0), C), 1.0)  # the order is irrelevant
    assert len(seen.changes) == 1


def test_who_stays_keeps_accounting_and_gets_new_settings() -> None:
    router = Router([A, B])
    with at(router, A):
        kept = router._members.find(A)
        settings = {"weight": 3.0, "api_key": "new", "max_in_flight": 2, "models": ["m"]}
        reconciler(router).follow(listing(Endpoint(A, **settings), B), 0.0)  # type: ignore[arg-type]
        assert router._members.find(A) is kept
        assert kept.in_flight == 1
        assert (kept.endpoint.weight, kept.endpoint.api_key) == (3.0, "new")


def test_who_leaves_finishes_first() -> None:
    router = Router([A, B])
    follow = reconciler(router)
    with at(router, A):
        follow.follow(listing(B, C), 0.0)
        assert states(router) == {A: "draining", B: "healthy", C: "healthy"}
        for _ in range(20):
            assert router.route(CHAT).endpoint.id != A
        follow.settle(59.0)
        assert A in states(router)
    follow.settle(59.0)
    assert set(states(router)) == {B, C}
    assert follow.leaving == frozenset()


def test_who_does_not_finish_in_time_is_removed_and_its_request_goes_on() -> None:
    router = Router([A, B])
    follow = reconciler(router, 60.0)
    with at(router, A) as lease:
        follow.follow(listing(B), 0.0)
        follow.settle(60.0)
        assert set(states(router)) == {B}
        lease.first_token()
    assert router.stats().in_flight == 0


def test_who_comes_back_while_leaving_goes_on_as_before() -> None:
    router = Router([A, B])
    follow = reconciler(router)
    with at(router, A):
        kept = router._members.find(A)
        follow.follow(listing(B), 0.0)
        follow.follow(listing(A, B), 1.0)
        assert states(router) == {A: "healthy", B: "healthy"}
        assert router._members.find(A) is kept
    follow.settle(100.0)
    assert set(states(router)) == {A, B}


def test_who_rests_keeps_its_place_and_joins_only_when_it_is_ready() -> None:
    router = Router([A, B])
    follow = reconciler(router)
    kept = router._members.find(A)
    follow.follow(listing(B, resting=(A, C)), 0.0)
    assert states(router) == {A: "draining", B: "healthy"}
    follow.settle(1e9)  # however long
    follow.follow(listing(A, B, C), 1e9)
    assert set(states(router).values()) == {"healthy"}
    assert router._members.find(A) is kept
    with at(router, A):
        follow.follow(listing(B, resting=(A,)), 1e9)
        follow.follow(listing(B), 1e9)  # it does not come back
        assert states(router) == {A: "draining", B: "healthy"}
        follow.follow(listing(B, resting=(A,)), 1e9)
        assert follow.leaving == frozenset()
    follow.follow(listing(B), 1e9)
    assert set(states(router)) == {B}


def test_another_server_under_a_name_starts_afresh() -> None:
    router = Router([Endpoint("http://10.0.0.1", id="gpu-0"), B])
    follow = reconciler(router)
    before = router._members.find("gpu-0")
    with at(router, "gpu-0"):
        follow.follow(listing(Endpoint("http://10.0.0.2", id="gpu-0"), B), 0.0)
        after = router._members.find("gpu-0")
        assert (before is not after, after.in_flight, before.in_flight) == (True, 0, 1)
        assert states(router) == {"gpu-0": "healthy", B: "healthy"}
    assert before.in_flight == 0


def test_an_address_that_has_passed_to_another_is_the_others() -> None:
    router = Router([Endpoint("http://10.0.0.1", id="gpu-0"), B])
    follow = reconciler(router)
    with at(router, "gpu-0"):
        follow.follow(listing(Endpoint("http://10.0.0.1", id="gpu-1"), B), 0.0)
        assert states(router) == {"gpu-1": "healthy", B: "healthy"}


def test_what_an_operator_drains_stays_so() -> None:
    router = Router([A, B, C])
    router.start_drain(A)
    follow = reconciler(router)
    follow.follow(listing(A, B, C), 0.0)
    follow.follow(listing(B, C, resting=(A,)), 0.0)
    follow.follow(listing(A, B, C), 0.0)
    assert states(router) == {A: "draining", B: "healthy", C: "healthy"}


@pytest.mark.parametrize("name", ["fallback", C])
def test_a_fallback_is_left_alone(name: str) -> None:
    router = Router([A, Endpoint(C, id="fallback", tier=1)])
    follow = reconciler(router, 60.0, name)
    follow.follow(listing(B, Endpoint(C, weight=9.0)), 0.0)  # its URL, as a twin
    assert {e.id: (e.url, e.weight) for e in router.endpoints} == {
        "fallback": (C, 1.0), B: (B, 1.0),
    }  # fmt: skip
    follow.follow(listing(), 0.0)
    assert [e.id for e in router.endpoints] == ["fallback"]


def test_the_last_ones_stay_for_want_of_others() -> None:
    router = Router([A, B])
    follow = reconciler(router)
    follow.follow(listing(), 0.0)
    follow.settle(1e9)
    assert states(router) == {A: "draining", B: "draining"}
    assert router.route(CHAT).reason.value == "panic"
    follow.follow(listing(C), 1e9)
    assert states(router) == {C: "healthy"}


def test_of_twins_in_a_list_one_is_taken_always_the_same() -> None:
    twins = [Endpoint(A, id="y"), Endpoint(A, id="x"), Endpoint(B, id="x")]
    for order in (twins, twins[::-1]):
        router = Router([C])
        reconciler(router).follow(listing(*order), 0.0)
        assert [e.id for e in router.endpoints] == ["x"]


def test_what_somebody_else_adds_or_removes_is_set_right_by_the_next_list() -> None:
    router = Router([A, B])
    follow = reconciler(router)
    follow.follow(listing(A, B), 0.0)
    router.add(C)
    router.remove(A)
    follow.settle(1.0)
    assert C in states(router)  # whoever added it had a reason
    follow.follow(listing(A, B), 2.0)
    assert set(states(router)) == {A, B}


def test_routers_place_alike_whether_they_know_a_resting_endpoint_or_not() -> None:
    router, fresh = Router([A, B, C, D], seed=0), Router([B, C, D], seed=0)
    reconciler(router).follow(listing(B, C, D, resting=(A,)), 0.0)
    for number in range(200):
        body = {"messages": [{"role": "user", "content": f"Question {number}. " * 50}]}
        assert router.route(body).endpoint.id == fresh.route(body).endpoint.id


def test_changes_at_the_same_time_are_not_lost() -> None:
    router = Router([A])
    follow = reconciler(router, 60.0, D)
    change = router.set_endpoints
    meanwhile = threading.Thread(target=router.add, args=(D,))

    def interrupted(endpoints: Callable[[Any], Any]) -> None:
        if not meanwhile.is_alive():
            meanwhile.start()
            meanwhile.join()
        change(endpoints)

    router.set_endpoints = interrupted  # type: ignore[method-assign, assignment]
    follow.follow(listing(A, B), 0.0)
    assert set(states(router)) == {A, B, D}


# -- what is believed ---------------------------------------------------------------------------


def belief(**settings: Any) -> LastGood:
    return LastGood("it", **{"grace_s": 10.0, "min_endpoints": 2, **settings})


def test_too_few_are_believed_after_the_grace_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prefixroute")
    good = belief()
    assert good.believes(listing(A, B), 0.0)
    assert not good.believes(listing(A), 1.0)
    assert not good.believes(listing(A, Endpoint(B, weight=0.0), resting=(C,)), 10.9)
    assert good.doubts_until() == 11.0
    assert good.believes(listing(A), 11.0)
    assert good.believes(listing(A), 12.0)
    assert good.trouble == "names 1 endpoints, 2 are the least"
    assert good.believes(listing(A, B), 13.0)
    assert good.doubts_until() == math.inf
    assert not good.believes(listing(A), 14.0)  # and it starts anew
    assert [(r.levelname, r.getMessage()) for r in caplog.records][:3] == [
        ("WARNING", "it: the last good list is kept: names 1 endpoints, 2 are the least"),
        ("WARNING", "it has long named 1 endpoints, 2 are the least; it is believed"),
        ("INFO", "it is well again: 2 endpoints"),
    ]


def test_a_failure_is_never_believed_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    good = belief(grace_s=0.0, min_endpoints=1)
    for _ in range(3):
        good.failed(OSError("no route"))
    good.failed(KeyError())
    assert (good.misses, good.trouble) == (4, "KeyError")
    assert len(caplog.records) == 1
    assert good.believes(Listing(endpoints=(), note="gone"), 0.0)
    assert good.trouble == "names no endpoint: gone"


# -- functions and lists ---------------------------------------------------------------------


@pytest.fixture
def router() -> Iterator[Router]:
    with Router([A]) as made:
        yield made


def threads() -> int:
    ours = ("prefixroute-discovery", "prefixroute-endpoints")
    return sum(thread.name in ours for thread in threading.enumerate())


def test_a_function_is_called_again_and_again(router: Router) -> None:
    lists: list[list[Endpoint | str]] = [[A], [A, Endpoint(B, weight=2.0)]]
    with Discovery(router, lambda: lists[-1], every_s=0.01) as follow:
        until(lambda: set(states(router)) == {A, B})
        lists.append([B])
        until(lambda: set(states(router)) == {B})
        follow.start()  # it runs already
        assert threads() == 2
    assert threads() == 0
    assert set(states(router)) == {B}  # it has what it had


def test_a_list_is_a_source(router: Router) -> None:
    with Discovery(router, [B, Endpoint(C)]):
        until(lambda: set(states(router)) == {B, C})


def test_a_source_of_ones_own(router: Router) -> None:
    class Own(Source, Reader):
        def open(self) -> Reader:
            return self

        def read(self) -> Listing:
            return listing(B)

    assert [e.url for e in Own().endpoints()] == [B]
    with Discovery(router, Own()):
        until(lambda: set(states(router)) == {B})


def test_a_source_that_raises_changes_nothing_and_is_asked_less_often(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[float] = []

    def broken() -> list[str]:
        asked.append(time.monotonic())
        if len(asked) > 8:
            return [B]
        raise ConnectionError("no route to the registry")

    with Discovery(router, broken, every_s=0.01) as follow:
        until(lambda: len(asked) > 7)
        assert set(states(router)) == {A}
        assert "no route to the registry" in repr(follow)
        until(lambda: set(states(router)) == {B})
        assert follow.trouble is None
    assert asked[7] - asked[6] > 16 * 0.01
    assert [r.levelname for r in caplog.records if r.levelname == "WARNING"] == ["WARNING"]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("http://a", "must be a list"),
        (["gpu-0"], "needs a scheme"),
        ([A, A], "are the same"),
        (5, "must be a list"),
        ([Endpoint(A, weight=0.0)], "has weight=0"),
    ],
)
def test_a_list_that_cannot_work_changes_nothing(router: Router, named: Any, why: str) -> None:
    with Discovery(router, lambda: named, every_s=0.01) as follow:
        until(lambda: follow.trouble)
        assert why in str(follow.trouble)
        assert set(states(router)) == {A}


def test_an_empty_list_is_doubted(router: Router) -> None:
    names: list[str] = []
    with Discovery(router, lambda: names, every_s=0.01) as follow:
        until(lambda: follow.trouble)
        assert follow.trouble == "names no endpoint: an empty list"
        assert states(router) == {A: "healthy"}


def test_a_source_that_hangs_delays_neither_requests_nor_the_end() -> None:
    goes_on, asked = threading.Event(), threading.Event()

    def hangs() -> list[str]:
        asked.set()
        goes_on.wait()
        return [B]

    with FakeCluster(1, time_scale=0).serve() as served, Router(served) as router:
        before = router.endpoints
        follow = Discovery(router, hangs)
        with follow, router.client() as client:
            asked.wait()
            for _ in range(20):
                assert client.post("/chat/completions", json=CHAT).status_code == 200
            left = follow._thread
        assert left is not None
        assert left.is_alive()  # nothing can end it...
        goes_on.set()
        left.join(20)
        assert not left.is_alive()
        assert router.endpoints == before  # ...but it has no say any more


# -- on an event loop -------------------------------------------------------------------------


def run(library: object, main: Callable[[], Any]) -> None:
    asyncio.run(main()) if library is asyncio else trio.run(main)


async def held(condition: Callable[[], object]) -> None:
    with anyio.fail_after(40):
        while not condition():  # noqa: ASYNC110 - it is a thread's doing
            await anyio.sleep(0.005)


loops = pytest.mark.parametrize("library", [asyncio, trio])


@loops
def test_a_source_that_blocks_is_read_in_a_thread(router: Router, library: object) -> None:
    names: list[str] = [A]
    at_once: set[int] = set()

    def blocks() -> list[str]:
        at_once.add(threading.get_ident())
        return names

    async def main() -> None:
        async with Discovery(router, blocks, every_s=0.01):
            names[:] = [B, C]
            await held(lambda: set(states(router)) == {B, C})
        assert threads() == 0
        assert threading.get_ident() not in at_once

    run(library, main)


@loops
def test_an_async_function_runs_on_the_loop(router: Router, library: object) -> None:
    names: list[list[str] | Exception] = [[A], OSError("away"), [B]]
    called: set[int] = set()

    async def asks() -> list[str]:
        called.add(threading.get_ident())
        await anyio.lowlevel.checkpoint()
        named = names.pop(0) if len(names) > 1 else names[0]
        if isinstance(named, Exception):
            raise named
        return named

    async def main() -> None:
        async with Discovery(router, asks, every_s=0.01) as follow:
            await held(lambda: set(states(router)) == {B})
            assert follow.trouble is None
        assert called == {threading.get_ident()}
        assert threads() == 0

    run(library, main)


@loops
def test_an_async_iterator_gives_lists_when_it_likes(router: Router, library: object) -> None:
    calls: list[str] = []

    async def lists() -> AsyncIterator[list[str]]:
        calls.append("begun")
        try:
            if len(calls) == 1:
                yield [A, B]
                raise OSError("lost the connection")
            yield [B, C]
            await anyio.sleep_forever()
        finally:
            calls.append("over")

    async def main() -> None:
        async with Discovery(router, lists, every_s=0.01):
            await held(lambda: set(states(router)) == {B, C})
        assert calls == ["begun", "over", "begun", "over"]

    run(library, main)


@loops
def test_an_iterator_that_ends_has_said_its_last_word(router: Router, library: object) -> None:
    async def once() -> AsyncIterator[list[str]]:
        yield [B]

    async def nothing() -> AsyncIterator[list[str]]:
        for _ in ():
            yield []

    async def main() -> None:
        async with Discovery(router, once(), every_s=0.01) as follow:
            await held(lambda: set(states(router)) == {B})
            assert follow.trouble is None
        async with Discovery(router, nothing, every_s=0.01) as follow:
            await held(lambda: follow.trouble)
            assert follow.trouble == "it ended without naming an endpoint"

    run(library, main)


@loops
def test_a_change_is_not_made_on_the_loop(router: Router, library: object) -> None:
    made_by: set[int] = set()
    change = router.set_endpoints

    def noted(endpoints: Any) -> None:
        made_by.add(threading.get_ident())
        change(endpoints)

    router.set_endpoints = noted  # type: ignore[method-assign]

    async def names() -> list[str]:
        return [B]

    async def main() -> None:
        async with Discovery(router, names):
            await held(lambda: set(states(router)) == {B})
        assert made_by
        assert threading.get_ident() not in made_by

    run(library, main)


def test_of_changes_that_come_meanwhile_the_last_is_made(router: Router) -> None:
    changing, goes_on = threading.Event(), threading.Event()
    change, made = router.set_endpoints, []

    def slow(endpoints: Any) -> None:
        change(endpoints)
        made.append(set(states(router)))
        changing.set()
        goes_on.wait()

    router.set_endpoints = slow  # type: ignore[method-assign]
    lists = iter([[B], [C], [D], [A, B], [C, D]])
    last = threading.Event()

    def names() -> Listing:
        named = next(lists)
        if named != [B]:
            changing.wait()
        if named == [C, D]:
            last.set()
        return replace(listing(*named), again_in_s=3600.0 if last.is_set() else 0.0)

    with Discovery(router, names) as follow:
        last.wait()
        until(lambda: D in {e.url for e in pending(follow)})
        goes_on.set()
        until(lambda: set(states(router)) == {C, D})
    assert made == [{B}, {C, D}]


def pending(follow: Discovery) -> tuple[Endpoint, ...]:
    heard = follow._applier._next
    return () if heard is None else heard.endpoints


def test_a_change_that_fails_is_made_again(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    change, failures = router.set_endpoints, [RuntimeError("once"), RuntimeError("twice")]

    def fails(endpoints: Any) -> None:
        if failures:
            raise failures.pop()
        change(endpoints)

    router.set_endpoints = fails  # type: ignore[method-assign]
    with Discovery(router, lambda: Listing(endpoints=(Endpoint(B),), again_in_s=9e9), every_s=0.01):
        until(lambda: set(states(router)) == {B})
    assert sum("it is tried again" in record.message for record in caplog.records) == 2


@loops
def test_drained_endpoints_are_removed_while_an_iterator_waits(
    router: Router, library: object
) -> None:
    async def waits() -> AsyncIterator[list[str]]:
        yield [B]
        await anyio.sleep_forever()

    async def main() -> None:
        lease = router.acquire(CHAT)
        async with Discovery(router, waits):
            await held(lambda: states(router) == {A: "draining", B: "healthy"})
            lease.release()
            await held(lambda: set(states(router)) == {B})

    run(library, main)


def test_what_is_async_needs_a_loop(router: Router) -> None:
    async def asks() -> list[str]:
        return [B]

    follow = Discovery(router, asks)
    with pytest.raises(ConfigurationError, match="async with"):
        follow.start()
    hidden = Discovery(router, lambda: asks(), every_s=0.01)  # noqa: PLW0108 - hides it
    with hidden:
        until(lambda: hidden.trouble)
        assert "make it an 'async def'" in str(hidden.trouble)
    assert set(states(router)) == {A}


# -- processes and the end ------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_follows_by_itself(router: Router) -> None:
    parent = os.getpid()

    def names() -> list[str]:
        return [B] if os.getpid() == parent else [C]

    with Discovery(router, names, every_s=0.01) as follow:
        until(lambda: set(states(router)) == {B})
        follow._applier._lock.acquire()  # a thread that the child does not have may be at it
        child = os.fork()
        if child == 0:
            code = 1
            try:
                until(lambda: set(states(router)) == {C})
                code = 0 if threads() == 2 else 2
            finally:
                os._exit(code)
        follow._applier._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert set(states(router)) == {B}


def test_the_end_leaves_who_drains_draining(router: Router) -> None:
    with router.acquire(CHAT):
        with Discovery(router, [B]):
            until(lambda: states(router) == {A: "draining", B: "healthy"})
        assert threads() == 0
        assert states(router) == {A: "draining", B: "healthy"}


def test_it_can_begin_again(router: Router) -> None:
    follow = Discovery(router, [B])
    for _ in range(2):
        with follow:
            until(lambda: set(states(router)) == {B})
        router.set_endpoints([A])


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"every_s": 0}, "Discovery(every_s=0)"),
        ({"grace_s": -1}, "Discovery(grace_s=-1)"),
        ({"min_endpoints": 0}, "Discovery(min_endpoints=0)"),
        ({"drain_timeout_s": "5"}, "Discovery(drain_timeout_s='5')"),
        ({"keep": "http://a"}, "Discovery(keep='http://a/v1')"),
        ({"keep": 5}, "Discovery(keep='5')"),
        ({"source": "endpoints.toml"}, "must be a source such as FileSource(path)"),
        ({"source": Source}, "must be a source such as FileSource(path)"),
        ({"source": []}, "at least one endpoint"),
        ({"source": 5}, "must be a list of URLs or Endpoints"),
        ({"router": "http://a"}, "must be a Router"),
    ],
)
def test_what_cannot_work_is_refused(router: Router, settings: dict[str, Any], rule: str) -> None:
    given: dict[str, Any] = {"router": router, "source": [A], **settings}
    with pytest.raises(ConfigurationError) as refused:
        Discovery(given.pop("router"), given.pop("source"), **given)
    assert rule in str(refused.value)


def test_a_kept_endpoint_may_be_spelled_in_any_way() -> None:
    with Router([A, B, C, D]) as router:
        kept: list[Endpoint | str] = ["HTTP://B:80/", Endpoint(C), "d"]
        with Discovery(router, [A], keep=kept, drain_timeout_s=0.0):
            until(lambda: len(router.endpoints) == 3)
        assert [e.url for e in router.endpoints] == [A, B, C]


def test_a_source_that_names_nobody_gives_no_first_list() -> None:
    class Nobody(Source, Reader):
        closed = False

        def open(self) -> Reader:
            return self

        def read(self) -> Listing:
            return Listing(endpoints=(), note="all are away")

        def close(self) -> None:
            self.closed = True

    source = Nobody()
    with pytest.raises(SourceUnavailable, match=r"names no endpoint .* now: all are away"):
        source.endpoints()
    assert source.closed


def test_importing_loads_no_extra_and_needs_none() -> None:
    code = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"prometheus_client", "dns", "kubernetes", "yaml"}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Block())
from prefixroute import Router
from prefixroute.signals import Discovery, DnsSource, FileSource, KubernetesSource, Listing
Discovery(Router(["http://a"]), FileSource("endpoints.json"))
try:
    from prefixroute.signals import EngineMetrics
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install 'prefixroute[prometheus]'" in done.stdout


def test_public_names_are_sorted_and_there() -> None:
    assert list(signals.__all__) == sorted(signals.__all__)
    assert all(hasattr(signals, name) for name in signals.__all__)
    assert not hasattr(signals, "Nothing")
