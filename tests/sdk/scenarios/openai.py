"""The OpenAI SDK: on httpx before version 3, on httpx2 since."""

from __future__ import annotations

from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.sdk.support import (
    FIRST,
    MODEL,
    OPENING,
    SECOND,
    SYSTEM,
    TOOLS,
    UNRELATED,
    Cases,
    Target,
    continued,
    library_of_openai,
    refused,
)

LIBRARY = library_of_openai()


class Sight(BaseModel):
    """What structured output is to look like."""

    hour: int
    seen: list[str]


def wrapped(at: Target) -> OpenAI:
    """An SDK client that was wrapped."""
    return at.wrap(OpenAI(base_url=at.base_url, api_key=at.api_key))


def wrapped_async(at: Target) -> AsyncOpenAI:
    """The async one."""
    return at.wrap(AsyncOpenAI(base_url=at.base_url, api_key=at.api_key))


def chat(at: Target) -> None:
    with wrapped(at) as client:
        converse(client)


def chat_by_http_client(at: Target) -> None:
    with OpenAI(base_url=at.base_url, api_key=at.api_key, http_client=at.http(LIBRARY)) as client:
        converse(client)


def converse(client: OpenAI) -> None:
    create = client.chat.completions.create
    reply = create(model=MODEL, messages=OPENING)
    create(model=MODEL, messages=continued(reply.choices[0].message.content))
    create(model=MODEL, messages=UNRELATED)


def copies_and_raw_responses(at: Target) -> None:
    with wrapped(at) as client:
        brief = client.with_options(timeout=20, default_headers={"x-team": "lights"})
        raw = brief.chat.completions.with_raw_response.create(model=MODEL, messages=OPENING)
        assert raw.status_code == 200
        text = raw.parse().choices[0].message.content
        with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=continued(text)
        ) as response:
            assert response.parse().choices


def responses(at: Target) -> None:
    with wrapped(at) as client:
        create = client.responses.create
        first = create(model=MODEL, instructions=SYSTEM, input=FIRST)
        assert first.output_text
        create(model=MODEL, instructions=SYSTEM, input=SECOND, previous_response_id=first.id)


def completions_embeddings_models(at: Target) -> None:
    with wrapped(at) as client:
        text = client.completions.create(model=MODEL, prompt=SYSTEM + FIRST).choices[0].text
        client.completions.create(model=MODEL, prompt=SYSTEM + FIRST + text + SECOND)
        assert client.embeddings.create(model=MODEL, input=["dawn", "noon"]).data
        assert client.models.list().data


def subclass(at: Target) -> None:
    class Keeper(OpenAI):
        pass

    with at.wrap(Keeper(base_url=at.base_url, api_key=at.api_key)) as client:
        assert type(client) is Keeper
        converse(client)


async def achat(at: Target) -> None:
    async with wrapped_async(at) as client:
        await aconverse(client)


async def achat_by_http_client(at: Target) -> None:
    http = at.async_http(LIBRARY)
    async with AsyncOpenAI(base_url=at.base_url, api_key=at.api_key, http_client=http) as client:
        await aconverse(client)


async def aconverse(client: AsyncOpenAI) -> None:
    create = client.chat.completions.create
    reply = await create(model=MODEL, messages=OPENING)
    await create(model=MODEL, messages=continued(reply.choices[0].message.content))
    await create(model=MODEL, messages=UNRELATED)


async def aresponses(at: Target) -> None:
    async with wrapped_async(at) as client:
        create = client.responses.create
        first = await create(model=MODEL, instructions=SYSTEM, input=FIRST)
        assert first.output_text
        await create(model=MODEL, instructions=SYSTEM, input=SECOND, previous_response_id=first.id)


def stream(at: Target) -> None:
    with wrapped(at) as client:
        chunks = client.chat.completions.create(model=MODEL, messages=OPENING, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        second = client.chat.completions.create(
            model=MODEL,
            messages=continued(text),
            stream=True,
            stream_options={"include_usage": True},
        )
        assert list(second)[-1].usage
        with client.chat.completions.stream(model=MODEL, messages=continued(text)) as events:
            events.until_done()
            assert events.get_final_completion().choices[0].message.content


def stream_left_early(at: Target) -> None:
    with wrapped(at) as client:
        for messages in (OPENING, continued("It saw a ship.")):
            chunks = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
            next(iter(chunks))
            chunks.close()


def stream_responses(at: Target) -> None:
    with wrapped(at) as client:
        events = client.responses.create(model=MODEL, instructions=SYSTEM, input=FIRST, stream=True)
        last = list(events)[-1]
        assert last.type == "response.completed"
        with client.responses.stream(
            model=MODEL,
            instructions=SYSTEM,
            input=SECOND,
            previous_response_id=last.response.id,
        ) as more:
            more.until_done()
            assert more.get_final_response().output_text


async def astream(at: Target) -> None:
    async with wrapped_async(at) as client:
        chunks = await client.chat.completions.create(model=MODEL, messages=OPENING, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        async with client.chat.completions.stream(model=MODEL, messages=continued(text)) as events:
            await events.until_done()


def tools(at: Target) -> None:
    with wrapped(at) as client:
        create = client.chat.completions.create
        reply = create(model=MODEL, messages=OPENING, tools=TOOLS, tool_choice="required")
        message: Any = reply.choices[0].message
        call = message.tool_calls[0]
        assert call.function.arguments == '{"hour": 0}'
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "A ship."}
        said: Any = {"role": "assistant", "tool_calls": [call.model_dump(exclude_none=True)]}
        assert create(model=MODEL, messages=[*OPENING, said, result], tools=TOOLS).choices


def structured(at: Target) -> None:
    with wrapped(at) as client:
        parse = client.chat.completions.parse
        reply = parse(model=MODEL, messages=OPENING, response_format=Sight)
        sight = reply.choices[0].message.parsed
        assert sight == Sight(hour=0, seen=[])
        parse(model=MODEL, messages=continued(sight.model_dump_json()), response_format=Sight)


async def atools_and_structured(at: Target) -> None:
    async with wrapped_async(at) as client:
        reply = await client.chat.completions.create(
            model=MODEL, messages=OPENING, tools=TOOLS, tool_choice="required"
        )
        assert reply.choices[0].message.tool_calls
        answer = await client.responses.parse(
            model=MODEL, instructions=SYSTEM, input=FIRST, text_format=Sight
        )
        assert answer.output_parsed == Sight(hour=0, seen=[])


def refuses_azure() -> None:
    given: Any = {"api_key": "-", "api_version": "2024-10-21", "azure_endpoint": "https://a.test"}
    for kind in (openai.AzureOpenAI, openai.AsyncAzureOpenAI):
        refused(kind(**given), "router.wrap(OpenAI(api_key=...))", "prepare=")


def refuses_bedrock() -> None:
    for name in ("BedrockOpenAI", "AsyncBedrockOpenAI"):
        kind = getattr(openai, name, None)  # since version 3
        if kind is not None:
            refused(
                kind(api_key="-", base_url="https://a.test"), "router.wrap(OpenAI(api_key=...))"
            )


def refuses_own_constructor() -> None:
    class Keeper(OpenAI):
        def __init__(self) -> None:
            super().__init__(api_key="-")

    class AsyncKeeper(AsyncOpenAI):
        def __init__(self) -> None:
            super().__init__(api_key="-")

    refused(Keeper(), "constructor", f'http_client=router.client("{LIBRARY}")')
    refused(AsyncKeeper(), "constructor", f'http_client=router.async_client("{LIBRARY}")')


def refuses_what_is_no_client() -> None:
    client = OpenAI(api_key="-")
    refused(client.chat.completions, "OpenAI")
    refused(openai, "OpenAI")


CASES = Cases(
    distributions=("openai", LIBRARY),
    sync=(
        chat,
        chat_by_http_client,
        copies_and_raw_responses,
        responses,
        completions_embeddings_models,
        subclass,
    ),
    asynchronous=(achat, achat_by_http_client, aresponses),
    stream=(stream, stream_left_early, stream_responses, astream),
    tools=(tools, structured, atools_and_structured),
    refuses=(
        refuses_azure,
        refuses_bedrock,
        refuses_own_constructor,
        refuses_what_is_no_client,
    ),
)
