"""Pydantic AI, whose OpenAI provider takes an HTTP client or a whole SDK client."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

from contextlib import suppress
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.sdk.support import (
    FIRST,
    MODEL,
    OTHER,
    OTHER_SYSTEM,
    SECOND,
    SYSTEM,
    Cases,
    Target,
    library_of_openai,
)

LIBRARY = library_of_openai()


class Sight(BaseModel):
    """What the keeper saw."""

    hour: int
    seen: list[str]


def by_http_client(at: Target) -> OpenAIProvider:
    """The provider, given an HTTP client."""
    http = at.async_http(LIBRARY)
    return OpenAIProvider(base_url=at.base_url, api_key=at.api_key, http_client=http)


def by_sdk_client(at: Target) -> OpenAIProvider:
    """The provider, given an SDK client that was wrapped."""
    client = AsyncOpenAI(base_url=at.base_url, api_key=at.api_key)
    return OpenAIProvider(openai_client=at.wrap(client))


def agent(at: Target, system: str = SYSTEM, **settings: Any) -> Any:
    """An agent on the chat API."""
    model = OpenAIChatModel(MODEL, provider=by_http_client(at))
    return Agent(model, system_prompt=system, **settings)


async def run(at: Target) -> None:
    keeper = agent(at)
    first = await keeper.run(FIRST)
    await keeper.run(SECOND, message_history=first.all_messages())
    await agent(at, OTHER_SYSTEM).run(OTHER)


async def run_with_sdk_client(at: Target) -> None:
    model = OpenAIChatModel(MODEL, provider=by_sdk_client(at))
    keeper = Agent(model, system_prompt=SYSTEM)
    first = await keeper.run(FIRST)
    await keeper.run(SECOND, message_history=first.all_messages())


async def responses_api(at: Target) -> None:
    model = OpenAIResponsesModel(MODEL, provider=by_sdk_client(at))
    keeper = Agent(model, system_prompt=SYSTEM)
    first = await keeper.run(FIRST)
    await keeper.run(SECOND, message_history=first.all_messages())


def run_sync(at: Target) -> None:
    keeper = agent(at)
    first = keeper.run_sync(FIRST)
    keeper.run_sync(SECOND, message_history=first.all_messages())
    agent(at, OTHER_SYSTEM).run_sync(OTHER)


async def stream(at: Target) -> None:
    keeper = agent(at)
    async with keeper.run_stream(FIRST) as reply:
        assert [piece async for piece in reply.stream_text(delta=True, debounce_by=None)]
    async with keeper.run_stream(SECOND, message_history=reply.all_messages()) as more:
        assert await more.get_output()


async def tools(at: Target) -> None:
    keeper = agent(at, output_type=ToolOutput(Sight))
    hours: list[int] = []

    @keeper.tool_plain
    def look(hour: int) -> str:
        """Look out."""
        hours.append(hour)
        return f"A ship, at {hour}."

    with suppress(UsageLimitExceeded):  # the simulated engine would go on for ever
        await keeper.run(FIRST, usage_limits=UsageLimits(request_limit=3))
    assert hours == [0, 0, 0]


async def structured_by_tool(at: Target) -> None:
    await see_twice(agent(at, output_type=ToolOutput(Sight)))


async def structured_by_schema(at: Target) -> None:
    await see_twice(agent(at, output_type=NativeOutput(Sight)))


async def see_twice(keeper: Any) -> None:
    first = await keeper.run(FIRST)
    assert first.output == Sight(hour=0, seen=[])
    await keeper.run(SECOND, message_history=first.all_messages())


CASES = Cases(
    distributions=("pydantic-ai-slim", "openai", LIBRARY),
    sync=(run_sync,),
    asynchronous=(run, run_with_sdk_client, responses_api),
    stream=(stream,),
    tools=(tools, structured_by_tool, structured_by_schema),
)
