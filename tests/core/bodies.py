"""Request bodies that several tests read prompts from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from prefixroute.core.prompt import Prompt
from prefixroute.core.request import read_prompt

__all__ = [
    "ANTHROPIC_TOOL",
    "CHAT",
    "IMAGE",
    "MAKERS",
    "TOOL",
    "Body",
    "chat",
    "completion",
    "key",
    "keys_differ",
    "read",
    "user",
]

Body = dict[str, Any]

CHAT = "/v1/chat/completions"

TOOL: Body = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ANTHROPIC_TOOL: Body = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
IMAGE: Body = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def user(content: object) -> Body:
    """Return a user's message."""
    return {"role": "user", "content": content}


def chat(*messages: object, **fields: object) -> Body:
    """Return the body of a chat."""
    return {"model": "m", "messages": list(messages), **fields}


def completion(prompt: object) -> Body:
    """Return the body of a completion."""
    return {"prompt": prompt}


MAKERS: tuple[Callable[[str], Body], ...] = (lambda text: chat(user(text)), completion)
"""How a text becomes a body that has little else in it."""


def read(body: Any, **how: Any) -> Prompt:
    """Read a prompt; a mapping as such and as the bytes that a client would send."""
    prompt = read_prompt(body, **how)
    if isinstance(body, Mapping):
        assert read_prompt(json.dumps(dict(body)).encode(), **how) == prompt
    return prompt


def key(body: Any, **how: Any) -> int:
    """Return the hash of a whole prompt, which has one."""
    prompt = read(body, **how)
    assert prompt.chain
    return prompt.chain[-1]


def keys_differ(*bodies: Any, **how: Any) -> bool:
    """Whether all of these are prompts, no two of them the same."""
    return len({key(body, **how) for body in bodies}) == len(bodies)
