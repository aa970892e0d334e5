"""respx, which replaces the connection pool of httpx."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
import respx
from openai import AsyncOpenAI, OpenAI

from prefixroute import Router
from tests.sdk.mocking import BODY, EVENTS, REPLY, URLS

DISTRIBUTIONS = ("respx", "httpx", "openai")


@pytest.fixture
def router() -> Iterator[Router]:
    with Router(URLS) as router:
        yield router
        assert router.stats().in_flight == 0


@respx.mock
def test_sync(router: Router) -> None:
    home = router.route(BODY).endpoint.url
    route = respx.post(f"{home}/chat/completions").respond(json=REPLY)
    with router.client() as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY
    assert route.calls.last.request.headers["host"] == httpx.URL(home).netloc.decode()
    assert router.stats().cached_tokens == 4


@respx.mock
def test_sync_sdk(router: Router) -> None:
    route = respx.post(url__regex=r"http://gpu-\d:8000/v1/chat/completions").respond(json=REPLY)
    with router.wrap(OpenAI(api_key="-")) as client:
        reply = client.chat.completions.create(**BODY)
    assert reply.choices[0].message.content == "A ship."
    assert str(route.calls.last.request.url).startswith(router.route(BODY).endpoint.url)


@respx.mock
def test_sync_failover(router: Router) -> None:
    first, second, _ = router.route(BODY).candidates
    respx.post(f"{first.url}/chat/completions").mock(side_effect=httpx.ConnectError)
    respx.post(f"{second.url}/chat/completions").respond(json=REPLY)
    with router.client() as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY
    assert [str(call.request.url.host) for call in respx.calls] == [
        httpx.URL(first.url).host,
        httpx.URL(second.url).host,
    ]


def test_sync_without_patching(router: Router) -> None:
    mock = respx.Router()
    mock.post(host__regex=r"gpu-\d").respond(json=REPLY)
    transport = router.transport(httpx.MockTransport(mock.handler))
    with httpx.Client(base_url=router.base_url, transport=transport) as http:
        assert http.post("/chat/completions", json=BODY).json() == REPLY


@respx.mock(using="httpx")
def test_sync_patched_clients_see_what_the_caller_asked(respx_mock: respx.Router) -> None:
    # This mocker sits above every transport, the router's too: nothing is routed.
    with Router(URLS) as router, router.client() as http:
        respx_mock.post(f"{router.base_url}/chat/completions").respond(json=REPLY)
        assert http.post("/chat/completions", json=BODY).json() == REPLY


def test_async() -> None:
    async def main() -> None:
        async with Router(URLS) as router, respx.mock:
            home = router.route(BODY).endpoint.url
            respx.post(f"{home}/chat/completions").respond(json=REPLY)
            async with router.wrap(AsyncOpenAI(api_key="-")) as client:
                reply = await client.chat.completions.create(**BODY)
            assert reply.choices[0].message.content == "A ship."
            assert router.stats().in_flight == 0

    asyncio.run(main())


@respx.mock
def test_stream(router: Router) -> None:
    respx.post(host__regex=r"gpu-\d").respond(
        stream=httpx.ByteStream(EVENTS), content_type="text/event-stream"
    )
    with router.wrap(OpenAI(api_key="-")) as client:
        chunks = client.chat.completions.create(**BODY, stream=True)
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["A ship."]
