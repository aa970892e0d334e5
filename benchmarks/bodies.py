"""Request bodies for the benchmarks of speed: chats of many turns, no two alike."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["TURNS", "chat", "encoded", "replied", "replied_chunk"]

TURNS: Final = 40
"""Messages of a chat behind its system prompt."""

_TEXT: Final = (
    "the cache holds what was computed before and a request that starts alike need not compute it "
    "again so every turn of a conversation goes where its last one went while load allows it"
)
_WORDS: Final = _TEXT.split()
_SYSTEM: Final = "You are a helpful assistant. Answer briefly and name your sources. " * 4
_BYTES_PER_TOKEN: Final = 4


def chat(number: int, tokens: int, messages: int = TURNS) -> list[dict[str, str]]:
    """Return a chat that no other number has, but for its system prompt.

    Args:
        number: Of the chat.
        tokens: Of its first 40 messages; each further one is as long as these.
        messages: How many, behind the system prompt.
    """
    draw = random.Random(number)
    length = tokens * _BYTES_PER_TOKEN // TURNS
    chosen = draw.choices(_WORDS, k=2000)
    text = " ".join(chosen)
    text *= 1 + length // len(text)
    made = [{"role": "system", "content": _SYSTEM}]
    for turn in range(messages):
        start = draw.randrange(max(1, len(text) - length))
        content = f"{number} {turn} {text[start : start + length]}"[:length]
        made.append({"role": "assistant" if turn % 2 else "user", "content": content})
    return made


def encoded(messages: Sequence[dict[str, str]], *, stream: bool = True) -> bytes:
    """Return the body of a chat as an SDK sends it."""
    body = {"messages": messages, "model": "meta-llama/Llama-3.1-8B-Instruct", "stream": stream}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def replied(model: str) -> dict[str, Any]:
    """Return what a server answers to a chat, the same to all."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "It is a cache. " * 8},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 8000,
            "completion_tokens": 32,
            "total_tokens": 8032,
            "prompt_tokens_details": {"cached_tokens": 7000},
        },
    }


def replied_chunk(model: str, text: str) -> dict[str, Any]:
    """Return one event of the same as a stream."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
