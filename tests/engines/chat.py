"""One chat request to a real engine, streamed, greedy and short, and what it came to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

import httpx

from tests.engines.replica import MODEL_NAME

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionMessageParam

MAX_TOKENS = 8
"""How long a reply may get: enough to be part of the next prompt, cheap to decode."""


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one request came to.

    Attributes:
        cached_tokens: of the prompt, as the engine reports it.
        prompt_tokens: all of the prompt.
        completion_tokens: of the reply.
        ttft_s: from sending the request to the first piece of the reply.
        endpoint: who answered.
        text: the reply, unchanged: it becomes part of the next prompt.
    """

    cached_tokens: int
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float
    endpoint: str
    text: str


Send = Callable[[Sequence[Message]], Reply]

EndpointOf = Callable[[Mapping[str, Any]], str]
"""Reads from a response's `extensions` who answered, for transports that say so there."""


def direct_client() -> httpx.Client:
    """A plain client for talking to a replica without a router.

    It keeps no connection: llama-server closes one after each stream, against its own Keep-Alive
    header, and a request that follows at once would be lost on it.
    """
    return httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)


def http_chat(
    client: httpx.Client,
    url: str,
    messages: Sequence[Message],
    *,
    endpoint_of: EndpointOf | None = None,
    extra: Mapping[str, int] | None = None,
) -> Reply:
    """Sends one chat over plain HTTP.

    Args:
        client: may be shared by threads.
        url: the base URL.
        messages: the chat.
        endpoint_of: names who answered; without it that is `url`.
        extra: further fields of the body, such as llama.cpp's `id_slot`.

    Raises:
        httpx.HTTPError: the request failed, or its status was an error.
    """
    body = {
        "model": MODEL_NAME,
        "messages": list(messages),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(extra or {}),
    }
    text, ttft_s = "", 0.0
    usage: dict[str, Any] = {}
    began = time.monotonic()
    with client.stream("POST", f"{url}/chat/completions", json=body, timeout=120) as response:
        response.raise_for_status()
        endpoint = endpoint_of(response.extensions) if endpoint_of else url
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                if not ttft_s and (piece or choice["finish_reason"]):
                    ttft_s = time.monotonic() - began
                text += piece
    return Reply(
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        ttft_s=ttft_s,
        endpoint=endpoint,
        text=text,
    )


def openai_chat(
    client: OpenAI, messages: Sequence[Message], *, endpoint_of: EndpointOf | None = None
) -> Reply:
    """Sends one chat with the OpenAI SDK; like `http_chat`, but for the client's base URL.

    Raises:
        openai.OpenAIError: the request failed, or its status was an error.
    """
    text, ttft_s, usage = "", 0.0, None
    began = time.monotonic()
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL_NAME,
        messages=cast("list[ChatCompletionMessageParam]", list(messages)),
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    extensions = raw.http_response.extensions
    endpoint = endpoint_of(extensions) if endpoint_of else str(client.base_url)
    with raw.parse() as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                piece = choice.delta.content or ""
                if not ttft_s and (piece or choice.finish_reason):
                    ttft_s = time.monotonic() - began
                text += piece
    if usage is None or usage.prompt_tokens_details is None:
        raise ValueError(f"the engine reported no cached tokens: usage is {usage}")
    return Reply(
        cached_tokens=usage.prompt_tokens_details.cached_tokens or 0,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        ttft_s=ttft_s,
        endpoint=endpoint,
        text=text,
    )
