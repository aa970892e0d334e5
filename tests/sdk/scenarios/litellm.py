"""LiteLLM, whose OpenAI-like providers take an SDK client, or HTTP clients for all calls."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import: it would look for prices

import litellm
from openai import AsyncOpenAI, OpenAI

from tests.sdk.support import (
    MODEL,
    OPENING,
    RESPONSE_FORMAT,
    TOOLS,
    UNRELATED,
    Cases,
    Target,
    continued,
    library_of_openai,
)

LIBRARY = library_of_openai()

# By itself it awaits over aiohttp, which spells the names of headers another way.
litellm.disable_aiohttp_transport = True


def to(at: Target) -> dict[str, Any]:
    """What every call is given: the model and a wrapped client."""
    client = at.wrap(OpenAI(base_url=at.base_url, api_key=at.api_key))
    return {"model": f"openai/{MODEL}", "client": client}


def to_async(at: Target) -> dict[str, Any]:
    """The async one."""
    client = at.wrap(AsyncOpenAI(base_url=at.base_url, api_key=at.api_key))
    return {"model": f"openai/{MODEL}", "client": client}


def completion(at: Target) -> None:
    given = to(at)
    reply: Any = litellm.completion(messages=OPENING, **given)
    litellm.completion(messages=continued(reply.choices[0].message.content), **given)
    litellm.completion(messages=UNRELATED, **given)


@contextmanager
def sessions(at: Target) -> Iterator[dict[str, Any]]:
    """LiteLLM's own HTTP clients for the whole process, in place of a client for each call."""
    litellm.client_session = at.http(LIBRARY)
    litellm.aclient_session = at.async_http(LIBRARY)
    litellm.in_memory_llm_clients_cache.flush_cache()
    try:
        yield {"model": f"openai/{MODEL}", "api_base": at.base_url, "api_key": at.api_key}
    finally:
        litellm.client_session = litellm.aclient_session = None


def completion_by_session(at: Target) -> None:
    with sessions(at) as given:
        for messages in (OPENING, continued("A ship."), UNRELATED):
            litellm.completion(messages=messages, **given)


async def acompletion(at: Target) -> None:
    given = to_async(at)
    reply: Any = await litellm.acompletion(messages=OPENING, **given)
    await litellm.acompletion(messages=continued(reply.choices[0].message.content), **given)
    await litellm.acompletion(messages=UNRELATED, **given)


async def acompletion_by_session(at: Target) -> None:
    with sessions(at) as given:
        for messages in (OPENING, continued("A ship."), UNRELATED):
            await litellm.acompletion(messages=messages, **given)


def stream(at: Target) -> None:
    given = to(at)
    for messages in (OPENING, continued("A ship.")):
        chunks: Any = litellm.completion(messages=messages, stream=True, **given)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def astream(at: Target) -> None:
    given = to_async(at)
    for messages in (OPENING, continued("A ship.")):
        chunks: Any = await litellm.acompletion(messages=messages, stream=True, **given)
        assert [chunk async for chunk in chunks]


def tools(at: Target) -> None:
    given = to(at)
    reply: Any = litellm.completion(messages=OPENING, tools=TOOLS, tool_choice="required", **given)
    message = reply.choices[0].message
    call = message.tool_calls[0]
    assert call.function.arguments == '{"hour": 0}'
    result = {"role": "tool", "tool_call_id": call.id, "content": "A ship."}
    litellm.completion(messages=[*OPENING, message, result], tools=TOOLS, **given)


def structured(at: Target) -> None:
    given = to(at)
    for messages in (OPENING, continued("A ship.")):
        reply: Any = litellm.completion(messages=messages, response_format=RESPONSE_FORMAT, **given)
        assert reply.choices[0].message.content == '{"hour": 0}'


CASES = Cases(
    distributions=("litellm", "openai", LIBRARY),
    sync=(completion, completion_by_session),
    asynchronous=(acompletion, acompletion_by_session),
    stream=(stream, astream),
    tools=(tools, structured),
)
