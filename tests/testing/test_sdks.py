"""The real OpenAI and Anthropic SDKs, on mock transports and on sockets, sync and async."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from prefixroute.testing import ErrorFirst, FakeCluster, RateLimited
from tests.testing.support import INSTANT, over_backends, run

LONG = "word " * 40
MESSAGES: list[Any] = [{"role": "user", "content": LONG}]
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OPENAI_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}
]
ANTHROPIC_TOOLS: list[Any] = [{"name": "look", "description": "", "input_schema": PARAMETERS}]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(2, model=INSTANT, time_scale=0)


@pytest.fixture(params=["mock", "sockets"])
def oai(request: pytest.FixtureRequest, cluster: FakeCluster) -> Iterator[openai.OpenAI]:
    if request.param == "mock":
        http = httpx2.Client(transport=cluster.transport())
        with openai.OpenAI(base_url=cluster.urls[0], api_key="-", http_client=http) as client:
            yield client
    else:
        with cluster.serve() as urls, openai.OpenAI(base_url=urls[0], api_key="-") as client:
            yield client


@pytest.fixture(params=["mock", "sockets"])
def claude(request: pytest.FixtureRequest, cluster: FakeCluster) -> Iterator[anthropic.Anthropic]:
    if request.param == "mock":
        http = httpx2.Client(transport=cluster.transport())
        url = cluster.urls[0].removesuffix("/v1")
        with anthropic.Anthropic(base_url=url, api_key="-", http_client=http) as client:
            yield client
    else:
        with (
            cluster.serve() as urls,
            anthropic.Anthropic(base_url=urls[0].removesuffix("/v1"), api_key="-") as client,
        ):
            yield client


def test_openai_chat(oai: openai.OpenAI) -> None:
    for is_repeated in (False, True):
        reply = oai.chat.completions.create(model="m", messages=MESSAGES)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 8
        assert reply.usage.prompt_tokens_details is not None
        assert bool(reply.usage.prompt_tokens_details.cached_tokens) == is_repeated
    assert reply.system_fingerprint == "replica-0"

    stream = oai.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == reply.choices[0].message.content
    assert chunks[-1].usage == reply.usage


def test_openai_chat_helpers(oai: openai.OpenAI) -> None:
    with oai.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    reply = oai.chat.completions.create(
        model="m", messages=MESSAGES, tools=OPENAI_TOOLS, tool_choice="required"
    )
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    call = calls[0]
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"n": 0}


def test_openai_completions_embeddings_models(oai: openai.OpenAI) -> None:
    reply = oai.completions.create(model="m", prompt=[[1, 2], [3]])
    assert len(reply.choices) == 2
    streamed = oai.completions.create(model="m", prompt=[[1, 2], [3]], stream=True)
    assert sum(len(chunk.choices[0].text) for chunk in streamed) == 64
    vectors = oai.embeddings.create(model="m", input=["a", "b"]).data
    raw = oai.embeddings.create(model="m", input="a", encoding_format="base64").data[0].embedding
    assert len(base64.b64decode(str(raw))) == 4 * len(vectors[0].embedding) == 32
    assert oai.models.list().data[0].id == "simulated-model"


def test_openai_responses(oai: openai.OpenAI) -> None:
    first = oai.responses.create(model="m", input=LONG, instructions="Be brief.")
    second = oai.responses.create(model="m", input="More?", previous_response_id=first.id)
    assert first.output_text
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == 0, "instructions are not carried over"
    with pytest.raises(openai.NotFoundError):
        oai.responses.create(model="m", input="More?", previous_response_id="resp_unknown")

    events = list(oai.responses.create(model="m", input=LONG, stream=True))
    last = events[-1]
    assert last.type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == last.response.output_text
    with oai.responses.stream(model="m", input=LONG) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == last.response.output_text


def test_openai_responses_call_tools(oai: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "name": "look", "parameters": PARAMETERS}]
    reply = oai.responses.create(model="m", input="a", tools=tools, tool_choice="required")
    item = reply.output[0]
    assert item.type == "function_call"
    assert json.loads(item.arguments) == {"n": 0}
    with oai.responses.stream(
        model="m", input="a", tools=tools, tool_choice={"type": "function", "name": "look"}
    ) as stream:
        stream.until_done()
        assert stream.get_final_response().output[0].type == "function_call"


def test_openai_errors(oai: openai.OpenAI, cluster: FakeCluster) -> None:
    cluster.fail(0, RateLimited(retry_after_s=0.01), times=1)
    assert oai.chat.completions.create(model="m", messages=MESSAGES).choices
    assert len(cluster.requests) == 2
    impatient = oai.with_options(max_retries=0)
    cluster.fail(0, RateLimited(), times=1)
    with pytest.raises(openai.RateLimitError):
        impatient.chat.completions.create(model="m", messages=MESSAGES)
    cluster.fail(0, ErrorFirst())
    with pytest.raises(openai.APIError, match="The engine failed"):
        list(impatient.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    with pytest.raises(openai.APIError, match="The engine failed"):
        list(impatient.responses.create(model="m", input="a", stream=True))


# The SDK leaves the generator of a finished stream to the collector, which trio tells everybody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@over_backends
def test_openai_async(backend: str, cluster: FakeCluster) -> None:
    async def main() -> None:
        http = httpx2.AsyncClient(transport=cluster.async_transport())
        async with openai.AsyncOpenAI(
            base_url=cluster.urls[1], api_key="-", http_client=http
        ) as client:
            reply = await client.chat.completions.create(model="m", messages=MESSAGES)
            assert reply.usage is not None
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(parts) == reply.choices[0].message.content

    run(backend, main)


def test_openai_async_on_sockets(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with (
            cluster.serve() as urls,
            openai.AsyncOpenAI(base_url=urls[1], api_key="-") as client,
        ):
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            assert len([chunk async for chunk in stream]) == 10

    run("asyncio", main)


def test_anthropic_messages(claude: anthropic.Anthropic) -> None:
    for is_repeated in (False, True):
        reply = claude.messages.create(model="m", max_tokens=50, system=LONG, messages=MESSAGES)
        assert bool(reply.usage.cache_read_input_tokens) == is_repeated
    assert reply.content[0].type == "text"
    assert (reply.stop_reason, reply.usage.output_tokens) == ("end_turn", 8)
    assert claude.messages.count_tokens(model="m", messages=MESSAGES).input_tokens > 40

    with claude.messages.stream(model="m", max_tokens=50, system=LONG, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == reply.content[0].text
    assert final.usage.output_tokens == 8
    assert final.usage.cache_read_input_tokens == reply.usage.cache_read_input_tokens
    cut = claude.messages.create(model="m", max_tokens=3, messages=MESSAGES)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)


def test_anthropic_events(claude: anthropic.Anthropic) -> None:
    events = claude.messages.create(model="m", max_tokens=2, messages=MESSAGES, stream=True)
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_anthropic_tools(claude: anthropic.Anthropic) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "look"}):
        asked: Any = {
            "model": "m",
            "max_tokens": 50,
            "messages": MESSAGES,
            "tools": ANTHROPIC_TOOLS,
            "tool_choice": choice,
        }
        block = claude.messages.create(**asked).content[0]
        assert block.type == "tool_use"
        assert (block.name, block.input) == ("look", {"n": 0})
        with claude.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert streamed.content[0].to_dict()["input"] == {"n": 0}
        assert streamed.stop_reason == "tool_use"


def test_anthropic_errors(claude: anthropic.Anthropic, cluster: FakeCluster) -> None:
    impatient = claude.with_options(max_retries=0)
    cluster.fail(0, RateLimited(), times=1)
    with pytest.raises(anthropic.RateLimitError):
        impatient.messages.create(model="m", max_tokens=5, messages=MESSAGES)
    cluster.fail(0, ErrorFirst())
    with (
        pytest.raises(anthropic.APIStatusError, match="The engine failed"),
        impatient.messages.stream(model="m", max_tokens=5, messages=MESSAGES) as stream,
    ):
        stream.get_final_message()


@over_backends
def test_anthropic_async(backend: str, cluster: FakeCluster) -> None:
    async def main() -> None:
        http = httpx2.AsyncClient(transport=cluster.async_transport())
        async with anthropic.AsyncAnthropic(
            base_url="http://replica-0.test", api_key="-", http_client=http
        ) as client:
            reply = await client.messages.create(model="m", max_tokens=50, messages=MESSAGES)
            async with client.messages.stream(
                model="m", max_tokens=50, messages=MESSAGES
            ) as stream:
                final = await stream.get_final_message()
            assert final.content[0].to_dict()["text"] == reply.content[0].to_dict()["text"]

    run(backend, main)
