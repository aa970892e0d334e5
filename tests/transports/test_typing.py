"""What a user writes passes strict type checkers without a cast: mypy reads this file too."""

from __future__ import annotations

from typing import assert_type

import httpx
import httpx2
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from prefixroute import Decision, Endpoint, Lease, Router


def test_transports_are_taken_by_clients_of_both_libraries() -> None:
    router = Router([Endpoint("http://gpu-0:8000/v1")])
    one = httpx.Client(base_url=router.base_url, transport=router.transport())
    two = httpx2.Client(base_url=router.base_url, transport=router.transport())
    three = httpx.AsyncClient(transport=router.async_transport())
    four = httpx2.AsyncClient(transport=router.async_transport())
    for client in (one, two):
        client.close()
    assert not three.is_closed
    assert not four.is_closed


def test_inner_transports_of_both_libraries_are_taken() -> None:
    router = Router(["http://gpu-0:8000/v1"])
    router.transport(httpx.HTTPTransport()).close()
    router.transport(httpx2.HTTPTransport()).close()
    router.transport(httpx.MockTransport(lambda _: httpx.Response(200))).close()
    router.async_transport(httpx.AsyncHTTPTransport())
    router.async_transport(httpx2.AsyncHTTPTransport())


def test_clients_have_the_types_of_their_library() -> None:
    router = Router(["http://gpu-0:8000/v1"])
    assert_type(router.client(), httpx.Client).close()
    assert_type(router.client("httpx"), httpx.Client).close()
    assert_type(router.client("httpx2"), httpx2.Client).close()
    assert_type(router.async_client(), httpx.AsyncClient)
    assert_type(router.async_client("httpx2"), httpx2.AsyncClient)
    OpenAI(base_url=router.base_url, api_key="-", http_client=router.client("httpx2")).close()
    Anthropic(base_url=router.root_url, api_key="-", http_client=router.client("httpx2")).close()


def test_wrap_returns_the_type_that_it_was_given() -> None:
    router = Router(["http://gpu-0:8000/v1"])
    assert_type(router.wrap(OpenAI(api_key="-")), OpenAI).close()
    assert_type(router.wrap(Anthropic(api_key="-")), Anthropic).close()
    assert_type(router.wrap(AsyncOpenAI(api_key="-")), AsyncOpenAI)
    assert_type(router.wrap(AsyncAnthropic(api_key="-")), AsyncAnthropic)


def test_the_core_is_typed() -> None:
    router = Router(["http://gpu-0:8000/v1"])
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert_type(router.route(body), Decision)
    with router.acquire(body) as lease:
        assert_type(lease, Lease)
    with router as same:
        assert_type(same, Router)
