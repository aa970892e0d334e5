"""Every fault, on the mock transports and on sockets, with both libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import httpx
import pytest

from prefixroute.testing import (
    CutAfter,
    Disconnect,
    ErrorFirst,
    FakeCluster,
    Fault,
    Hang,
    Loading,
    RateLimited,
    Refuse,
    SlowHeaders,
    StaleConnection,
    Status,
)
from tests.testing.support import INSTANT, chat, over_libraries

PATH = "/chat/completions"


Make = Callable[[ModuleType], AbstractContextManager["Setup"]]


class Setup:
    """A cluster and a client of it, on a mock transport or on sockets."""

    def __init__(self, cluster: FakeCluster, client: Any, library: ModuleType, url: str) -> None:
        self.cluster = cluster
        self.client = client
        self.library = library
        self.url = url
        self.root = url.removesuffix("/v1")

    def post(self, **fields: Any) -> Any:
        return self.client.post(self.url + PATH, json=chat(**fields))

    def fails_with(self, name: str) -> Any:
        return pytest.raises(getattr(self.library, name))


@pytest.fixture(params=["mock", "sockets"])
def setup(request: pytest.FixtureRequest) -> Make:
    @contextmanager
    def make(library: ModuleType) -> Iterator[Setup]:
        cluster = FakeCluster(1, model=INSTANT, time_scale=0)
        is_mock = request.param == "mock"
        transport = cluster.transport() if is_mock else None
        server = nullcontext(cluster.urls) if is_mock else cluster.serve()
        with server as urls, library.Client(transport=transport, timeout=2.0) as client:
            yield Setup(cluster, client, library, urls[0])

    return make


@over_libraries
def test_refuse(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.post()
        on.cluster.fail(0, Refuse())
        for _ in range(2):
            with on.fails_with("ConnectError"):
                on.post()
        with on.fails_with("ConnectError"):
            on.client.get(on.root + "/health")
        assert len(on.cluster.requests) == 1
        on.cluster.heal(0)
        assert on.post().status_code == 200


@over_libraries
def test_refusing_leaves_running_streams_alone(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        with on.client.stream("POST", on.url + PATH, json=chat(stream=True)) as response:
            on.cluster.fail(0, Refuse())
            assert response.read().endswith(b"[DONE]\n\n")
        with on.fails_with("ConnectError"):
            on.post()


@over_libraries
def test_rate_limits(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.cluster.fail(0, RateLimited(retry_after_s=2), times=1)
        on.cluster.fail(0, RateLimited(retry_after_s=0.5), times=1)
        on.cluster.fail(0, RateLimited(retry_after_s=None), times=1)
        assert on.client.get(on.root + "/health").status_code == 200
        replies = [on.post() for _ in range(4)]
        assert [reply.status_code for reply in replies] == [429, 429, 429, 200]
        waits = [reply.headers.get("retry-after") for reply in replies]
        assert waits == ["2", "0.5", None, None]
        assert replies[0].json()["error"]["type"] == "rate_limit_error"


@over_libraries
def test_loading(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.cluster.fail(0, Loading(retry_after_s=3))
        for reply in (on.post(), on.client.get(on.root + "/health")):
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "3"
            assert reply.json()["error"]["message"] == "Loading model"
        on.cluster.heal()
        assert on.post().status_code == 200


@over_libraries
def test_any_status(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        headers = {"retry-after": "nan"}
        on.cluster.fail(0, Status(code=503, headers=headers, body=b"busy"), times=1)
        on.cluster.fail(0, Status(code=500), times=1)
        on.cluster.fail(0, Status(code=204), times=1)
        busy, broken, empty = (on.post() for _ in range(3))
        assert (busy.status_code, busy.content) == (503, b"busy")
        assert busy.headers["retry-after"] == "nan"
        assert (broken.status_code, empty.status_code) == (500, 204)
        assert on.post().status_code == 200


@over_libraries
@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize("reset", [False, True])
def test_a_stream_is_cut(setup: Make, library: ModuleType, chunks: int, *, reset: bool) -> None:
    with setup(library) as on:
        on.cluster.fail(0, CutAfter(chunks=chunks, reset=reset))
        got = b""
        error = library.ReadError if reset else library.RemoteProtocolError
        with on.client.stream("POST", on.url + PATH, json=chat(stream=True)) as response:
            assert response.status_code == 200
            with pytest.raises(error) as caught:  # noqa: PT012 - what came before counts
                for part in response.iter_raw():
                    got += part
        assert got.count(b"data: ") == chunks
        assert caught.value.request.url == on.url + PATH
        assert on.cluster.stats()[0].running == 0


@over_libraries
@pytest.mark.parametrize("chunks", [0, 1])
def test_a_document_is_cut(setup: Make, library: ModuleType, chunks: int) -> None:
    with setup(library) as on:
        on.cluster.fail(0, CutAfter(chunks=chunks))
        got = b""
        with (
            on.client.stream("POST", on.url + PATH, json=chat()) as response,
            on.fails_with("RemoteProtocolError"),
        ):
            for part in response.iter_raw():
                got += part
        assert bool(got) == bool(chunks)


@over_libraries
def test_a_cut_after_the_end_is_none(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.cluster.fail(0, CutAfter(chunks=100))
        assert on.post(stream=True).text.endswith("[DONE]\n\n")


@over_libraries
@pytest.mark.parametrize("reset", [False, True])
def test_a_disconnect(setup: Make, library: ModuleType, *, reset: bool) -> None:
    with setup(library) as on:
        on.cluster.fail(0, Disconnect(reset=reset), times=1)
        with on.fails_with("ReadError" if reset else "RemoteProtocolError"):
            on.post()
        assert len(on.cluster.requests) == 1
        assert on.post().status_code == 200
        assert on.cluster.stats()[0].requests == 1


@over_libraries
def test_a_stale_connection(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.cluster.fail(0, StaleConnection(), times=1)
        assert on.post().status_code == 200
        with on.fails_with("RemoteProtocolError"):
            on.post()
        assert [on.post().status_code for _ in range(2)] == [200, 200]


@over_libraries
@pytest.mark.parametrize(
    ("path", "needle"),
    [
        ("/chat/completions", b'data: {"error":'),
        ("/completions", b'data: {"error":'),
        ("/responses", b'event: error\ndata: {"type":"error"'),
        ("/messages", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"'),
    ],
)
def test_an_error_as_first_event(
    setup: Make, library: ModuleType, path: str, needle: bytes
) -> None:
    body = {**chat(max_tokens=5), "prompt": "a", "input": "a"}
    with setup(library) as on:
        on.cluster.fail(0, ErrorFirst())
        reply = on.client.post(on.url + path, json={**body, "stream": True})
        assert reply.status_code == 200
        assert reply.content.startswith(needle)
        json.loads(reply.content.partition(b"data: ")[2])
        assert on.client.post(on.url + path, json=body).status_code == 500
        assert on.client.post(on.url + path, content=b"{").status_code == 400
        stats = on.cluster.stats()[0]
        assert (stats.running, stats.waiting) == (0, 0)


@over_libraries
def test_slow_headers_of_a_stream(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.cluster.fail(0, SlowHeaders(delay_s=1.5))
        assert on.post(stream=True).text.endswith("[DONE]\n\n")
        assert on.cluster.now_s == 1.5


@over_libraries
def test_slow_headers_and_hanging(setup: Make, library: ModuleType) -> None:
    with setup(library) as on:
        on.cluster.fail(0, SlowHeaders(delay_s=1.5), times=1)
        before_s = on.cluster.now_s
        assert on.post().status_code == 200
        assert on.cluster.now_s >= before_s + 1.5
        on.cluster.fail(0, Hang(), times=1)
        with on.fails_with("ReadTimeout"):
            on.client.post(on.url + PATH, json=chat(), timeout=library.Timeout(5, read=0.05))
        on.cluster.heal()
        assert on.post().status_code == 200


def test_counted_faults_come_first_and_in_order() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    cluster.fail(0, Status(code=500))
    cluster.fail(0, Status(code=501))
    cluster.fail(0, Status(code=502), times=2)
    cluster.fail(0, Refuse(), times=1)
    cluster.fail(0, Status(code=503), times=1)
    url = cluster.urls[0] + PATH
    with httpx.Client(transport=cluster.transport()) as client:
        codes = [client.post(url, json=chat()).status_code for _ in range(2)]
        with pytest.raises(httpx.ConnectError):
            client.post(url, json=chat())
        codes += [client.post(url, json=chat()).status_code for _ in range(3)]
    assert codes == [502, 502, 503, 501, 501]


def test_a_fault_is_of_one_replica() -> None:
    cluster = FakeCluster(2, model=INSTANT, time_scale=0)
    cluster.fail(0, Status(code=500))
    with httpx.Client(transport=cluster.transport()) as client:
        codes = [client.post(url + PATH, json=chat()).status_code for url in cluster.urls]
    assert codes == [500, 200]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Status(code=99),
        lambda: Status(code=600),
        lambda: CutAfter(chunks=-1),
        lambda: SlowHeaders(delay_s=-1),
        lambda: SlowHeaders(delay_s=float("nan")),
    ],
)
def test_nonsense_is_refused(make: Callable[[], Fault]) -> None:
    with pytest.raises(ValueError, match="must"):
        make()


def test_no_times_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FakeCluster(1).fail(0, Hang(), times=0)


def test_refusals_cannot_be_counted_on_sockets() -> None:
    cluster = FakeCluster(1, time_scale=0)
    with cluster.serve(), pytest.raises(ValueError, match="can't be counted"):
        cluster.fail(0, Refuse(), times=1)
    cluster.fail(0, Refuse(), times=1)
    with pytest.raises(ValueError, match="can't be counted"):
        cluster.serve().start()
