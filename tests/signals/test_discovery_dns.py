"""DNS as a source: a real name server on loopback whose records change while requests are sent."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from prefixroute import ConfigurationError, Router, SourceUnavailable
from prefixroute.signals import Discovery, DnsSource
from prefixroute.testing import EngineModel, FakeCluster
from tests.signals.nameserver import SILENT, NameServer, serving_names
from tests.signals.support import CHAT, port_of, until

GPU = "gpu.default.svc.test"


@pytest.fixture(scope="module")
def server() -> Iterator[NameServer]:
    with serving_names() as made:
        yield made


@pytest.fixture
def names(server: NameServer) -> NameServer:
    server.records, server.extra, server.asked = {}, {}, []
    server.ttl, server.ttls, server.failure = 1, {}, None
    return server


def source(names: NameServer, **changes: Any) -> DnsSource:
    return replace(DnsSource(GPU, port=8000, resolver=names.resolver, timeout_s=10.0), **changes)


def urls(found: DnsSource) -> list[str]:
    return [endpoint.url for endpoint in found.endpoints()]


# -- what an answer means ------------------------------------------------------------


def test_each_address_is_an_endpoint(names: NameServer) -> None:
    names.set(GPU, "A", "10.0.0.1", "10.0.0.2")
    found = source(names, settings={"api_key": "its-own", "weight": 2.0}).endpoints()
    assert sorted(e.id for e in found) == ["http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1"]
    assert {(e.api_key, e.weight) for e in found} == {("its-own", 2.0)}


def test_an_ipv6_address_gets_its_brackets(names: NameServer) -> None:
    names.set(GPU, "AAAA", "fd00::1")
    assert urls(source(names, record="AAAA")) == ["http://[fd00::1]:8000/v1"]
    assert urls(source(names, record="AAAA", port=None)) == ["http://[fd00::1]/v1"]


def test_hundreds_of_addresses_come_over_tcp(names: NameServer) -> None:
    names.set(GPU, "A", *(f"10.0.{i // 250}.{i % 250 + 1}" for i in range(600)))
    assert len(set(urls(source(names)))) == 600
    assert [protocol for name, _, protocol in names.asked if name == GPU] == ["udp", "tcp"]


def test_an_alias_is_followed(names: NameServer) -> None:
    names.set("front.test", "CNAME", f"{GPU}.")
    names.set(GPU, "A", "10.0.0.1")
    assert urls(source(names, name="front.test.")) == ["http://10.0.0.1:8000/v1"]


def test_the_search_path_is_used(names: NameServer) -> None:
    names.set(GPU, "A", "10.0.0.1")
    assert urls(source(names, name="gpu")) == ["http://10.0.0.1:8000/v1"]


@pytest.mark.parametrize(("ttl", "again_in_s"), [(0, 2.0), (5, 5.0), (30, 30.0), (86_400, 60.0)])
def test_the_ttl_says_when_to_ask_again(names: NameServer, ttl: int, again_in_s: float) -> None:
    names.ttl = ttl
    names.set(GPU, "A", "10.0.0.1")
    found = source(names, min_ttl_s=2.0)
    assert found.open().read().again_in_s == again_in_s
    with Router(found.endpoints()) as router:
        follow = Discovery(router, found)
        pauses = {follow._read(found.open()) for _ in range(20)}
    assert 0.8 * again_in_s <= min(pauses) <= max(pauses) <= again_in_s  # never after the TTL
    assert len(pauses) > 10  # and not all processes at once


def test_the_shortest_ttl_of_an_alias_counts(names: NameServer) -> None:
    names.set("front.test", "CNAME", f"{GPU}.")
    names.ttls = {"CNAME": 3, "A": 7}
    names.set(GPU, "A", "10.0.0.1")
    assert source(names, name="front.test.").open().read().again_in_s == 3.0


def test_a_name_that_is_not_there_names_nobody(names: NameServer) -> None:
    assert source(names).open().read().note == "there is no such name (NXDOMAIN)"
    names.set(GPU, "AAAA", "fd00::1")
    assert source(names).open().read().note == "the name has no A record"
    with pytest.raises(SourceUnavailable, match=r"names no endpoint.*no A record"):
        source(names).endpoints()


@pytest.mark.parametrize("failure", ["SERVFAIL", "REFUSED", SILENT])
def test_a_failure_is_no_answer(names: NameServer, failure: str) -> None:
    names.set(GPU, "A", "10.0.0.1")
    names.failure = failure
    with pytest.raises(SourceUnavailable, match=f"A of {GPU}: "):
        source(names, timeout_s=0.5).endpoints()


# -- services --------------------------------------------------------------------------


def service(names: NameServer, *lines: str) -> None:
    names.set(f"_http._tcp.{GPU}", "SRV", *lines)


def targets(names: NameServer, **changes: Any) -> DnsSource:
    return source(names, name=f"_http._tcp.{GPU}", record="SRV", port=None, **changes)


def test_a_service_gives_ports_and_names_that_last(names: NameServer) -> None:
    service(names, f"0 50 8000 gpu-0.{GPU}.", f"0 50 8001 gpu-1.{GPU}.")
    names.set(f"gpu-0.{GPU}", "A", "10.0.0.1")
    names.set(f"gpu-1.{GPU}", "AAAA", "fd00::1")
    found = {e.id: e for e in targets(names).endpoints()}
    assert {name: e.url for name, e in found.items()} == {
        f"http://gpu-0.{GPU}:8000/v1": "http://10.0.0.1:8000/v1",
        f"http://gpu-1.{GPU}:8001/v1": "http://[fd00::1]:8001/v1",
    }
    assert {e.weight for e in found.values()} == {1.0}


def test_addresses_that_come_along_are_not_asked_for(names: NameServer) -> None:
    service(names, f"0 50 8000 gpu-0.{GPU}.")
    names.extra[f"gpu-0.{GPU}", "A"] = ["10.0.0.9", "10.0.0.1"]
    assert urls(targets(names)) == ["http://10.0.0.1:8000/v1"]  # of several always the same
    assert [kind for _, kind, _ in names.asked] == ["SRV"]


def test_priorities_are_tiers_and_weights_relative(names: NameServer) -> None:
    service(names, "0 10 80 a.test.", "0 30 80 b.test.", "1 0 80 c.test.")
    for number, host in enumerate("abc"):
        names.set(f"{host}.test", "A", f"10.0.0.{number}")
    found = targets(names, settings={"weight": 2.0}).endpoints()
    assert [(e.id, e.tier, e.weight) for e in sorted(found, key=lambda e: e.id)] == [
        ("http://a.test/v1", 0, 2.0),
        ("http://b.test/v1", 0, 6.0),
        ("http://c.test/v1", 1, 0.0),
    ]


def test_a_target_without_address_is_left_out(names: NameServer) -> None:
    service(names, "0 1 80 a.test.", "0 1 80 gone.test.", "0 1 80 .")
    names.set("a.test", "A", "10.0.0.1")
    assert urls(targets(names)) == ["http://10.0.0.1/v1"]
    service(names, "0 0 0 .")  # "decidedly not available"
    for scheme in ("http", "https"):
        assert targets(names, scheme=scheme).open().read().endpoints == ()


def test_the_shortest_ttl_of_a_service_and_its_targets_counts(names: NameServer) -> None:
    names.ttls = {"SRV": 9, "A": 3, "AAAA": 5}
    service(names, "0 1 80 a.test.")
    names.set("a.test", "AAAA", "fd00::1")
    assert targets(names).open().read().again_in_s == 5.0
    names.set("a.test", "A", "10.0.0.1")
    assert targets(names).open().read().again_in_s == 3.0
    names.extra["a.test", "AAAA"] = ["fd00::1"]
    assert targets(names).open().read().again_in_s == 5.0


def test_with_tls_the_name_of_a_target_stays_in_its_url(names: NameServer) -> None:
    service(names, "0 1 8443 a.test.")
    assert urls(targets(names, scheme="https")) == ["https://a.test:8443/v1"]
    assert [kind for _, kind, _ in names.asked] == ["SRV"]


def test_a_pod_that_returns_elsewhere_keeps_its_place(names: NameServer) -> None:
    service(names, *(f"0 50 8000 gpu-{i}.{GPU}." for i in range(4)))
    for number in range(4):
        names.set(f"gpu-{number}.{GPU}", "A", f"10.0.0.{number}")
    found = targets(names)
    bodies = [
        {"messages": [{"role": "user", "content": f"Question {i}. " * 50}]} for i in range(40)
    ]
    with Router(found.endpoints()) as router:
        follow = Discovery(router, found)
        before = [router.route(body).endpoint.id for body in bodies]
        kept = router._members.find(f"http://gpu-0.{GPU}:8000/v1")
        print_ = router.fingerprint
        names.set(f"gpu-2.{GPU}", "A", "10.0.7.7")
        look(follow)
        assert "http://10.0.7.7:8000/v1" in {e.url for e in router.endpoints}
        assert [router.route(body).endpoint.id for body in bodies] == before
        assert router.fingerprint == print_
        assert router._members.find(f"http://gpu-0.{GPU}:8000/v1") is kept


def look(follow: Discovery) -> None:
    """One round, without a thread."""
    follow._read(follow._source.open())
    follow._applier.step(threading.Event())


# -- glitches ----------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["SERVFAIL", SILENT, "NXDOMAIN"])
def test_a_glitch_changes_nothing_and_is_told_once(
    names: NameServer, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    names.set(GPU, "A", "10.0.0.1", "10.0.0.2")
    found = source(names, timeout_s=1.0)
    with caplog.at_level("INFO", "prefixroute"), Router(found.endpoints()) as router:
        follow = Discovery(router, found)
        before = router.endpoints
        names.failure = failure
        for _ in range(2):
            look(follow)
        assert router.endpoints == before
        assert str(follow.trouble) in repr(follow)
        names.failure = None
        for _ in range(2):
            look(follow)
        assert "the last good list" not in repr(follow)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]


def test_a_name_that_stays_away_is_believed_in_the_end(names: NameServer) -> None:
    names.set(GPU, "A", "10.0.0.1", "10.0.0.2")
    found = source(names)
    with Router([*found.endpoints(), "http://fallback"]) as router:
        follow = Discovery(router, found, grace_s=0.0, keep=["http://fallback"])
        names.delete(GPU)
        look(follow)
        assert [e.url for e in router.endpoints] == ["http://fallback/v1"]


# -- under load ----------------------------------------------------------------------------


class _Forward(socketserver.BaseRequestHandler):
    """Hands bytes on between one address and another."""

    to: tuple[str, int]

    def handle(self) -> None:
        with socket.create_connection(self.to) as there:
            back = threading.Thread(target=_pump, args=(there, self.request), daemon=True)
            back.start()
            _pump(self.request, there)
            back.join()


def _pump(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 64


@contextmanager
def on_one_port(cluster: FakeCluster) -> Iterator[int]:
    """Give the replicas addresses of their own, 127.0.0.11 and so on, and one port."""
    with ExitStack() as stack:
        port = 0
        for number, replica in enumerate(cluster.replicas):
            to = ("127.0.0.1", port_of(replica))
            handler = type("Forward", (_Forward,), {"to": to})
            try:
                server = _Server((f"127.0.0.{11 + number}", port), handler)
            except OSError as error:
                pytest.skip(f"this system has no further loopback addresses: {error}")
            port = server.server_address[1]
            stack.callback(server.server_close)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield port


class Load:
    """Callers who stream chats without pause; what became of each call."""

    def __init__(self, router: Router) -> None:
        self._router, self._over = router, threading.Event()
        self.ends: list[tuple[str, int, bool]] = []  # URL, status, whether it was whole

    def _call(self, caller: int) -> None:
        with self._router.client() as client:
            turn = 0
            while not self._over.is_set():
                turn += 1
                text = f"Caller {caller}, chat {turn % 7}. " * 40
                body = {**CHAT, "stream": True, "messages": [{"role": "user", "content": text}]}
                with client.stream("POST", "/chat/completions", json=body) as reply:
                    whole = b"".join(reply.iter_bytes()).rstrip().endswith(b"data: [DONE]")
                    went = reply.extensions["prefixroute"].endpoint.url
                    self.ends.append((went, reply.status_code, whole))

    @contextmanager
    def running(self, callers: int = 6) -> Iterator[Load]:
        with ThreadPoolExecutor(callers) as pool:
            calls = [pool.submit(self._call, number) for number in range(callers)]
            try:
                yield self
            finally:
                self._over.set()
            for call in calls:
                call.result()  # whatever it raised


@pytest.mark.parametrize("record", ["A", "SRV"])
def test_traffic_follows_the_records_and_no_request_is_lost(names: NameServer, record: str) -> None:
    cluster = FakeCluster(4, model=EngineModel(output_tokens=24), time_scale=0.2)
    with cluster.serve(), ExitStack() as stack:
        if record == "A":
            port = stack.enter_context(on_one_port(cluster))
            at = [f"http://127.0.0.{11 + i}:{port}/v1" for i in range(4)]
            found = source(names, port=port)

            def publish(*replicas: int) -> None:
                names.set(GPU, "A", *(f"127.0.0.{11 + i}" for i in replicas))
        else:
            at = [f"http://127.0.0.1:{port_of(replica)}/v1" for replica in cluster.replicas]
            found = targets(names)
            ports = [port_of(replica) for replica in cluster.replicas]

            def publish(*replicas: int) -> None:
                service(names, *(f"0 50 {ports[i]} gpu-{i}.{GPU}." for i in replicas))
                for i in replicas:
                    names.set(f"gpu-{i}.{GPU}", "A", "127.0.0.1")

        publish(0, 1, 2)
        router = stack.enter_context(Router(found.endpoints()))
        stack.enter_context(Discovery(router, found))
        with Load(router).running() as load:
            until(lambda: {at[0], at[1], at[2]} <= {url for url, *_ in load.ends})
            publish(1, 2, 3)
            until(lambda: at[0] not in {e.url for e in router.endpoints})
            cluster.stop(0)  # as the pod does: whoever still sent there would lose a request
            until(lambda: at[3] in {url for url, *_ in load.ends})
            publish(3)
            until(lambda: {e.url for e in router.endpoints} == {at[3]})
            cluster.stop(1)
            cluster.stop(2)
            count = len(load.ends)
            until(lambda: len(load.ends) > count + 12)
            assert {url for url, *_ in load.ends[count + 6 :]} == {at[3]}
        assert {end[1:] for end in load.ends} == {(200, True)}
        stats = router.stats()
        assert stats.in_flight == 0
        assert sum(endpoint.failures for endpoint in stats.endpoints) == 0


def test_a_stream_goes_on_at_an_endpoint_that_leaves(names: NameServer) -> None:
    slow = EngineModel(decode_s_per_token=0.02, output_tokens=100)
    cluster = FakeCluster(2, model=slow)
    with cluster.serve():
        ports = [port_of(replica) for replica in cluster.replicas]
        names.set(f"gpu-0.{GPU}", "A", "127.0.0.1")
        names.set(f"gpu-1.{GPU}", "A", "127.0.0.1")
        service(names, f"0 1 {ports[0]} gpu-0.{GPU}.")
        found = targets(names)
        with Router(found.endpoints()) as router, Discovery(router, found):
            body = {**CHAT, "stream": True}
            with (
                router.client() as client,
                client.stream("POST", "/chat/completions", json=body) as reply,
            ):
                parts = reply.iter_bytes()
                text = next(parts)
                service(names, f"0 1 {ports[1]} gpu-1.{GPU}.")
                until(lambda: states(router) == ["draining", "healthy"])
                assert client.post("/chat/completions", json=CHAT).status_code == 200
                assert [e.in_flight for e in router.stats().endpoints] == [1, 0]
                text += b"".join(parts)
            assert text.rstrip().endswith(b"data: [DONE]")
            until(lambda: len(router.endpoints) == 1)
            assert f"gpu-1.{GPU}" in router.endpoints[0].id
            assert router.stats().in_flight == 0


def states(router: Router) -> list[str]:
    return [endpoint.state.value for endpoint in router.stats().endpoints]


def test_a_lookup_that_hangs_delays_neither_requests_nor_the_end(names: NameServer) -> None:
    names.failure = SILENT
    with FakeCluster(1, time_scale=0).serve() as served, Router(served) as router:
        with Discovery(router, source(names, timeout_s=120.0)), router.client() as client:
            until(lambda: names.asked)
            for _ in range(20):
                assert client.post("/chat/completions", json=CHAT).status_code == 200
        names.failure = None  # the thread ends with its next try


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"name": "http://gpu"}, "name="),
        ({"name": ""}, "name="),
        ({"record": "MX"}, "record='MX'"),
        ({"port": 0}, "port=0"),
        ({"port": "8000"}, "port='8000'"),
        ({"scheme": "ftp"}, "scheme='ftp'"),
        ({"path": "v1"}, "path='v1'"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"min_ttl_s": 9.0, "max_ttl_s": 5.0}, "max_ttl_s=5.0"),
        ({"resolver": "10.0.0.1"}, "resolver="),
        ({"settings": {"wieght": 2}}, "did you mean 'weight'"),
        ({"settings": {"weight": -1}}, "weight=-1"),
        ({"settings": ["api_key"]}, "was given a list"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DnsSource(**{"name": GPU, **settings})
    assert rule in str(refused.value)


def test_a_missing_extra_is_named(without: Callable[[str], None]) -> None:
    without("dns")
    with pytest.raises(ConfigurationError, match=r"pip install 'prefixroute\[dns\]'"):
        DnsSource(GPU)
