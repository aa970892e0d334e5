"""The mock transports: both libraries, sync, asyncio and trio, with the library's own errors."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import anyio
import httpx
import httpx2
import pytest

from prefixroute.testing import (
    EngineModel,
    FakeCluster,
    Hang,
    Refuse,
    SlowHeaders,
    StaleConnection,
)
from tests.testing.support import (
    INSTANT,
    Caller,
    chat,
    eventually,
    over_backends,
    over_libraries,
    over_modes,
    run,
)

PATH = "/chat/completions"


async def all_admitted(cluster: FakeCluster, count: int) -> None:
    with anyio.fail_after(5):
        while cluster.stats()[0].requests < count:  # noqa: ASYNC110 - stats have no event
            await anyio.sleep(0.001)


@over_libraries
@over_modes
def test_a_document_and_a_stream(library: ModuleType, mode: str) -> None:
    cluster = FakeCluster(2, model=INSTANT, time_scale=0)
    caller = Caller(cluster, library, mode)
    response, chunks = caller.post(cluster.urls[1] + PATH, json=chat())
    assert isinstance(response, library.Response)
    assert (response.status_code, response.headers["x-replica"]) == (200, "1")
    assert int(response.headers["content-length"]) == len(b"".join(chunks))

    response, chunks = caller.post(cluster.urls[0] + PATH, json=chat(stream=True))
    assert response.headers["transfer-encoding"] == "chunked"
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert len(chunks) == 11
    assert [one.running for one in cluster.stats()] == [0, 0]


@over_libraries
@over_modes
def test_what_arrives_is_recorded_byte_for_byte(library: ModuleType, mode: str) -> None:
    cluster = FakeCluster(2, model=INSTANT, time_scale=0)
    caller = Caller(cluster, library, mode)
    content = b'{"messages": [{"role":"user",  "content": "\\u00e9\xc3\xa9"}]}'
    headers = {"X-Session-Id": "s"}
    caller.post(cluster.urls[1] + PATH + "?a=b%20c", content=content, headers=headers)
    (request,) = cluster.requests
    assert (request.replica, request.method) == (1, "POST")
    assert (request.path, request.target) == (
        "/v1/chat/completions",
        "/v1/chat/completions?a=b%20c",
    )
    assert request.body == content
    assert request.header("x-session-id") == "s"
    assert request.header("host") == "replica-1.test"
    assert request.header("nothing") is None
    assert request.json() == {"messages": [{"role": "user", "content": "éé"}]}
    assert content.decode() not in repr(request)


@over_libraries
@over_modes
def test_an_unknown_host(library: ModuleType, mode: str) -> None:
    caller = Caller(FakeCluster(1, time_scale=0), library, mode)
    for host in ("replica-1.test", "replica-01.test", "example.org", "replica-x.test"):
        with pytest.raises(library.ConnectError) as caught:
            caller.post(f"http://{host}/v1{PATH}", json=chat())
        assert isinstance(caught.value.request, library.Request)


@over_libraries
@over_modes
def test_a_read_timeout_is_kept_without_waiting(library: ModuleType, mode: str) -> None:
    cluster = FakeCluster(1, model=EngineModel(decode_s_per_token=10), time_scale=0)
    caller = Caller(cluster, library, mode)
    began = time.monotonic()
    for fault in (SlowHeaders(delay_s=100), Hang(), None):
        cluster.heal()
        if fault is not None:
            cluster.fail(0, fault)
        with pytest.raises(library.ReadTimeout):
            caller.post(cluster.urls[0] + PATH, json=chat(stream=True), timeout=9.0)
    assert time.monotonic() - began < 2
    assert cluster.stats()[0].running == 0


@over_libraries
@over_modes
def test_a_read_timeout_in_real_time(library: ModuleType, mode: str) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0.1)
    caller = Caller(cluster, library, mode)
    for fault in (SlowHeaders(delay_s=100), Hang()):
        cluster.heal()
        cluster.fail(0, fault)
        began = time.monotonic()
        with pytest.raises(library.ReadTimeout):
            caller.post(cluster.urls[0] + PATH, json=chat(), timeout=0.05)
        assert 0.05 <= time.monotonic() - began < 1


@over_libraries
@over_modes
def test_waiting_is_scaled(library: ModuleType, mode: str) -> None:
    model = EngineModel(output_tokens=11, decode_s_per_token=0.5, request_overhead_s=0)
    cluster = FakeCluster(1, model=model, time_scale=0.01)
    caller = Caller(cluster, library, mode)
    began = time.monotonic()
    caller.post(cluster.urls[0] + PATH, json=chat(stream=True))
    assert 0.05 <= time.monotonic() - began < 1


def test_simulated_time_passes_without_sleeping() -> None:
    model = EngineModel(output_tokens=11, decode_s_per_token=50.0, request_overhead_s=1.0)
    cluster = FakeCluster(1, model=model, time_scale=0)
    with httpx.Client(transport=cluster.transport(), timeout=None) as client:
        client.post(cluster.urls[0] + PATH, json=chat())
    assert cluster.now_s == pytest.approx(501, abs=0.1)


@over_libraries
def test_trace_events(library: ModuleType) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    seen: list[str] = []

    def trace(name: str, _info: object) -> None:
        seen.append(name)

    with library.Client(transport=cluster.transport()) as client:
        url = cluster.urls[0] + PATH
        client.post(url, json=chat(), extensions={"trace": trace})
        assert "connection.connect_tcp.complete" in seen
        assert "http11.send_request_body.complete" in seen
        seen.clear()
        client.post(url, json=chat(), extensions={"trace": trace})
        assert "connection.connect_tcp.started" not in seen
        cluster.fail(0, Refuse())
        seen.clear()
        with pytest.raises(library.ConnectError):
            client.post(url, json=chat(), extensions={"trace": trace})
        assert seen == ["connection.connect_tcp.started"]


@over_libraries
@over_backends
def test_async_trace_events(library: ModuleType, backend: str) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    seen: list[str] = []

    async def trace(name: str, _info: object) -> None:
        seen.append(name)

    async def main() -> None:
        async with library.AsyncClient(transport=cluster.async_transport()) as client:
            url = cluster.urls[0] + PATH
            await client.post(url, json=chat(), extensions={"trace": trace})

    run(backend, main)
    assert "http11.receive_response_headers.started" in seen


@over_libraries
@over_modes
def test_only_a_reused_connection_can_be_stale(library: ModuleType, mode: str) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    caller = Caller(cluster, library, mode)
    cluster.fail(0, StaleConnection())
    url = cluster.urls[0] + PATH
    caller.post(url, json=chat())
    with pytest.raises(library.RemoteProtocolError):
        caller.post(url, json=chat())
    caller.post(url, json=chat())
    assert [request.reused_connection for request in cluster.requests] == [False, True, False]


@over_libraries
def test_a_one_shot_body_is_consumed_once(library: ModuleType) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)

    def parts() -> Iterator[bytes]:
        yield b'{"prompt":'
        yield b'"a"}'

    url = cluster.urls[0] + "/completions"
    request = library.Request("POST", url, content=parts())
    with library.Client(transport=cluster.transport()) as client:
        assert client.send(request).status_code == 200
        with pytest.raises(library.StreamConsumed):
            client.send(request)
    assert cluster.requests[0].body == b'{"prompt":"a"}'


@over_libraries
@over_backends
def test_an_async_body(library: ModuleType, backend: str) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)

    async def parts() -> AsyncIterator[bytes]:
        yield b'{"prompt":'
        yield b'"a"}'

    async def main() -> None:
        async with library.AsyncClient(transport=cluster.async_transport()) as client:
            response = await client.post(cluster.urls[0] + "/completions", content=parts())
            assert response.status_code == 200

    run(backend, main)


@over_libraries
@over_backends
def test_many_at_once_wait_in_the_queue(library: ModuleType, backend: str) -> None:
    model = EngineModel(request_overhead_s=1.0, output_tokens=1)
    cluster = FakeCluster(1, model=model, time_scale=0.01)

    async def main() -> None:
        async with library.AsyncClient(transport=cluster.async_transport(), timeout=None) as client:

            async def call(number: int) -> None:
                body = chat(str(number))
                assert (await client.post(cluster.urls[0] + PATH, json=body)).status_code == 200

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(call, number)
                await all_admitted(cluster, 20)
                stats = cluster.stats()[0]
                assert stats.running == 1
                assert stats.waiting > 1

    run(backend, main)
    stats = cluster.stats()[0]
    assert (stats.finished, stats.running, stats.waiting) == (20, 0, 0)


@over_libraries
@over_backends
def test_cancelling_frees_the_engine(library: ModuleType, backend: str) -> None:
    model = EngineModel(request_overhead_s=1000.0)
    cluster = FakeCluster(1, model=model, time_scale=1.0)

    async def main() -> None:
        async with library.AsyncClient(transport=cluster.async_transport(), timeout=None) as client:

            async def call() -> None:
                await client.post(cluster.urls[0] + PATH, json=chat())

            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(call)
                await all_admitted(cluster, 50)
                assert cluster.stats()[0].running == 1
                group.cancel_scope.cancel()

    run(backend, main)
    stats = cluster.stats()[0]
    assert (stats.running, stats.waiting, stats.cancelled) == (0, 0, 50)


@over_libraries
def test_closing_early_frees_the_engine(library: ModuleType) -> None:
    cluster = FakeCluster(1, time_scale=0)
    with (
        library.Client(transport=cluster.transport()) as client,
        client.stream("POST", cluster.urls[0] + PATH, json=chat(stream=True)) as response,
    ):
        parts = response.iter_raw()
        next(parts)
        assert cluster.stats()[0].running == 1
    stats = cluster.stats()[0]
    assert (stats.running, stats.cancelled) == (0, 1)
    assert 0 < stats.completion_tokens < 16


@over_libraries
def test_a_reply_that_is_dropped_unread_frees_the_engine(library: ModuleType) -> None:
    cluster = FakeCluster(1, time_scale=0)
    client = library.Client(transport=cluster.transport())
    request = client.build_request("POST", cluster.urls[0] + PATH, json=chat(stream=True))
    response = client.send(request, stream=True)
    assert cluster.stats()[0].running == 1
    client.close()
    del response
    gc.collect()
    assert cluster.stats()[0].running == 0


@over_libraries
@over_modes
def test_a_dying_replica_breaks_its_streams(library: ModuleType, mode: str) -> None:
    cluster = FakeCluster(1, model=EngineModel(output_tokens=2000), time_scale=0.1)

    def kill() -> None:
        eventually(lambda: cluster.stats()[0].running == 1)
        time.sleep(0.02)
        cluster.stop(0)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(library.RemoteProtocolError, match="without sending complete"):
        Caller(cluster, library, mode).post(cluster.urls[0] + PATH, json=chat(stream=True))
    killer.join()
    stats = cluster.stats()[0]
    assert (stats.requests, stats.cancelled, stats.running) == (1, 1, 0)


def test_threads_share_a_transport() -> None:
    cluster = FakeCluster(2, model=INSTANT, time_scale=0)
    with httpx2.Client(transport=cluster.transport()) as client:

        def work(index: int) -> None:
            for number in range(30):
                client.post(cluster.urls[index] + PATH, json=chat(str(number), stream=True))

        threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one.finished for one in cluster.stats()] == [90, 90]
    assert len(cluster.requests) == 180


def test_one_transport_serves_both_libraries() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    transport = cluster.transport()
    clients: list[Any] = [library.Client(transport=transport) for library in (httpx, httpx2)]
    for client in clients:
        with client:
            assert client.post(cluster.urls[0] + PATH, json=chat()).status_code == 200


def test_a_subclass_of_a_request_belongs_to_its_library() -> None:
    class Mine(httpx.Request):
        pass

    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    request = Mine("GET", "http://replica-0.test/health")
    assert isinstance(cluster.transport().handle_request(request), httpx.Response)


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="not a request of httpx or httpx2"):
        FakeCluster(1).transport().handle_request(object())  # type: ignore[call-overload]


@over_libraries
def test_a_healed_replica_goes_on_with_what_hung(library: ModuleType) -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    cluster.fail(0, Hang(), times=1)
    statuses: list[int] = []

    def call() -> None:
        with library.Client(transport=cluster.transport(), timeout=None) as client:
            statuses.append(client.post(cluster.urls[0] + PATH, json=chat()).status_code)

    thread = threading.Thread(target=call)
    thread.start()
    eventually(lambda: len(cluster.requests) == 1)
    assert statuses == []
    cluster.heal(0)
    thread.join()
    assert statuses == [200]
