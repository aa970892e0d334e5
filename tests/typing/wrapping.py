"""``Router.wrap`` gives back what it is given."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

import httpx
import httpx2
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from prefixroute import Router


class MyOpenAI(OpenAI):
    """A subclass of the application."""


def wrapped(router: Router) -> None:
    """Sync and async, of both SDKs, and subclasses."""
    assert_type(router.wrap(OpenAI(api_key="-")), OpenAI)
    assert_type(router.wrap(AsyncOpenAI(api_key="-")), AsyncOpenAI)
    assert_type(router.wrap(Anthropic(api_key="-")), Anthropic)
    assert_type(router.wrap(AsyncAnthropic(api_key="-")), AsyncAnthropic)
    assert_type(router.wrap(MyOpenAI(api_key="-")), MyOpenAI)


def used(router: Router) -> None:
    """What a wrapped client returns has the SDK's types."""
    client = router.wrap(OpenAI(api_key="-"))
    made = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hello"}]
    )
    assert_type(made, ChatCompletion)
    for chunk in client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hello"}], stream=True
    ):
        assert_type(chunk.choices[0].delta.content, str | None)


async def awaited(router: Router) -> None:
    """The async ones too."""
    client = router.wrap(AsyncAnthropic(api_key="-"))
    made = await client.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
    )
    assert_type(made, Message)


def given(router: Router) -> None:
    """HTTP clients go into the SDKs as what they are."""
    assert_type(router.client(), httpx.Client)
    assert_type(router.client("httpx"), httpx.Client)
    assert_type(router.client("httpx2"), httpx2.Client)
    assert_type(router.async_client(), httpx.AsyncClient)
    assert_type(router.async_client("httpx2"), httpx2.AsyncClient)
    OpenAI(base_url=router.base_url, api_key="-", http_client=router.client("httpx2"))
    AsyncOpenAI(base_url=router.base_url, api_key="-", http_client=router.async_client("httpx2"))
    Anthropic(base_url=router.root_url, api_key="-", http_client=router.client("httpx2"))


def transported(router: Router) -> None:
    """One transport fits clients of both libraries, and takes inner ones of both."""
    httpx.Client(base_url=router.base_url, transport=router.transport())
    httpx2.Client(base_url=router.base_url, transport=router.transport())
    httpx.AsyncClient(base_url=router.base_url, transport=router.async_transport())
    httpx2.AsyncClient(base_url=router.base_url, transport=router.async_transport())
    router.transport(httpx.HTTPTransport(retries=1))
    router.transport(httpx2.HTTPTransport(retries=1))
    router.async_transport(httpx.AsyncHTTPTransport(http2=False))


def wrong(router: Router) -> None:
    """What cannot work is an error before it runs."""
    router.client("aiohttp")  # type: ignore[call-overload]
    router.async_client(library="requests")  # type: ignore[call-overload]
    router.transport(httpx.AsyncHTTPTransport())  # type: ignore[arg-type]
    router.async_transport(httpx2.HTTPTransport())  # type: ignore[arg-type]
    httpx.AsyncClient(transport=router.transport())  # type: ignore[arg-type]
    httpx2.Client(transport=router.async_transport())  # type: ignore[arg-type]
    Anthropic(api_key="-", http_client=router.client("httpx"))  # type: ignore[arg-type]
    router.base_url = "http://elsewhere"  # type: ignore[misc]
