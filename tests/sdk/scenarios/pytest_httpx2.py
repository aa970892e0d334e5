"""pytest-httpx2, which is respx for the connection pool of httpx2."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import httpx2
import pytest
import respx
from openai import AsyncOpenAI, OpenAI

from prefixroute import Router
from tests.sdk.mocking import BODY, EVENTS, REPLY, URLS

DISTRIBUTIONS = ("pytest-httpx2", "respx", "httpx2", "openai")


@pytest.fixture
def router() -> Iterator[Router]:
    with Router(URLS) as router:
        yield router
        assert router.stats().in_flight == 0


def test_sync(router: Router, httpx2_mock: respx.Router) -> None:
    home = router.route(BODY).endpoint.url
    route = httpx2_mock.post(f"{home}/chat/completions").respond(json=REPLY)
    with router.client("httpx2") as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY
    assert route.called
    assert router.stats().cached_tokens == 4


def test_sync_sdk(router: Router, httpx2_mock: respx.Router) -> None:
    httpx2_mock.post(url__regex=r"http://gpu-\d:8000/v1/chat/completions").respond(json=REPLY)
    with router.wrap(OpenAI(api_key="-")) as client:
        reply = client.chat.completions.create(**BODY)
    assert reply.choices[0].message.content == "A ship."


def test_sync_failover(router: Router, httpx2_mock: respx.Router) -> None:
    first, second, _ = router.route(BODY).candidates
    refused = httpx2.ConnectError("refused")  # of httpx2: what the client of that library knows
    httpx2_mock.post(f"{first.url}/chat/completions").mock(side_effect=refused)
    httpx2_mock.post(f"{second.url}/chat/completions").respond(json=REPLY)
    with router.client("httpx2") as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY


def test_async(httpx2_mock: respx.Router) -> None:
    async def main() -> None:
        async with Router(URLS) as router:
            home = router.route(BODY).endpoint.url
            httpx2_mock.post(f"{home}/chat/completions").respond(json=REPLY)
            async with router.wrap(AsyncOpenAI(api_key="-")) as client:
                reply = await client.chat.completions.create(**BODY)
            assert reply.choices[0].message.content == "A ship."
            assert router.stats().in_flight == 0

    asyncio.run(main())


def test_stream(router: Router, httpx2_mock: respx.Router) -> None:
    httpx2_mock.post(host__regex=r"gpu-\d").respond(
        stream=httpx.ByteStream(EVENTS), content_type="text/event-stream"
    )
    with router.wrap(OpenAI(api_key="-")) as client:
        chunks = client.chat.completions.create(**BODY, stream=True)
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["A ship."]
