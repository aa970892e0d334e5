"""The OpenAI Agents SDK, whose models take an SDK client."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

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

REQUIRED = ModelSettings(tool_choice="required")

set_tracing_disabled(disabled=True)


class Sight(BaseModel):
    """What the keeper saw."""

    hour: int
    seen: list[str]


@function_tool
def look(hour: int) -> str:
    """Look out."""
    return f"A ship, at {hour}."


def routed(at: Target) -> AsyncOpenAI:
    """An SDK client that was wrapped."""
    return at.wrap(AsyncOpenAI(base_url=at.base_url, api_key=at.api_key))


def chat(at: Target, instructions: str = SYSTEM, **settings: Any) -> Agent[None]:
    """An agent on the chat API."""
    model = OpenAIChatCompletionsModel(MODEL, openai_client=routed(at))
    return Agent("keeper", instructions=instructions, model=model, **settings)


def responses(at: Target, **settings: Any) -> Agent[None]:
    """An agent on the responses API."""
    model = OpenAIResponsesModel(MODEL, openai_client=routed(at))
    return Agent("keeper", instructions=SYSTEM, model=model, **settings)


def next_turn(result: Any) -> list[Any]:
    """What continues a run."""
    return [*result.to_input_list(), {"role": "user", "content": SECOND}]


async def run_chat(at: Target) -> None:
    keeper = chat(at)
    first = await Runner.run(keeper, FIRST)
    assert first.final_output
    await Runner.run(keeper, next_turn(first))
    await Runner.run(chat(at, OTHER_SYSTEM), OTHER)


async def run_responses(at: Target) -> None:
    keeper = responses(at)
    first = await Runner.run(keeper, FIRST)
    await Runner.run(keeper, next_turn(first))


async def run_responses_by_id(at: Target) -> None:
    keeper = responses(at)
    first = await Runner.run(keeper, FIRST)
    await Runner.run(keeper, SECOND, previous_response_id=first.last_response_id)


async def run_with_provider(at: Target) -> None:
    config = RunConfig(model_provider=OpenAIProvider(openai_client=routed(at)))
    keeper = Agent("keeper", instructions=SYSTEM, model=MODEL)
    first = await Runner.run(keeper, FIRST, run_config=config)
    await Runner.run(keeper, next_turn(first), run_config=config)


async def stream_chat(at: Target) -> None:
    await stream_twice(chat(at))


async def stream_responses(at: Target) -> None:
    await stream_twice(responses(at))


async def stream_twice(keeper: Agent[None]) -> None:
    first = Runner.run_streamed(keeper, FIRST)
    assert [event async for event in first.stream_events()]
    second = Runner.run_streamed(keeper, next_turn(first))
    assert [event async for event in second.stream_events()]
    assert second.final_output


async def tools_chat(at: Target) -> None:
    await look_out(chat(at, tools=[look], model_settings=REQUIRED))


async def tools_responses(at: Target) -> None:
    await look_out(responses(at, tools=[look], model_settings=REQUIRED))


async def look_out(keeper: Agent[None]) -> None:
    result = await Runner.run(keeper, FIRST)
    assert "A ship, at 0." in str(result.to_input_list())


async def structured_chat(at: Target) -> None:
    await see_twice(chat(at, output_type=Sight))


async def structured_responses(at: Target) -> None:
    await see_twice(responses(at, output_type=Sight))


async def see_twice(keeper: Agent[None]) -> None:
    first = await Runner.run(keeper, FIRST)
    assert first.final_output == Sight(hour=0, seen=[])
    await Runner.run(keeper, next_turn(first))


def run_sync(at: Target) -> None:
    keeper = chat(at)
    first = Runner.run_sync(keeper, FIRST)
    Runner.run_sync(keeper, next_turn(first))


CASES = Cases(
    distributions=("openai-agents", "openai", LIBRARY),
    sync=(run_sync,),
    asynchronous=(run_chat, run_responses, run_responses_by_id, run_with_provider),
    stream=(stream_chat, stream_responses),
    tools=(tools_chat, tools_responses, structured_chat, structured_responses),
)
