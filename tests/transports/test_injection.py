"""``inject_usage``: asks for what engines do not say by themselves, and hides the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI

from prefixroute import Router
from prefixroute.testing import CutAfter, FakeCluster
from prefixroute.transports.injection import UsageFilter, with_usage

MESSAGES: Any = [{"role": "user", "content": "hello " * 100}]
CHAT: dict[str, Any] = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 4}
URL = "http://gpu-0:8000/v1"


def event(data: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + end


def choice(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], "usage": None}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
}
KEPT = [
    event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}),
    b": ping\n\n",
    event(choice('say "usage": {} and "choices": []')),
    event({"choices": [], "prompt_filter_results": []}),  # Azure's first
    event({"choices": [], "usage": None}),
    event({"error": {"message": "x"}, "choices": [], "usage": {}}),
    event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1}}),  # llama.cpp's completions
    event(choice("é😀")),
]
DONE = event(b"[DONE]")


class TestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            b'{"stream":true}',
            b'{"stream": true , "seed": 1e2, "x": "\\u00e9 \xc3\xa9"}\n ',
            b'{"messages":[{"role":"user","content":"}"}],"stream":true,"a":{"b":[]}}',
        ],
    )
    def test_keep_all_that_was_there(self, body: bytes) -> None:
        asking = with_usage(body)
        assert asking is not None
        assert asking.replace(b',"stream_options":{"include_usage":true}', b"") == body
        assert json.loads(asking)["stream_options"] == {"include_usage": True}

    def test_keep_other_options(self) -> None:
        for given_options in (b"null", b"{}", b'{"continuous_usage_stats": false, "n": 1.50}'):
            body = (
                b'{"a": 1.0, "stream_options": %s, "stream": true, "b": "\\u00e9"}' % given_options
            )
            asking = with_usage(body)
            assert asking is not None
            expected = {**(json.loads(given_options) or {}), "include_usage": True}
            assert json.loads(asking) == {**json.loads(body), "stream_options": expected}
            for kept in (b"1.0", b'"\\u00e9"'):
                assert kept in asking

    @pytest.mark.parametrize(
        "body",
        [
            b"{}",
            b"[]",
            b"null",
            b"not json",
            b'{"stream":false}',
            b'{"stream":null}',
            b'{"stream":1}',
            b'{"stream":"true"}',
            b'{"stream":true',
            b'{"stream":true,"stream_options":{"include_usage":true}}',
            b'{"stream":true,"stream_options":{"include_usage":false}}',
            b'{"stream":true,"stream_options":{"include_usage":null}}',
            b'{"stream":true,"stream_options":7}',
            b'\xef\xbb\xbf{"stream":true}',
            '{"stream":true}'.encode("utf-16"),
        ],
    )
    def test_that_need_no_asking_stay(self, body: bytes) -> None:
        assert with_usage(body) is None


class TestStreams:
    @given(st.data())
    def test_lose_the_usage_alone_wherever_they_are_cut(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]))
        at = data.draw(st.integers(0, len(KEPT)))
        kept = [part.replace(b"\n\n", end) for part in [*KEPT, DONE]]
        stream = b"".join([*kept[:at], event(USAGE, end), *kept[at:]])
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
        hiding, out = UsageFilter(), b""
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            out += hiding.feed(stream[start:stop])
        assert out + hiding.rest() == b"".join(kept)

    @given(st.lists(st.binary(max_size=40), max_size=10))
    def test_of_anything_else_stay(self, chunks: list[bytes]) -> None:
        hiding = UsageFilter()
        assert b"".join([*map(hiding.feed, chunks), hiding.rest()]) == b"".join(chunks)

    @pytest.mark.parametrize("size", [2**16 - 20, 2**16, 2**18])
    def test_with_an_event_of_any_length_stay(self, size: int) -> None:
        long = event(choice("x" * size))
        stream = long + event(USAGE) + long + DONE
        hiding, out, most = UsageFilter(), b"", 0
        for start in range(0, len(stream), 1000):
            out += hiding.feed(stream[start : start + 1000])
            most = max(most, len(hiding._held))
        assert out + hiding.rest() == long + long + DONE
        assert most <= 2**16

    def test_are_passed_on_event_by_event(self) -> None:
        hiding = UsageFilter()
        for part in KEPT:
            assert hiding.feed(part) == part
        assert hiding.feed(event(USAGE)) == b""

    def test_that_end_with_their_usage_lose_it(self) -> None:
        hiding = UsageFilter()
        assert hiding.feed(event(USAGE, b"")) + hiding.rest() == b""
        assert hiding.feed(b"data: [DONE]") + hiding.rest() == b"data: [DONE]"


class Server:
    """Answers every request with a stream, and keeps what it was asked."""

    def __init__(self, chunks: list[bytes], **headers: str) -> None:
        self.chunks = chunks
        self.headers = {"content-type": "text/event-stream; charset=utf-8", **headers}
        self.requests: list[Any] = []

    def _answer(self, module: Any, request: Any, chunks: Any) -> Any:
        self.requests.append(request)
        return module.Response(200, headers=self.headers, content=chunks)

    def client(self, module: Any, **how: Any) -> tuple[Router, Any]:
        def answer(request: Any) -> Any:
            return self._answer(module, request, iter(self.chunks))

        router = Router([URL], **how)
        transport = router.transport(module.MockTransport(answer))
        return router, module.Client(base_url=router.base_url, transport=transport)

    def async_client(self, module: Any, **how: Any) -> tuple[Router, Any]:
        async def stream() -> AsyncIterator[bytes]:
            for chunk in self.chunks:
                yield chunk

        async def answer(request: Any) -> Any:
            return self._answer(module, request, stream())

        router = Router([URL], **how)
        transport = router.async_transport(module.MockTransport(answer))
        return router, module.AsyncClient(base_url=router.base_url, transport=transport)


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


STREAM = [*KEPT, event(USAGE)[:40], event(USAGE)[40:] + DONE]


class TestCalls:
    @pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
    def test_are_asked_and_the_answer_is_hidden(self, library: Any, path: str) -> None:
        server = Server(STREAM)
        router, client = server.client(library, inject_usage=True)
        with client, client.stream("POST", path, json=CHAT | {"prompt": "x"}) as response:
            got = b"".join(response.iter_bytes())
        assert got == b"".join([*KEPT, DONE])
        assert json.loads(server.requests[0].content)["stream_options"] == {"include_usage": True}
        assert server.requests[0].headers["content-length"] == str(len(server.requests[0].content))
        stats = router.stats()
        assert (stats.prompt_tokens, stats.cached_tokens, stats.in_flight) == (9, 5, 0)

    def test_are_so_by_async_clients(self, library: Any) -> None:
        server = Server(STREAM)
        router, client = server.async_client(library, inject_usage=True)

        async def ask() -> bytes:
            async with client, client.stream("POST", "/chat/completions", json=CHAT) as response:
                return b"".join([chunk async for chunk in response.aiter_bytes()])

        assert asyncio.run(ask()) == b"".join([*KEPT, DONE])
        assert router.stats().cached_tokens == 5
        assert router.stats().in_flight == 0

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            ("/chat/completions", {"stream_options": {"include_usage": True}}),
            ("/chat/completions", {"stream_options": {"include_usage": False}}),
            ("/chat/completions", {"stream": False}),
            ("/responses", {"input": "x"}),
            ("/messages", {}),
            ("/embeddings", {"input": "x"}),
        ],
    )
    def test_that_asked_or_cannot_stay_as_they_are(self, path: str, fields: Any) -> None:
        server = Server(STREAM)
        _, client = server.client(httpx, inject_usage=True)
        body = json.dumps(CHAT | fields, indent=2).encode()
        with client, client.stream("POST", path, content=body) as response:
            assert b"".join(response.iter_bytes()) == b"".join(STREAM)
        assert server.requests[0].content == body

    def test_are_left_alone_by_default(self) -> None:
        server = Server(STREAM)
        _, client = server.client(httpx)
        with client, client.stream("POST", "/chat/completions", json=CHAT) as response:
            assert b"".join(response.iter_bytes()) == b"".join(STREAM)
        assert "stream_options" not in json.loads(server.requests[0].content)

    def test_with_a_body_that_is_read_once_are_left_alone(self) -> None:
        server = Server(STREAM)
        _, client = server.client(httpx, inject_usage=True)
        body = json.dumps(CHAT).encode()

        def parts() -> Iterator[bytes]:
            yield body

        with client, client.stream("POST", "/chat/completions", content=parts()) as response:
            assert b"".join(response.iter_bytes()) == b"".join(STREAM)

    def test_keep_their_headers(self) -> None:
        server = Server(STREAM)
        _, client = server.client(httpx, inject_usage=True)
        headers = {"X-Trace": "1", "Authorization": "Bearer k", "Accept-Encoding": "gzip, br"}
        with (
            client,
            client.stream("POST", "/chat/completions", json=CHAT, headers=headers) as response,
        ):
            response.read()
        sent = server.requests[0].headers
        assert (sent["x-trace"], sent["authorization"]) == ("1", "Bearer k")
        assert sent["accept-encoding"] == "identity"
        assert sent["host"] == "gpu-0:8000"
        assert len(sent.get_list("content-length")) == 1

    def test_that_are_answered_otherwise_pass(self) -> None:
        for headers in ({"content-type": "application/json"}, {"content-encoding": "x-unknown"}):
            server = Server([event(USAGE)], **headers)
            _, client = server.client(httpx, inject_usage=True)
            with client, client.stream("POST", "/chat/completions", json=CHAT) as response:
                assert b"".join(response.iter_raw()) == event(USAGE)

    def test_that_are_answered_with_a_length_lose_that(self) -> None:
        server = Server([event(USAGE) + DONE], **{"content-length": str(len(event(USAGE) + DONE))})
        _, client = server.client(httpx, inject_usage=True)
        with client:
            response = client.post("/chat/completions", json=CHAT)
        assert response.content == DONE
        assert "content-length" not in response.headers

    def test_that_are_closed_early_are_released(self, library: Any) -> None:
        router, client = Server(STREAM).client(library, inject_usage=True)
        with client, client.stream("POST", "/chat/completions", json=CHAT) as response:
            next(response.iter_bytes())
        assert router.stats().in_flight == 0


class TestClients:
    def test_of_openai(self) -> None:
        with FakeCluster(2, time_scale=0).serve() as urls, OpenAI(api_key="-") as plain:
            router = Router(urls, inject_usage=True)
            with router.wrap(plain) as client:
                for _ in range(2):
                    stream = client.chat.completions.create(
                        model="m", messages=MESSAGES, stream=True
                    )
                    chunks = list(stream)
                    assert all(chunk.choices for chunk in chunks)
                    assert not any(chunk.usage for chunk in chunks)
                asked = client.chat.completions.create(
                    model="m",
                    messages=MESSAGES,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                assert [chunk.usage for chunk in asked][-1] is not None
        assert router.stats().cached_tokens > 100
        assert router.stats().in_flight == 0

    def test_of_openai_async(self) -> None:
        async def ask(urls: list[str]) -> Router:
            router = Router(urls, inject_usage=True)
            async with AsyncOpenAI(api_key="-") as plain, router.wrap(plain) as client:
                for _ in range(2):
                    stream = await client.completions.create(
                        model="m", prompt="hello " * 100, stream=True
                    )
                    assert all([chunk.choices async for chunk in stream])
            return router

        with FakeCluster(2, time_scale=0).serve() as urls:
            router = asyncio.run(ask(urls))
        assert router.stats().cached_tokens > 100
        assert router.stats().in_flight == 0

    def test_that_are_cut_off_see_the_error(self) -> None:
        cluster = FakeCluster(1, time_scale=0)
        cluster.fail(0, CutAfter(chunks=2))
        router = Router(cluster.urls, inject_usage=True)
        transport = router.transport(cluster.transport())
        with (
            httpx.Client(base_url=router.base_url, transport=transport) as client,
            pytest.raises(httpx.TransportError),
            client.stream("POST", "/chat/completions", json=CHAT) as response,
        ):
            response.read()
        assert router.stats().in_flight == 0
        assert router.stats().endpoints[0].failures == 1
