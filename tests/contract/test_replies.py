"""What a reply reports is read as it passes, without altering a byte."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from prefixroute import Event, Router
from prefixroute.core.events import FirstToken
from tests.contract.flavours import BODY, STREAM, Flavour, Inner, Received, sse, urls

ROLE = '{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
TOKEN = '{"choices":[{"index":0,"delta":{"content":"Hi"}}]}'
USAGE = (
    '{"choices":[],"usage":{"prompt_tokens":120,"completion_tokens":2,'
    '"prompt_tokens_details":{"cached_tokens":100}}}'
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    def __init__(self) -> None:
        self.ttft: list[float] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, FirstToken):
            self.ttft.append(event.ttft_s)


def reported(router: Router) -> tuple[int, int]:
    """Prompt tokens and cached tokens, as replies that say how much was cached report them."""
    stats = router.stats()
    return stats.prompt_tokens, stats.cached_tokens


def test_usage_of_a_json_reply(flavour: Flavour) -> None:
    router = Router(urls(1))
    usage = {"prompt_tokens": 120, "prompt_tokens_details": {"cached_tokens": 100}}
    body = json.dumps({"id": "x", "choices": [], "usage": usage}).encode()
    headers = {"content-type": "application/json"}

    def handler(_: Received) -> Any:
        parts = flavour.stream(body[:20], body[20:])
        return flavour.module.Response(200, headers=headers, stream=parts)

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            reply = await client.post()
        assert reply.content == body
        assert reported(router) == (120, 100)

    flavour.run(main)


def test_case_51_usage_in_the_last_event_of_a_stream(flavour: Flavour) -> None:
    router = Router(urls(1))
    events = sse(ROLE, TOKEN, TOKEN, USAGE, "[DONE]")
    inner = Inner(flavour, lambda _: flavour.events(*events))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            assert [chunk async for chunk in client.chunks(reply)] == events
        assert reported(router) == (120, 100)

    flavour.run(main)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_events_may_come_in_any_pieces(flavour: Flavour, size: int) -> None:
    log = Log()
    router = Router(urls(1), observers=[log])
    whole = b": ping\r\n\r\n" + b"".join(sse(ROLE, TOKEN, USAGE, "[DONE]")).replace(b"\n", b"\r\n")
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    inner = Inner(flavour, lambda _: flavour.events(*parts))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            assert [chunk async for chunk in client.chunks(reply)] == parts
        assert reported(router) == (120, 100)
        assert len(log.ttft) == 1

    flavour.run(main)


def test_the_first_token_is_the_first_event_with_content(flavour: Flavour) -> None:
    clock, log = Clock(), Log()
    router = Router(urls(1), clock=clock, observers=[log])
    inner = Inner(flavour, lambda _: flavour.events(*sse(ROLE, TOKEN, TOKEN, "[DONE]")))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            async for _ in client.chunks(reply):
                assert len(log.ttft) == (clock.now >= 1)
                clock.now += 1
        assert log.ttft == [1.0]

    flavour.run(main)


ERRORS = [
    (b'data: {"error":{"message":"x","code":500}}\n\n', True),
    (b'data: {"error":"out of memory"}\n\n', True),
    (b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n', True),
    (b"event: error\ndata: what?\n\n", True),
    (b'data: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n', True),
    (b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n', False),
    (b'data: {"type":"error","error":{"type":"invalid_request_error"}}\n\n', False),
]


@pytest.mark.parametrize(("event", "counts"), ERRORS, ids=[str(n) for n in range(len(ERRORS))])
def test_an_error_as_first_event_passes_and_counts(
    flavour: Flavour, event: bytes, *, counts: bool
) -> None:
    router = Router(urls(3))
    parts = [*sse(ROLE), event, *sse("[DONE]")]
    inner = Inner(flavour, lambda _: flavour.events(*parts))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            assert reply.status_code == 200
            assert [chunk async for chunk in client.chunks(reply)] == parts
        assert len(inner.received) == 1
        assert router.stats().failures == counts

    flavour.run(main)


def test_one_requests_errors_in_streams_count_once(flavour: Flavour) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, lambda _: flavour.events(ERRORS[0][0]))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(5):
                await client.post(json=STREAM)
            assert router.stats().failures == 1
            await client.post(json={**STREAM, "seed": 2})
            assert router.stats().failures == 2

    flavour.run(main)


def test_an_error_among_the_tokens_counts(flavour: Flavour) -> None:
    router = Router(urls(1))
    inner = Inner(flavour, lambda _: flavour.events(*sse(TOKEN), ERRORS[0][0], *sse("[DONE]")))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post(json=STREAM)
        assert router.stats().failures == 1

    flavour.run(main)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 50}, {"prompt_tokens": None}])
def test_usage_that_is_not_reported_is_unknown(flavour: Flavour, usage: Any) -> None:
    router = Router(urls(1))
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={"usage": usage}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
        assert router.stats().hit_rate is None

    flavour.run(main)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)],
)
def test_case_48_a_packed_reply_is_decoded_once(flavour: Flavour, encoding: str, pack: Any) -> None:
    router = Router(urls(1))
    body = json.dumps({"usage": json.loads(USAGE)["usage"], "text": "x" * 5000}).encode()
    packed = pack(body)
    headers = {
        "content-type": "application/json",
        "content-encoding": encoding,
        "content-length": str(len(packed)),
        "x-own": "1",
    }

    def handler(_: Received) -> Any:
        parts = flavour.stream(packed[:10], packed[10:])
        extensions = {"http_version": b"HTTP/1.1"}
        return flavour.module.Response(200, headers=headers, stream=parts, extensions=extensions)

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            reply = await client.post()
            assert reply.content == body
            assert reply.headers["x-own"] == "1"
            assert reply.headers["content-length"] == str(len(packed))
            assert reply.http_version == "HTTP/1.1"
            async with client.streaming() as raw:
                chunks = [chunk async for chunk in client.chunks(raw)]
            assert b"".join(chunks) == packed
        assert reported(router) == (240, 200)

    flavour.run(main)


def test_what_an_inner_transport_has_read_already(flavour: Flavour) -> None:
    router = Router(urls(1))
    body = json.dumps({"usage": json.loads(USAGE)["usage"]}).encode()

    def packed() -> Any:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        stream = flavour.stream(gzip.compress(body))
        return flavour.module.Response(200, headers=headers, stream=stream)

    def handler(_: Received) -> Any:
        response = packed()
        if flavour.is_sync:
            response.read()
            return response

        async def read() -> Any:
            await response.aread()
            return response

        return read()

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            reply = await client.post()
        assert reply.content == body
        assert reported(router) == (120, 100)

    flavour.run(main)


def test_one_response_object_for_many_requests(flavour: Flavour) -> None:
    router = Router(urls(1))
    headers = {"set-cookie": "a=b"}
    only = flavour.module.Response(200, json={"a": 1}, headers=headers)

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, lambda _: only)) as client:
            for _ in range(3):
                assert (await client.post()).json() == {"a": 1}
        assert only.headers["set-cookie"] == "a=b"
        assert "prefixroute" not in only.extensions

    flavour.run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_case_04_a_response_is_continued_where_it_was_given(
    flavour: Flavour, *, stream: bool
) -> None:
    router = Router(urls(8))

    def handler(received: Received) -> Any:
        number = len(inner.received)
        reply = {"id": f"resp_{number}", "object": "response", "status": "completed"}
        if received.method != "POST" or b'"stream":true' not in received.body.replace(b" ", b""):
            return flavour.module.Response(200, json=reply)
        created = {"type": "response.created", "response": {**reply, "instructions": "x" * 9000}}
        ended = {"type": "response.completed", "response": reply}
        return flavour.events(*sse(json.dumps(created), json.dumps(ended)))

    inner = Inner(flavour, handler)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for turn in range(1, 30, 4):
                first = {"model": "m", "input": f"{turn} " * 200, "stream": stream}
                await client.post("/responses", json=first)
                then = {"model": "m", "input": "no", "previous_response_id": f"resp_{turn}"}
                await client.post("/responses", json=then)
                await client.get(f"/responses/resp_{turn}")
                await client.request("DELETE", f"/responses/resp_{turn}")
                assert len(set(inner.hosts[-4:])) == 1
        assert len(set(inner.hosts)) > 1

    flavour.run(main)


def test_case_04_a_response_that_another_process_made_is_looked_for(flavour: Flavour) -> None:
    router = Router(urls(3))

    def handler(received: Received) -> Any:
        found = len(inner.received) == 3
        return flavour.module.Response(200 if found else 404, json={"found": found})

    inner = Inner(flavour, handler)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            body = {"model": "m", "input": "hi", "previous_response_id": "resp_x"}
            reply = await client.post("/responses", json=body)
            assert reply.json() == {"found": True}
            inner.handler = lambda _: flavour.module.Response(404, json={"error": "none"})
            reply = await client.post("/responses", json=body)
            assert reply.status_code == 404
            assert reply.json() == {"error": "none"}
        assert len(set(inner.hosts[:3])) == 3
        assert len(inner.received) == 6
        assert router.stats().failures == 0

    flavour.run(main)


def test_a_binary_reply_passes(flavour: Flavour) -> None:
    router = Router(urls(1))
    audio = bytes(range(256)) * 100
    headers = {"content-type": "audio/mpeg"}

    def handler(_: Received) -> Any:
        return flavour.module.Response(200, headers=headers, stream=flavour.stream(audio, audio))

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            reply = await client.post("/audio/speech", json={**BODY, "input": "hi"})
        assert reply.content == audio * 2

    flavour.run(main)
