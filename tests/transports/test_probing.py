"""The router's own probes: with the endpoint's key, in a thread that ends, and no request."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpcore
import httpx
import pytest
import trustme

from prefixroute import Endpoint, HealthPolicy, HealthState, Router
from prefixroute.testing import FakeCluster, Loading, Refuse
from prefixroute.transports import probing
from tests.transports.tls import serve_tls, trusting

POLICY = HealthPolicy(probe_every_s=0.02, failures=2, eject_for_s=1000.0, max_eject_for_s=1000.0)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello there. " * 30}]}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    simulated = FakeCluster(2, time_scale=0)
    with simulated.serve():
        yield simulated


@pytest.fixture
def router(cluster: FakeCluster) -> Iterator[Router]:
    urls = [str(replica.served_url) for replica in cluster.replicas]
    with Router(urls, health=POLICY) as made:
        yield made
    until(lambda: not probers())  # before the engines close: a probe may be under way


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not probers())


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


def probers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefixroute-probes"]


def call(router: Router) -> None:
    with router.client() as client:
        client.post("/chat/completions", json=CHAT).raise_for_status()


def state(router: Router, at: int = 0) -> HealthState:
    return router.stats().endpoints[at].state


def test_a_dead_endpoint_is_found_and_one_that_is_back_too(
    cluster: FakeCluster, router: Router
) -> None:
    call(router)
    before = router.stats().requests
    cluster.fail(0, Refuse())
    until(lambda: state(router) is HealthState.EJECTED)  # no request has met it
    cluster.heal(0)
    until(lambda: state(router) is HealthState.HEALTHY)  # long before its 1,000 s are over
    assert router.stats().requests == before
    assert router.stats().in_flight == 0


def test_one_that_is_loading_is_left_alone_and_not_blamed(
    cluster: FakeCluster, router: Router
) -> None:
    cluster.fail(0, Loading())
    call(router)
    until(lambda: state(router) is HealthState.COOLING)
    assert router.stats().endpoints[0].failures == 0
    cluster.heal(0)
    until(lambda: state(router) is HealthState.HEALTHY)


def test_case_40_probes_carry_the_endpoints_own_key() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    router = Router([Endpoint("http://a:1/sub/v1", api_key="secret", headers={"x-own": "1"})])
    pools = router._shared_pools()
    from prefixroute.transports.library import library_named
    from prefixroute.transports.probing import Prober

    prober = Prober(router, pools, every_s=1.0, path="/health")
    pools.sync((library_named("httpx"), None), lambda: httpx.MockTransport(answer))
    assert prober.ask(router.endpoints[0]) == 200
    assert str(seen[0].url) == "http://a:1/sub/health"
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert seen[0].headers["x-own"] == "1"
    assert seen[0].headers["host"] == "a:1"
    router.close()


def test_probes_use_the_endpoints_own_tls() -> None:
    ca = trustme.CA()
    with serve_tls(ca, clients_of=ca) as server:
        shown = trusting(ca, ca.issue_cert("app@example.org"))
        router = Router([Endpoint(server.url, ssl_context=shown)])
        from prefixroute.transports.probing import Prober

        with router:
            prober = Prober(router, router._shared_pools(), every_s=1.0, path="/health")
            assert prober.ask(router.endpoints[0]) == 200
            assert prober.ask(Endpoint(server.url)) is None
        assert server.seen == ["app@example.org"]


def test_a_key_that_cannot_be_had_says_nothing_about_the_endpoint(cluster: FakeCluster) -> None:
    asked = threading.Semaphore(0)

    def broken() -> str:
        asked.release()
        raise OSError("the vault is sealed")

    url, other = (str(replica.served_url) for replica in cluster.replicas)
    router = Router([Endpoint(url, api_key=broken), Endpoint(other)], health=POLICY)
    with router:
        assert router._prober is not None
        router._prober.ensure()
        for _ in range(5):
            assert asked.acquire(timeout=20)  # the others go on being asked
        first, second = router.stats().endpoints
        assert first.failures == second.failures == 0
        assert first.state is HealthState.HEALTHY
    until(lambda: not probers())  # no connection outlives the server


def test_the_thread_begins_with_the_first_call_and_ends_with_the_router(router: Router) -> None:
    assert not probers()
    router.route(CHAT)
    assert not probers()  # deciding needs no network
    call(router)
    call(router)
    assert len(probers()) == 1
    router.close()
    until(lambda: not probers())


class Late:
    """A server that answers a request when it is told to."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/v1"
        self.waiting, self.answer = threading.Event(), threading.Event()
        self.left = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self.listening, self.listening.accept()[0] as connection:
            connection.settimeout(20)
            self.asked = connection.recv(65536)
            self.waiting.set()
            self.answer.wait(20)
            with suppress(ConnectionError):  # who asked may have left, with what came unread
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                while connection.recv(65536):
                    pass
            self.left.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_answered_after_the_router_was_closed_leaves_no_connection(
    asynchronous: bool,
) -> None:
    server = Late()
    router = Router([server.url])

    def ask() -> None:
        with suppress(httpx.TransportError):  # closing may also end it
            if asynchronous:
                asyncio.run(router.aask(server.url, "/health"))
            else:
                router.ask(server.url, "/health")

    asking = threading.Thread(target=ask)
    asking.start()
    assert server.waiting.wait(20)
    router.close()
    server.answer.set()
    asking.join(20)
    assert server.left.wait(20)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_connects_while_the_last_client_closes_leaves_no_connection(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Late()
    server.answer.set()
    with Router([server.url]) as router:
        pools = router._shared_pools()

        def close_and_connect(self: Any, *given: Any, **settings: Any) -> Any:
            monkeypatch.undo()
            pools.close()
            return self.connect_tcp(*given, **settings)

        async def aclose_and_connect(self: Any, *given: Any, **settings: Any) -> Any:
            monkeypatch.undo()
            await pools.aclose(asyncio.get_running_loop())
            return await self.connect_tcp(*given, **settings)

        if asynchronous:
            kind: Any = importlib.import_module("httpcore._backends.auto").AutoBackend
            monkeypatch.setattr(kind, "connect_tcp", aclose_and_connect)
            asyncio.run(router.aask(server.url, "/health"))
        else:
            monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", close_and_connect)
            router.ask(server.url, "/health")
        assert server.left.wait(20)


class Endless:
    """A server whose answers never end: byte by byte, or as fast as it can."""

    def __init__(self, answer: bytes, *, again: bytes, pause_s: float) -> None:
        self._answer, self._again, self._pause_s = answer, again, pause_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(self._answer)
            while True:
                time.sleep(self._pause_s)
                connection.sendall(self._again)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "header by header": (b"HTTP/1.1 200 OK\r\n", b"x", 0.02),
    "byte by byte": (HEAD, b"1\r\nx\r\n", 0.02),
    "as fast as it can": (HEAD, b"100000\r\n" + b"x" * 2**20 + b"\r\n", 0.0),
}


@pytest.fixture(params=ENDLESS.values(), ids=list(ENDLESS))
def endless(request: pytest.FixtureRequest) -> Iterator[Endless]:
    answer, again, pause_s = request.param
    server = Endless(answer, again=again, pause_s=pause_s)
    yield server
    server.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_asked_has_an_end(endless: Endless, asynchronous: bool) -> None:
    def ask(router: Router) -> object:
        if asynchronous:
            return asyncio.run(router.aask(endless.url, "/metrics", timeout_s=0.5))
        return router.ask(endless.url, "/metrics", timeout_s=0.5)

    with Router([endless.url]) as router, pytest.raises(httpx.TransportError):
        ask(router)


def test_one_whose_answer_never_ends_is_found_and_the_others_are_asked_on(
    cluster: FakeCluster, endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_TIMEOUT_S", 0.1)
    other = str(cluster.replicas[0].served_url)
    with Router([Endpoint(other), Endpoint(endless.url, tier=1)], health=POLICY) as router:
        call(router)
        until(lambda: state(router, 1) is HealthState.EJECTED)
        cluster.fail(0, Refuse())
        until(lambda: state(router, 0) is HealthState.EJECTED)
    until(lambda: not probers())


LEFT_OPEN = """
import sys, time
from prefixroute import HealthPolicy, Router

router = Router(sys.argv[1:], health=HealthPolicy(probe_every_s=0.001))
with router.client() as client:
    client.post("/chat/completions", json={"prompt": "Hello"})
time.sleep(0.05)
"""


def test_a_process_ends_quietly_though_its_router_is_open(cluster: FakeCluster) -> None:
    urls = [str(replica.served_url) for replica in cluster.replicas]
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-c", LEFT_OPEN, *urls], check=True, timeout=50, capture_output=True
        )
        assert ended.stderr == b""


FORGOTTEN = """
import gc, sys, threading, time, weakref
from prefixroute import HealthPolicy, Router

router = Router(sys.argv[1:], health=HealthPolicy(probe_every_s=0.02))
with router.client() as client:
    client.post("/chat/completions", json={"prompt": "Hello"})
gone = weakref.ref(router)
del router, client
while gone() is not None or threading.active_count() > 1:
    gc.collect()
    time.sleep(0.01)
"""


def test_a_router_that_is_forgotten_is_collected_and_its_thread_ends(cluster: FakeCluster) -> None:
    url = str(cluster.replicas[0].served_url)
    subprocess.run([sys.executable, "-W", "error", "-c", FORGOTTEN, url], check=True, timeout=50)


def test_without_an_interval_there_is_no_thread(cluster: FakeCluster) -> None:
    with Router([str(cluster.replicas[0].served_url)]) as router:
        call(router)
        assert not probers()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_begins_anew(router: Router) -> None:
    call(router)
    child = os.fork()
    if child == 0:  # the parent's thread isn't here
        inherited = len(probers())
        router.count_call()
        os._exit(10 * inherited + len(probers()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
