"""LangChain's ChatOpenAI, which takes a sync and an async HTTP client."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
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
OPENING: list[Any] = [SystemMessage(SYSTEM), HumanMessage(FIRST)]
UNRELATED: list[Any] = [SystemMessage(OTHER_SYSTEM), HumanMessage(OTHER)]


@tool
def look(hour: int) -> str:
    """Look out."""
    return f"A ship, at {hour}."


class Sight(BaseModel):
    """What the keeper saw."""

    hour: int
    seen: list[str]


def model(at: Target, **settings: Any) -> ChatOpenAI:
    """The model, as in the documentation of LangChain but for its HTTP clients."""
    return ChatOpenAI(
        model=MODEL,
        base_url=at.base_url,
        api_key=at.api_key,
        http_client=at.http(LIBRARY),
        http_async_client=at.async_http(LIBRARY),
        **settings,
    )


def continued(text: Any) -> list[Any]:
    """The second turn of a conversation."""
    assert text
    return [*OPENING, AIMessage(text), HumanMessage(SECOND)]


def invoke(at: Target) -> None:
    chat = model(at)
    reply = chat.invoke(OPENING)
    chat.invoke(continued(reply.content))
    chat.invoke(UNRELATED)


def responses_api(at: Target) -> None:
    chat = model(at, use_responses_api=True)
    reply = chat.invoke(OPENING)
    chat.invoke([*OPENING, reply, HumanMessage(SECOND)])


def batch_and_embeddings(at: Target) -> None:
    chat = model(at)
    chat.batch([OPENING, continued("A ship.")], {"max_concurrency": 1})
    embeddings = OpenAIEmbeddings(
        model=MODEL,
        base_url=at.base_url,
        api_key=at.api_key,
        check_embedding_ctx_length=False,
        http_client=at.http(LIBRARY),
    )
    assert embeddings.embed_documents(["dawn", "noon"])


async def ainvoke(at: Target) -> None:
    chat = model(at)
    reply = await chat.ainvoke(OPENING)
    await chat.ainvoke(continued(reply.content))
    await chat.ainvoke(UNRELATED)


def stream(at: Target) -> None:
    chat = model(at)
    text = "".join(str(chunk.content) for chunk in chat.stream(OPENING))
    more = list(chat.stream(continued(text), stream_usage=True))
    assert any(chunk.usage_metadata for chunk in more)


async def astream(at: Target) -> None:
    chat = model(at)
    text = "".join([str(chunk.content) async for chunk in chat.astream(OPENING)])
    assert [chunk async for chunk in chat.astream(continued(text))]


def tools(at: Target) -> None:
    forced = model(at).bind_tools([look], tool_choice="required")
    reply = forced.invoke(OPENING)
    call = reply.tool_calls[0]
    assert call["args"] == {"hour": 0}
    result = ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"])
    model(at).bind_tools([look]).invoke([*OPENING, reply, result])


def structured_by_schema(at: Target) -> None:
    writer = model(at).with_structured_output(Sight, method="json_schema")
    for messages in (OPENING, continued("A ship.")):
        assert writer.invoke(messages) == Sight(hour=0, seen=[])


def structured_by_tool(at: Target) -> None:
    writer = model(at).with_structured_output(Sight, method="function_calling")
    for messages in (OPENING, continued("A ship.")):
        assert writer.invoke(messages) == Sight(hour=0, seen=[])


async def astructured(at: Target) -> None:
    writer = model(at).with_structured_output(Sight)
    for messages in (OPENING, continued("A ship.")):
        assert await writer.ainvoke(messages) == Sight(hour=0, seen=[])


CASES = Cases(
    distributions=("langchain-openai", "openai", LIBRARY),
    sync=(invoke, responses_api, batch_and_embeddings),
    asynchronous=(ainvoke,),
    stream=(stream, astream),
    tools=(tools, structured_by_schema, structured_by_tool, astructured),
)
