"""pytest-httpx, which replaces the transports of httpx."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from pytest_httpx import HTTPXMock

from prefixroute import Router
from tests.sdk.mocking import BODY, EVENTS, REPLY, URLS

DISTRIBUTIONS = ("pytest-httpx", "httpx", "openai")


@pytest.fixture
def router() -> Iterator[Router]:
    with Router(URLS) as router:
        yield router
        assert router.stats().in_flight == 0


def test_sync(router: Router, httpx_mock: HTTPXMock) -> None:
    home = router.route(BODY).endpoint.url
    httpx_mock.add_response(url=f"{home}/chat/completions", json=REPLY)
    with router.client() as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY
    assert httpx_mock.get_request(url=f"{home}/chat/completions") is not None
    assert router.stats().cached_tokens == 4


def test_sync_sdk(router: Router, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(url=re.compile(r"http://gpu-\d:8000/v1/chat/completions"), json=REPLY)
    with router.wrap(OpenAI(api_key="-")) as client:
        reply = client.chat.completions.create(**BODY)
    assert reply.choices[0].message.content == "A ship."


def test_sync_failover(router: Router, httpx_mock: HTTPXMock) -> None:
    first, second, _ = router.route(BODY).candidates
    httpx_mock.add_exception(httpx.ConnectError("refused"), url=f"{first.url}/chat/completions")
    httpx_mock.add_response(url=f"{second.url}/chat/completions", json=REPLY)
    with router.client() as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY


def test_async(httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(json=REPLY)

    async def main() -> None:
        async with Router(URLS) as router:
            async with router.wrap(AsyncOpenAI(api_key="-")) as client:
                reply = await client.chat.completions.create(**BODY)
            assert reply.choices[0].message.content == "A ship."
            assert router.stats().in_flight == 0

    asyncio.run(main())
    request = httpx_mock.get_request()
    assert request is not None
    assert request.url.host.startswith("gpu-")


def test_stream(router: Router, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(content=EVENTS, headers={"content-type": "text/event-stream"})
    with router.wrap(OpenAI(api_key="-")) as client:
        chunks = client.chat.completions.create(**BODY, stream=True)
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["A ship."]
