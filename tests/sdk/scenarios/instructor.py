"""Instructor, which patches an SDK client: structured output is all it does."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

from typing import Any

import instructor
from openai import AsyncOpenAI, OpenAI
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


def opening() -> list[Any]:
    """The first turn of a conversation; made anew, because Instructor adds to it."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": FIRST}]


def continued(text: str) -> list[Any]:
    """The second turn."""
    return [
        *opening(),
        {"role": "assistant", "content": text},
        {"role": "user", "content": SECOND},
    ]


def unrelated() -> list[Any]:
    """Another conversation."""
    return [{"role": "system", "content": OTHER_SYSTEM}, {"role": "user", "content": OTHER}]


class Sight(BaseModel):
    """What the keeper saw."""

    hour: int
    seen: list[str]


def routed(at: Target, **settings: Any) -> Any:
    """Instructor around an SDK client that was wrapped."""
    client = at.wrap(OpenAI(base_url=at.base_url, api_key=at.api_key))
    return instructor.from_openai(client, **settings)


def routed_async(at: Target) -> Any:
    """The async one."""
    client = at.wrap(AsyncOpenAI(base_url=at.base_url, api_key=at.api_key))
    return instructor.from_openai(client)


def ask(client: Any) -> None:
    """Two turns of a conversation, and another one."""
    create = client.chat.completions.create
    sight = create(model=MODEL, response_model=Sight, messages=opening())
    assert (sight.hour, sight.seen) == (0, [])
    messages = continued(sight.model_dump_json())
    assert create(model=MODEL, response_model=Sight, messages=messages).hour == 0
    assert create(model=MODEL, response_model=Sight, messages=unrelated()).hour == 0


def by_tool(at: Target) -> None:
    ask(routed(at))


def by_schema(at: Target) -> None:
    ask(routed(at, mode=instructor.Mode.JSON_SCHEMA))


async def asynchronous(at: Target) -> None:
    create = routed_async(at).chat.completions.create
    sight = await create(model=MODEL, response_model=Sight, messages=opening())
    await create(model=MODEL, response_model=Sight, messages=continued(sight.model_dump_json()))
    await create(model=MODEL, response_model=Sight, messages=unrelated())


def stream(at: Target) -> None:
    create = routed(at).chat.completions.create_partial
    for messages in (opening(), continued("A ship.")):
        *_, sight = create(model=MODEL, response_model=Sight, messages=messages)
        assert sight.hour == 0


async def astream(at: Target) -> None:
    create = routed_async(at).chat.completions.create_partial
    for messages in (opening(), continued("A ship.")):
        pieces = create(model=MODEL, response_model=Sight, messages=messages)
        assert [sight async for sight in pieces][-1].hour == 0


CASES = Cases(
    distributions=("instructor", "openai", LIBRARY),
    sync=(by_tool,),
    asynchronous=(asynchronous,),
    stream=(stream, astream),
    tools=(by_tool, by_schema),
)
