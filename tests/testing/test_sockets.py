"""Real loopback sockets: keep-alive, ports that close and open, clients that go away."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import anyio
import httpx
import httpx2
import pytest

from prefixroute.testing import EngineModel, FakeCluster, Refuse
from tests.testing.support import INSTANT, chat, eventually, over_libraries, run

PATH = "/chat/completions"


def address(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    with socket.create_connection(address(url), timeout=5) as raw:
        yield raw


def request_bytes(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [b"POST /v1/completions HTTP/%b" % version, b"host: x", *headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


def received(raw: socket.socket) -> bytes:
    """All until the other side closes."""
    parts = []
    while part := raw.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.fixture(autouse=True)
def quiet_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever asyncio logs, such as an exception in a callback, is a failure."""
    yield
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


@over_libraries
def test_urls_replies_and_reuse(library: ModuleType) -> None:
    cluster = FakeCluster(3, model=INSTANT, time_scale=0)
    with cluster.serve() as urls, library.Client() as client:
        assert len(set(urls)) == 3
        assert [one.served_url for one in cluster.replicas] == urls
        for index, url in enumerate(urls):
            for _ in range(2):
                response = client.post(url + PATH, json=chat())
                assert response.headers["x-replica"] == str(index)
        assert [one.reused_connection for one in cluster.requests] == [False, True] * 3
        assert cluster.requests[0].body == response.request.content
    assert [one.served_url for one in cluster.replicas] == [None] * 3


@over_libraries
def test_idle_connections_are_closed_after_keep_alive(library: ModuleType) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    with cluster.serve(keep_alive_s=0.2) as urls, library.Client() as client:
        client.post(urls[0] + PATH, json=chat())
        client.post(urls[0] + PATH, json=chat())
        time.sleep(0.35)
        client.post(urls[0] + PATH, json=chat())
        assert [one.reused_connection for one in cluster.requests] == [False, True, False]
        with connected(urls[0]) as raw:
            assert raw.recv(1) == b"", "a connection that never asks is closed too"


def test_keep_alive_does_not_cut_a_slow_reply() -> None:
    model = EngineModel(output_tokens=15, decode_s_per_token=0.02)
    cluster = FakeCluster(1, model=model)
    with cluster.serve(keep_alive_s=0.1) as urls, httpx.Client() as client:
        assert client.post(urls[0] + PATH, json=chat(stream=True)).text.endswith("[DONE]\n\n")


def test_a_stopped_replica_refuses_and_comes_back_on_its_port() -> None:
    cluster = FakeCluster(2, model=INSTANT, time_scale=0)
    with cluster.serve() as urls, httpx2.Client() as client:
        client.post(urls[0] + PATH, json=chat("x" * 500))
        cluster.stop(0)
        for _ in range(2):
            with pytest.raises(httpx2.ConnectError):
                client.post(urls[0] + PATH, json=chat())
        assert client.post(urls[1] + PATH, json=chat()).status_code == 200
        cluster.start(0)
        reply = client.post(urls[0] + PATH, json=chat("x" * 500)).json()
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert cluster.stats()[0].requests == 2


@over_libraries
def test_a_dying_replica_breaks_its_streams(library: ModuleType) -> None:
    cluster = FakeCluster(1, model=EngineModel(output_tokens=2000))
    with cluster.serve() as urls, library.Client() as client:
        url = urls[0] + PATH
        with client.stream("POST", url, json=chat(stream=True)) as response:
            parts = response.iter_raw()
            next(parts)
            cluster.stop(0)
            with pytest.raises(library.RemoteProtocolError):
                list(parts)
        assert cluster.stats()[0].running == 0


@over_libraries
def test_a_client_that_goes_away_frees_the_engine(library: ModuleType) -> None:
    cluster = FakeCluster(1, model=EngineModel(output_tokens=2000))
    with cluster.serve() as urls, library.Client() as client:
        url = urls[0] + PATH
        with client.stream("POST", url, json=chat(stream=True)) as response:
            parts = response.iter_raw()
            next(parts)
            assert cluster.stats()[0].running == 1
        eventually(lambda: cluster.stats()[0].running == 0)
        with pytest.raises(library.ReadTimeout):
            client.post(url, json=chat(), timeout=library.Timeout(5, read=0.02))
        eventually(lambda: cluster.stats()[0].cancelled == 2)


def test_many_streams_at_once() -> None:
    model = EngineModel(output_tokens=20, decode_s_per_token=0.02, request_overhead_s=0.001)
    cluster = FakeCluster(4, model=model, time_scale=0.1)

    async def main() -> None:
        limits = httpx2.Limits(max_connections=200)
        async with cluster.serve() as urls, httpx2.AsyncClient(limits=limits) as client:

            async def call(number: int) -> None:
                body = chat(str(number), stream=True)
                response = await client.post(urls[number % 4] + PATH, json=body)
                assert response.text.endswith("[DONE]\n\n")

            async with anyio.create_task_group() as group:
                for number in range(120):
                    group.start_soon(call, number)

    run("asyncio", main)
    assert [one.finished for one in cluster.stats()] == [30] * 4


def test_events_come_one_by_one_in_time() -> None:
    model = EngineModel(output_tokens=6, decode_s_per_token=0.05, request_overhead_s=0.3)
    cluster = FakeCluster(1, model=model)
    with cluster.serve() as urls, httpx.Client() as client:
        began = time.monotonic()
        with client.stream("POST", urls[0] + PATH, json=chat(stream=True)) as response:
            headers_after_s = time.monotonic() - began
            times = [time.monotonic() - began for _ in response.iter_raw()]
    assert headers_after_s < 0.3
    assert times[0] >= 0.3
    assert times[-1] >= 0.3 + 5 * 0.05
    assert len(times) >= 3


def test_a_growing_cluster() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    server = cluster.serve()
    with server as urls, httpx.Client() as client:
        replica = cluster.add()
        assert replica.served_url is not None
        assert [*urls, replica.served_url] == server.urls
        response = client.post(replica.served_url + PATH, json=chat())
        assert response.headers["x-replica"] == "1"


def test_a_replica_that_refuses_from_the_start() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    cluster.fail(0, Refuse())
    with cluster.serve() as urls, httpx.Client() as client:
        with pytest.raises(httpx.ConnectError):
            client.get(urls[0])
        cluster.heal()
        assert client.post(urls[0] + PATH, json=chat()).status_code == 200


def test_a_reader_that_is_slow_gets_everything() -> None:
    model = EngineModel(output_tokens=8000, bytes_per_token=1500, decode_s_per_token=0)
    cluster = FakeCluster(1, model=model, time_scale=0)
    with cluster.serve() as urls, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(address(urls[0]))
        raw.sendall(request_bytes(b'{"prompt": "a", "stream": true}', b"connection: close"))
        time.sleep(0.1)
        assert received(raw).count(b"data: ") == 8000 + 2


def test_pipelined_requests_are_answered_in_order() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    with cluster.serve() as urls, connected(urls[0]) as raw:
        first = request_bytes(b'{"prompt": "a"}')
        raw.sendall(first + request_bytes(b'{"prompt": "b"}', b"connection: close"))
        replies = received(raw)
    assert replies.count(b"HTTP/1.1 200") == 2
    assert [one.body for one in cluster.requests] == [b'{"prompt": "a"}', b'{"prompt": "b"}']


def test_expect_continue() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    with cluster.serve() as urls, connected(urls[0]) as raw:
        head = request_bytes(b"", b"expect: 100-continue", b"connection: close")
        raw.sendall(head.replace(b"content-length: 0", b"content-length: 15"))
        assert raw.recv(100).startswith(b"HTTP/1.1 100")
        raw.sendall(b'{"prompt": "a"}')
        assert received(raw).startswith(b"HTTP/1.1 200")


def test_an_old_client_gets_an_unframed_stream() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    with cluster.serve() as urls, connected(urls[0]) as raw:
        raw.sendall(request_bytes(b'{"prompt": "a", "stream": true}', version=b"1.0"))
        head, _, body = received(raw).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body.startswith(b"data: ")
    assert body.endswith(b"data: [DONE]\n\n")


def test_garbage_is_answered_with_400() -> None:
    cluster = FakeCluster(1, time_scale=0)
    with cluster.serve() as urls, connected(urls[0]) as raw:
        raw.sendall(b"\x00\x01nonsense\r\n\r\n")
        assert received(raw).startswith(b"HTTP/1.1 400")
    assert cluster.requests == ()


def test_a_chunked_request() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    with cluster.serve() as urls, httpx.Client() as client:
        parts = iter([b'{"prompt":', b'"a"}'])
        assert client.post(urls[0] + "/completions", content=parts).status_code == 200
    assert json.loads(cluster.requests[0].body) == {"prompt": "a"}


def test_leaving_breaks_what_runs_and_ends_the_thread() -> None:
    cluster = FakeCluster(1, model=EngineModel(output_tokens=2000))
    threads = threading.active_count()
    with httpx.Client() as client:
        with cluster.serve() as urls:
            request = client.build_request("POST", urls[0] + PATH, json=chat(stream=True))
            response = client.send(request, stream=True)
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
        with pytest.raises(httpx.ConnectError):
            client.get(urls[0])
    assert threading.active_count() == threads
    assert cluster.stats()[0].running == 0


def test_serving_again() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    server = cluster.serve()
    for _ in range(2):
        (url,) = server.start()
        assert httpx.post(url + PATH, json=chat()).status_code == 200
        server.close()
        server.close()
    assert server.urls == []
    assert cluster.stats()[0].cached_tokens == 0
    assert cluster.stats()[0].requests == 2


def test_serving_twice_at_once_is_refused() -> None:
    cluster = FakeCluster(1, time_scale=0)
    with cluster.serve(), pytest.raises(RuntimeError, match="served already"):
        cluster.serve().start()
    with cluster.serve():
        pass


def test_a_bad_keep_alive_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_alive_s"):
        FakeCluster(1).serve(keep_alive_s=0)
