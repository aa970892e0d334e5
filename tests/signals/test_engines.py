"""Polling of engines on sockets: what is reported, who is asked, and that it all ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator

import anyio
import pytest
import trio

from prefixroute import ConfigurationError, Endpoint, EngineLoad, Router
from prefixroute.signals import EngineMetrics
from prefixroute.testing import EngineModel, FakeCluster, Refuse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello there. " * 30}]}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    simulated = FakeCluster(3, time_scale=0)
    with simulated.serve():
        yield simulated


@pytest.fixture
def router(cluster: FakeCluster) -> Iterator[Router]:
    with Router([str(replica.served_url) for replica in cluster.replicas]) as made:
        yield made


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


def pollers() -> int:
    return sum(thread.name == "prefixroute-metrics" for thread in threading.enumerate())


def loads(router: Router) -> list[EngineLoad | None]:
    return [endpoint.load for endpoint in router.stats().endpoints]


def test_a_round_reports_every_engine(router: Router) -> None:
    found = EngineMetrics(router).poll()
    assert list(found) == [endpoint.id for endpoint in router.endpoints]
    assert all(load.running == load.waiting == 0 for load in found.values())
    assert router.stats().requests == 0  # polls are no requests


@pytest.mark.parametrize("library", [asyncio, trio])
def test_a_round_on_an_event_loop_reports_the_same(router: Router, library: object) -> None:
    poller = EngineMetrics(router)
    expected = poller.poll()
    runs: list[dict[str, EngineLoad]] = []

    async def main() -> None:
        runs.append(await poller.apoll())
        await router.aclose()

    asyncio.run(main()) if library is asyncio else trio.run(main)
    assert runs == [expected]


def test_what_is_read_is_the_engines_load() -> None:
    slow = EngineModel(decode_s_per_token=0.05, output_tokens=2000)
    with FakeCluster(1, model=slow).serve() as urls, Router(urls) as router:
        poller = EngineMetrics(router)
        body = {**CHAT, "stream": True}
        with (
            router.client() as client,
            client.stream("POST", "/chat/completions", json=body) as reply,
        ):
            next(reply.iter_bytes())
            [load] = poller.poll().values()
            assert (load.running, load.waiting) == (1, 0)
        until(lambda: next(iter(poller.poll().values())).running == 0)


def test_polling_in_a_thread_goes_on_and_ends(router: Router) -> None:
    with EngineMetrics(router, every_s=0.02) as poller:
        until(lambda: None not in loads(router))
        poller.start()  # it runs already
        assert pollers() == 1
    assert pollers() == 0


@pytest.mark.parametrize("library", [asyncio, trio])
def test_polling_in_a_task_goes_on_and_ends(router: Router, library: object) -> None:
    async def main() -> None:
        async with EngineMetrics(router, every_s=0.02):
            for _ in range(2000):
                if None not in loads(router):
                    break
                await anyio.sleep(0.01)
        assert None not in loads(router)
        await router.aclose()

    asyncio.run(main()) if library is asyncio else trio.run(main)


def test_one_that_does_not_answer_is_asked_ever_less_often(
    cluster: FakeCluster, router: Router
) -> None:
    cluster.fail(1, Refuse())
    poller = EngineMetrics(router, every_s=0.01)
    waits = []
    for _ in range(6):
        poller._due_at.clear()
        assert router.endpoints[1].id not in poller.poll()
        waits.append(poller._due_at[router.endpoints[1].id] - time.monotonic())
    assert waits[-1] > 4 * waits[0]
    assert router.stats().endpoints[1].failures == 0  # a poller blames nobody
    cluster.heal(1)
    poller._due_at.clear()
    assert router.endpoints[1].id in poller.poll()
    assert poller._due_at[router.endpoints[1].id] == 0.0


def test_endpoints_without_metrics_are_fine(cluster: FakeCluster) -> None:
    with Router(["http://127.0.0.1:1/v1", str(cluster.replicas[0].served_url)]) as router:
        poller = EngineMetrics(router)
        assert list(poller.poll()) == [router.endpoints[1].id]
        assert EngineMetrics(router, path="/health").poll() == {}


def test_who_has_left_is_forgotten(router: Router) -> None:
    poller = EngineMetrics(router)
    poller.poll()
    gone = router.endpoints[0]
    router.remove(gone)
    poller.poll()
    assert gone.id not in poller._due_at


def test_the_endpoints_key_is_sent(cluster: FakeCluster) -> None:
    url = str(cluster.replicas[0].served_url)
    with Router([Endpoint(url, api_key="its-own")]) as router:
        EngineMetrics(router).poll()
    [asked] = [request for request in cluster.requests if request.path == "/metrics"]
    assert ("authorization", "Bearer its-own") in [(n.lower(), v) for n, v in asked.headers]


def test_a_stale_report_is_not_shown(router: Router) -> None:
    poller = EngineMetrics(router)
    poller.poll()
    time.sleep(0.01)
    poller.poll()
    assert None not in loads(router)
    router._clock = lambda: time.monotonic() + 1000.0
    assert loads(router) == [None] * 3


def test_pollers_do_not_begin_together(router: Router) -> None:
    first = {EngineMetrics(router)._random.uniform(0.0, 1.0) for _ in range(50)}
    assert len(first) == 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_polls_by_itself(router: Router) -> None:
    with EngineMetrics(router, every_s=0.02):
        until(lambda: None not in loads(router))
        child = os.fork()
        if child == 0:
            running = pollers()
            os._exit(running)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"every_s": 0}, "every_s"),
        ({"every_s": "1"}, "every_s"),
        ({"path": "metrics"}, "path"),
        ({"path": None}, "path"),
    ],
)
def test_what_cannot_work_is_refused(
    router: Router, settings: dict[str, object], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"EngineMetrics\({name}="):
        EngineMetrics(router, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a Router"):
        EngineMetrics("http://a")  # type: ignore[arg-type]


def test_case_31_polls_touch_no_counters(router: Router) -> None:
    held = [router.acquire(CHAT) for _ in range(20)]
    before = [endpoint.in_flight for endpoint in router.stats().endpoints]
    EngineMetrics(router).poll()
    assert [endpoint.in_flight for endpoint in router.stats().endpoints] == before
    for lease in held:
        lease.release()


class Paused:
    """A source of loads that does not answer until it is told to: a server that is stopped."""

    def __init__(self, router: Router) -> None:
        self.endpoints, self.report_load = router.endpoints, router.report_load
        self.asked, self.goes_on = threading.Event(), threading.Event()
        self._router = router

    def ask(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        self.asked.set()
        self.goes_on.wait()
        return self._router.ask(endpoint, path, timeout_s=timeout_s)

    async def aask(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        raise NotImplementedError


def test_case_42_a_signal_that_stalls_delays_no_request(router: Router) -> None:
    paused = Paused(router)
    with EngineMetrics(paused, every_s=0.01), router.client() as client:
        try:
            paused.asked.wait()
            for _ in range(20):  # all of them while nothing answers the poller
                assert client.post("/chat/completions", json=CHAT).status_code == 200
            assert loads(router) == [None] * 3  # local knowledge alone
        finally:
            paused.goes_on.set()
        until(lambda: None not in loads(router))  # and the view heals
