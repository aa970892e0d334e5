"""Golden vectors: what prompts of every shape are, for ever and on every machine.

``python -m tests.core.golden`` prints them as computed here and now; with a file's name it writes
them there. A vector that changes moves keys: that is a breaking change of placement.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.request import read_prompt
from tests.core.bodies import ANTHROPIC_TOOL, IMAGE, TOOL, chat, user

__all__ = ["FILE", "compute"]

FILE = Path(__file__).with_name("golden_prompts.json")

_SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
_TURNS: list[dict[str, Any]] = [
    _SYSTEM,
    user("What is the weather in Köln? 😀"),
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny.", "reasoning": "The tool says so."},
]
_LONG = "The quick brown fox jumps over the lazy dog. " * 60
_ITEMS: list[dict[str, Any]] = [
    user([{"type": "input_text", "text": "weather?"}]),
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
]
_CLAUDE = {
    "model": "claude",
    "tools": [{**ANTHROPIC_TOOL, "cache_control": {"type": "ephemeral"}}],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
        {"type": "text", "text": "You are a coder.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        user("list files"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls"}]},
        user([{"type": "tool_result", "tool_use_id": "t", "content": "a.txt"}]),
    ],
}

_REQUESTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (chat(user("hi")), {}),
    "chat without a model": ({"messages": [user("hi")]}, {}),
    "chat of five messages": (chat(*_TURNS), {"path": "/v1/chat/completions"}),
    "chat with tools": (chat(*_TURNS[:2], tools=[TOOL]), {}),
    "chat of long messages": (chat({"role": "system", "content": _LONG}, user(_LONG)), {}),
    "chat in small blocks": (chat(_SYSTEM, user(_LONG)), {"cut": Cut(block_bytes=100)}),
    "chat with an image": (chat(user([{"type": "text", "text": "what?"}, IMAGE])), {}),
    "chat with salts": (
        chat(
            user("hi"),
            cache_salt="salt",
            chat_template="{{ x }}",
            chat_template_kwargs={"enable_thinking": False},
            lora_path="adapter",
        ),
        {},
    ),
    "chat with odd messages": (chat("text", None, {}, {"role": 3}, user({"a": [1.5, None]})), {}),
    "chat with half a surrogate pair": (chat(user("a\ud800b"), user([{"x": "\udfff"}])), {}),
    "chat of a session": (chat(*_TURNS), {"session": "session-1"}),
    "chat of a session by header": (chat(*_TURNS), {"headers": {"X-Session-Id": "session-1"}}),
    "chat with a prefix id": (chat(user("hi"), prompt_cache_key="prefix-1"), {}),
    "chat in a window": (chat(*_TURNS), {"cut": Cut(window_bytes=32)}),
    "chat in a wide window": (chat(*_TURNS), {"cut": Cut(window_bytes=4096)}),
    "completion": ({"model": "m", "prompt": "Once upon a time"}, {"path": "/v1/completions"}),
    "completion, long": ({"prompt": _LONG}, {}),
    "completion of a batch": ({"prompt": ["a", "b"]}, {}),
    "completion of token ids": ({"prompt": list(range(100, 700))}, {}),
    "completion of a batch of token ids": ({"prompt": [[1, 2], [3]]}, {}),
    "completion of texts and token ids": ({"prompt": [12, 34, "string", 56]}, {}),
    "completion in a window": ({"prompt": _LONG}, {"cut": Cut(window_bytes=1024)}),
    "text": ("Once upon a time", {}),
    "token ids": ([1, 2, 3], {}),
    "responses of a text": ({"model": "m", "input": "hi", "instructions": "be brief"}, {}),
    "responses of items": ({"input": _ITEMS, "previous_response_id": "resp_1"}, {}),
    "messages": (_CLAUDE, {"path": "/v1/messages"}),
    "generate": ({"text": "Once upon a time", "stream": True}, {"path": "/generate"}),
    "generate of token ids": ({"input_ids": [1, 2, 3]}, {"path": "/generate"}),
    "generate of inputs": ({"inputs": "Once upon a time"}, {"path": "/generate_stream"}),
    "generate with an image": ({"text": "what?", "image_data": "AAAA"}, {"path": "/generate"}),
    "multimodal completion": (
        {"prompt": {"prompt_string": "what?", "multimodal_data": ["AAAA"]}},
        {"path": "/completion"},
    ),
    "embeddings": ({"input": "hi", "model": "m"}, {"path": "/v1/embeddings"}),
    "no messages": ({"model": "m", "messages": [], "tools": [TOOL]}, {}),
}


def _vector(prompt: Prompt) -> dict[str, object]:
    return {
        "chain": [f"{key:016x}" for key in prompt.chain],
        "ends": list(prompt.ends),
        "size": prompt.size,
        "tokens": prompt.tokens,
        "root_blocks": prompt.root_blocks,
        "source": prompt.source.value,
        "model": prompt.model,
        "session": prompt.session,
        "pin": prompt.pin,
        "stream": prompt.stream,
    }


def compute() -> dict[str, dict[str, object]]:
    """Return the prompt of every request, by the request's name."""
    vectors = {name: _vector(read_prompt(body, **how)) for name, (body, how) in _REQUESTS.items()}
    blocks = Prompt.from_blocks([46, 47, 2**40, -1], block_tokens=512, tokens=1600, model="m")
    return {**vectors, "blocks of a trace": _vector(blocks)}


def _main() -> None:
    text = json.dumps(compute(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    _main()
