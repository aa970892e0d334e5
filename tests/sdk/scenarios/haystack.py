"""Haystack's OpenAIChatGenerator, which takes the arguments of an httpx client."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

from tests.sdk.support import (
    FIRST,
    MODEL,
    OTHER,
    OTHER_SYSTEM,
    PARAMETERS,
    RESPONSE_FORMAT,
    SECOND,
    SYSTEM,
    Cases,
    Target,
    library_of_openai,
)

OPENING = [ChatMessage.from_system(SYSTEM), ChatMessage.from_user(FIRST)]
UNRELATED = [ChatMessage.from_system(OTHER_SYSTEM), ChatMessage.from_user(OTHER)]


def look(hour: int) -> str:
    """Look out."""
    return f"A ship, at {hour}."


LOOK = Tool(name="look", description="Look out.", parameters=PARAMETERS, function=look)


def generator(at: Target, **settings: Any) -> OpenAIChatGenerator:
    """A generator for sync calls."""
    http = None if at.router is None else {"transport": at.router.transport()}
    return _generator(at, http, settings)


def async_generator(at: Target, **settings: Any) -> OpenAIChatGenerator:
    """A generator for async calls: it has but one set of arguments for both kinds of client."""
    http = None if at.router is None else {"transport": at.router.async_transport()}
    return _generator(at, http, settings)


def _generator(
    at: Target, http: dict[str, Any] | None, settings: dict[str, Any]
) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        model=MODEL,
        api_base_url=at.base_url,
        api_key=Secret.from_token(at.api_key),
        http_client_kwargs=http,
        **settings,
    )


def continued(reply: Any) -> list[ChatMessage]:
    """The second turn of a conversation."""
    return [*OPENING, reply, ChatMessage.from_user(SECOND)]


def run(at: Target) -> None:
    chat = generator(at)
    reply = chat.run(OPENING)["replies"][0]
    assert reply.text
    chat.run(continued(reply))
    chat.run(UNRELATED)


async def run_async(at: Target) -> None:
    chat = async_generator(at)
    reply = (await chat.run_async(OPENING))["replies"][0]
    await chat.run_async(continued(reply))
    await chat.run_async(UNRELATED)


def stream(at: Target) -> None:
    chunks: list[str] = []
    chat = generator(at, streaming_callback=lambda chunk: chunks.append(chunk.content))
    reply = chat.run(OPENING)["replies"][0]
    assert "".join(chunks) == reply.text
    chat.run(continued(reply))


async def stream_async(at: Target) -> None:
    chunks: list[str] = []

    async def collect(chunk: Any) -> None:
        chunks.append(chunk.content)

    chat = async_generator(at, streaming_callback=collect)
    reply = (await chat.run_async(OPENING))["replies"][0]
    assert "".join(chunks) == reply.text
    await chat.run_async(continued(reply))


def tools(at: Target) -> None:
    chat = generator(at, tools=[LOOK])
    reply = chat.run(OPENING, generation_kwargs={"tool_choice": "required"})["replies"][0]
    call = reply.tool_calls[0]
    assert call.arguments == {"hour": 0}
    result = ChatMessage.from_tool(look(**call.arguments), origin=call)
    assert chat.run([*OPENING, reply, result])["replies"]


def structured(at: Target) -> None:
    chat = generator(at, generation_kwargs={"response_format": RESPONSE_FORMAT})
    reply = chat.run(OPENING)["replies"][0]
    assert reply.text == '{"hour": 0}'
    chat.run(continued(reply))


CASES = Cases(
    distributions=("haystack-ai", "openai", library_of_openai()),
    sync=(run,),
    asynchronous=(run_async,),
    stream=(stream, stream_async),
    tools=(tools, structured),
)
