"""LlamaIndex's OpenAILike, which takes a sync and an async HTTP client."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
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
OPENING = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=FIRST)]
UNRELATED = [
    ChatMessage(role="system", content=OTHER_SYSTEM),
    ChatMessage(role="user", content=OTHER),
]


class Sight(BaseModel):
    """What the keeper saw."""

    hour: int
    seen: list[str]


def look(hour: int) -> str:
    """Look out."""
    return f"A ship, at {hour}."


def model(at: Target, **settings: Any) -> OpenAILike:
    """The model, as in the documentation of LlamaIndex but for its HTTP clients."""
    return OpenAILike(
        model=MODEL,
        api_base=at.base_url,
        api_key=at.api_key,
        is_chat_model=True,
        is_function_calling_model=True,
        http_client=at.http(LIBRARY),
        async_http_client=at.async_http(LIBRARY),
        **settings,
    )


def continued(text: str | None) -> list[ChatMessage]:
    """The second turn of a conversation."""
    assert text
    return [
        *OPENING,
        ChatMessage(role="assistant", content=text),
        ChatMessage(role="user", content=SECOND),
    ]


def chat(at: Target) -> None:
    llm = model(at)
    reply = llm.chat(OPENING)
    llm.chat(continued(reply.message.content))
    llm.chat(UNRELATED)


async def achat(at: Target) -> None:
    llm = model(at)
    reply = await llm.achat(OPENING)
    await llm.achat(continued(reply.message.content))
    await llm.achat(UNRELATED)


def stream(at: Target) -> None:
    llm = model(at)
    for messages in (OPENING, continued("A ship.")):
        assert "".join(chunk.delta or "" for chunk in llm.stream_chat(messages))


async def astream(at: Target) -> None:
    llm = model(at)
    for messages in (OPENING, continued("A ship.")):
        assert [chunk async for chunk in await llm.astream_chat(messages)]


def tools(at: Target) -> None:
    llm = model(at)
    tool = FunctionTool.from_defaults(look)
    reply = llm.chat_with_tools([tool], chat_history=OPENING, tool_required=True)
    call = llm.get_tool_calls_from_response(reply)[0]
    assert (call.tool_name, call.tool_kwargs) == ("look", {"hour": 0})
    result = ChatMessage(
        role="tool", content=look(0), additional_kwargs={"tool_call_id": call.tool_id}
    )
    llm.chat_with_tools([tool], chat_history=[*OPENING, reply.message, result])


def structured(at: Target) -> None:
    writer = model(at).as_structured_llm(Sight)
    for messages in (OPENING, continued("A ship.")):
        assert writer.chat(messages).raw == Sight(hour=0, seen=[])


CASES = Cases(
    distributions=("llama-index-llms-openai-like", "openai", LIBRARY),
    sync=(chat,),
    asynchronous=(achat,),
    stream=(stream, astream),
    tools=(tools, structured),
)
