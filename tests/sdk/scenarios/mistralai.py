"""The Mistral SDK, which takes a sync and an async HTTP client."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from tests.sdk.support import (
    MODEL,
    OPENING,
    RESPONSE_FORMAT,
    TOOLS,
    UNRELATED,
    Cases,
    LibraryName,
    Target,
    continued,
)

if int(version("mistralai").partition(".")[0]) < 2:
    from mistralai import Mistral
else:
    from mistralai.client import Mistral

LIBRARY: LibraryName = "httpx" if int(version("mistralai").partition(".")[0]) < 3 else "httpx2"


def routed(at: Target) -> Any:
    """The SDK's client, which does both sync and async calls."""
    return Mistral(
        server_url=at.root_url,
        api_key=at.api_key,
        client=at.http(LIBRARY),
        async_client=at.async_http(LIBRARY),
    )


def complete(at: Target) -> None:
    with routed(at) as client:
        reply = client.chat.complete(model=MODEL, messages=OPENING)
        client.chat.complete(model=MODEL, messages=continued(reply.choices[0].message.content))
        client.chat.complete(model=MODEL, messages=UNRELATED)


async def acomplete(at: Target) -> None:
    async with routed(at) as client:
        reply = await client.chat.complete_async(model=MODEL, messages=OPENING)
        messages = continued(reply.choices[0].message.content)
        await client.chat.complete_async(model=MODEL, messages=messages)
        await client.chat.complete_async(model=MODEL, messages=UNRELATED)


def stream(at: Target) -> None:
    with routed(at) as client:
        for messages in (OPENING, continued("A ship.")):
            with client.chat.stream(model=MODEL, messages=messages) as events:
                assert "".join(event.data.choices[0].delta.content or "" for event in events)


async def astream(at: Target) -> None:
    async with routed(at) as client:
        for messages in (OPENING, continued("A ship.")):
            async with await client.chat.stream_async(model=MODEL, messages=messages) as events:
                assert [event async for event in events]


def tools(at: Target) -> None:
    with routed(at) as client:
        reply = client.chat.complete(
            model=MODEL, messages=OPENING, tools=TOOLS, tool_choice="required"
        )
        call = reply.choices[0].message.tool_calls[0]
        assert call.function.name == "look"
        said = {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]}
        result = {"role": "tool", "name": "look", "tool_call_id": call.id, "content": "A ship."}
        assert client.chat.complete(
            model=MODEL, messages=[*OPENING, said, result], tools=TOOLS
        ).choices


def structured(at: Target) -> None:
    with routed(at) as client:
        for messages in (OPENING, continued("A ship.")):
            reply = client.chat.complete(
                model=MODEL,
                messages=messages,
                response_format=RESPONSE_FORMAT,
            )
            assert reply.choices[0].message.content == '{"hour": 0}'


CASES = Cases(
    distributions=("mistralai", LIBRARY),
    sync=(complete,),
    asynchronous=(acomplete,),
    stream=(stream, astream),
    tools=(tools, structured),
)
