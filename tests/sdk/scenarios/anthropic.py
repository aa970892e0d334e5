"""The Anthropic SDK: on httpx before version 1, on httpx2 since."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic

from tests.sdk.support import (
    FIRST,
    MODEL,
    OTHER,
    OTHER_SYSTEM,
    PARAMETERS,
    SECOND,
    SYSTEM,
    Cases,
    LibraryName,
    Target,
    refused,
)

LIBRARY: LibraryName = "httpx" if anthropic.__version__.startswith("0.") else "httpx2"
OPENING: list[Any] = [{"role": "user", "content": FIRST}]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "system": SYSTEM, "messages": OPENING}
UNRELATED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 100,
    "system": OTHER_SYSTEM,
    "messages": [{"role": "user", "content": OTHER}],
}
TOOLS: list[Any] = [{"name": "look", "description": "Look out.", "input_schema": PARAMETERS}]


def continued(content: object) -> dict[str, Any]:
    """The second turn of a conversation."""
    assert content
    turns = [
        *OPENING,
        {"role": "assistant", "content": content},
        {"role": "user", "content": SECOND},
    ]
    return {**ASKED, "messages": turns}


def wrapped(at: Target) -> Anthropic:
    """An SDK client that was wrapped."""
    return at.wrap(Anthropic(base_url=at.root_url, api_key=at.api_key))


def wrapped_async(at: Target) -> AsyncAnthropic:
    """The async one."""
    return at.wrap(AsyncAnthropic(base_url=at.root_url, api_key=at.api_key))


def converse(client: Anthropic) -> None:
    """Two turns of a conversation, and another one."""
    reply = client.messages.create(**ASKED)
    client.messages.create(**continued([block.to_dict() for block in reply.content]))
    client.messages.create(**UNRELATED)


async def aconverse(client: AsyncAnthropic) -> None:
    """The same, awaited."""
    reply = await client.messages.create(**ASKED)
    await client.messages.create(**continued([block.to_dict() for block in reply.content]))
    await client.messages.create(**UNRELATED)


def messages(at: Target) -> None:
    with wrapped(at) as client:
        converse(client)


def messages_by_http_client(at: Target) -> None:
    http = at.http(LIBRARY)
    with Anthropic(base_url=at.root_url, api_key=at.api_key, http_client=http) as client:
        converse(client)


def count_copy_and_raw_response(at: Target) -> None:
    with wrapped(at) as client:
        brief = client.with_options(timeout=20, default_headers={"x-team": "lights"})
        count = brief.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "How long is this?"}]
        )
        assert count.input_tokens
        raw = brief.messages.with_raw_response.create(**ASKED)
        text: Any = raw.parse().content[0]
        with client.messages.with_streaming_response.create(**continued(text.text)) as response:
            assert response.parse().content


async def amessages(at: Target) -> None:
    async with wrapped_async(at) as client:
        await aconverse(client)


async def amessages_by_http_client(at: Target) -> None:
    http = at.async_http(LIBRARY)
    async with AsyncAnthropic(base_url=at.root_url, api_key=at.api_key, http_client=http) as client:
        await aconverse(client)


def stream(at: Target) -> None:
    with wrapped(at) as client:
        with client.messages.stream(**ASKED) as events:
            text = "".join(events.text_stream)
        last = list(client.messages.create(**continued(text), stream=True))[-1]
        assert last.type == "message_stop"


def stream_left_early(at: Target) -> None:
    with wrapped(at) as client:
        for asked in (ASKED, continued("A ship.")):
            events = client.messages.create(**asked, stream=True)
            next(iter(events))
            events.close()


async def astream(at: Target) -> None:
    async with wrapped_async(at) as client:
        async with client.messages.stream(**ASKED) as events:
            text = "".join([piece async for piece in events.text_stream])
        events = await client.messages.create(**continued(text), stream=True)
        assert [event.type async for event in events][-1] == "message_stop"


def tools(at: Target) -> None:
    with wrapped(at) as client:
        asked = {**ASKED, "tools": TOOLS}
        reply = client.messages.create(**asked, tool_choice={"type": "any"})
        call: Any = reply.content[0]
        assert (call.name, call.input) == ("look", {"hour": 0})
        turns = [
            *OPENING,
            {"role": "assistant", "content": [call.to_dict()]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "A ship."}],
            },
        ]
        assert client.messages.create(**{**asked, "messages": turns}).content
        with client.messages.stream(**asked, tool_choice={"type": "any"}) as events:
            streamed: Any = events.get_final_message().content[0]
        assert streamed.input == {"hour": 0}


async def atools(at: Target) -> None:
    async with wrapped_async(at) as client:
        for _ in range(2):
            reply = await client.messages.create(
                **ASKED, tools=TOOLS, tool_choice={"type": "tool", "name": "look"}
            )
            assert reply.stop_reason == "tool_use"


ONE_SERVICE: dict[str, dict[str, Any]] = {
    "AnthropicBedrock": {"aws_access_key": "-", "aws_secret_key": "-", "aws_region": "r"},
    "AnthropicVertex": {"region": "r", "project_id": "p", "access_token": "-"},
    "AnthropicFoundry": {"api_key": "-", "resource": "r"},
    "AnthropicAWS": {"api_key": "-", "aws_region": "r", "workspace_id": "w"},
    "AnthropicBedrockMantle": {"api_key": "-", "aws_region": "r"},
    "AnthropicGoogleCloud": {"project": "p", "location": "l", "workspace_id": "w"},
}


def refuses_clients_of_one_service() -> None:
    for name, given in ONE_SERVICE.items():
        for prefix in ("", "Async"):
            kind = getattr(anthropic, prefix + name, None)  # some are newer than others
            if kind is not None:
                refused(kind(**given), "router.wrap(Anthropic(api_key=...))", "prepare=")


def refuses_own_constructor() -> None:
    class Keeper(Anthropic):
        def __init__(self) -> None:
            super().__init__(api_key="-")

    class AsyncKeeper(AsyncAnthropic):
        def __init__(self) -> None:
            super().__init__(api_key="-")

    refused(Keeper(), "root_url", f'http_client=router.client("{LIBRARY}")')
    refused(AsyncKeeper(), "root_url", f'http_client=router.async_client("{LIBRARY}")')


CASES = Cases(
    distributions=("anthropic", LIBRARY),
    sync=(messages, messages_by_http_client, count_copy_and_raw_response),
    asynchronous=(amessages, amessages_by_http_client),
    stream=(stream, stream_left_early, astream),
    tools=(tools, atools),
    refuses=(refuses_clients_of_one_service, refuses_own_constructor),
)
