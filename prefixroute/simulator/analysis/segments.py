"""The texts at the front of a request body, each with its place in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from prefixroute.core.content import canonical_json

__all__ = ["FIELDS", "Place", "Segment", "label_of", "replaced", "segments", "tools_text"]

Json: TypeAlias = Any
Place: TypeAlias = tuple[str | int, ...]
"""Keys and indices that lead to a value in a body."""

FIELDS: Final = ("cache_salt", "extra_key", "prompt_cache_key")
"""Fields without text that keep requests from sharing a cache, or a home."""

_TOOLS: Final = ("tools", "functions")
_SYSTEM: Final = ("system", "instructions")
_PROMPTS: Final = ("prompt", "text", "inputs")
_TURNS: Final = 2
"""Messages behind the system prompt whose texts count as the front."""

_ordered = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A text of a body.

    Args:
        place: Where it is.
        role: ``tools``, ``prompt``, or the role of its message.
        text: The text; of tools, their JSON in one order, whatever theirs is.
        raw: Of tools: their JSON as given.
    """

    place: Place
    role: str
    text: str
    raw: str = ""

    @property
    def root(self) -> bool:
        """Whether it belongs to what requests of one application share."""
        return self.role in ("tools", "system", "developer")


def segments(body: Mapping[str, Json]) -> list[Segment]:
    """Return the texts at the front of a body, in the order in which a prompt has them."""
    found: list[Segment] = []
    for name in _TOOLS:
        tools = body.get(name)
        if isinstance(tools, list) and tools:
            raw = canonical_json(tools).decode()
            found.append(Segment(place=(name,), role="tools", text=tools_text(tools), raw=raw))
    for name in _SYSTEM:
        found += _texts((name,), "system", body.get(name))
    for name in ("messages", "input"):
        found += _messages(name, body.get(name))
    if body.get("messages") is None:
        for name in _PROMPTS:
            value = body.get(name)
            if isinstance(value, list) and value and isinstance(value[0], str):
                found += _texts((name, 0), "prompt", value[0])  # a batch is placed by its first
            else:
                found += _texts((name,), "prompt", value)
    return found


def _messages(name: str, messages: Json) -> Iterator[Segment]:
    if isinstance(messages, str):
        yield from _texts((name,), "user", messages)
    turns = 0
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict) or turns == _TURNS:
            break
        role = message.get("role")
        turns += turns > 0 or role not in ("system", "developer")
        yield from _texts((name, index, "content"), str(role), message.get("content"))


def _texts(place: Place, role: str, value: Json) -> Iterator[Segment]:
    if isinstance(value, str):
        yield Segment(place=place, role=role, text=value)
    elif isinstance(value, list):
        for index, block in enumerate(value):
            if isinstance(block, dict) and isinstance(text := block.get("text"), str):
                yield Segment(place=(*place, index, "text"), role=role, text=text)


def tools_text(tools: list[Json]) -> str:
    """Return tools as JSON, the same for any order of theirs and of their keys."""
    return "[" + ",".join(sorted(map(_one_way, tools))) + "]"


def _one_way(tool: Json) -> str:
    try:
        return _ordered(tool).decode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(tool, sort_keys=True)


def label_of(place: Place) -> str:
    """Return a place as one writes it: ``messages[0].content``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)[1:]


def replaced(body: Mapping[str, Json], changes: Mapping[Place, Json]) -> dict[str, Json]:
    """Return a body with other values at some places; ``None`` takes a field out."""
    changed: Json = body
    for place, value in changes.items():
        changed = _put(changed, place, value)
    return dict(changed)


def _put(node: Json, place: Place, value: Json) -> Json:
    if not place:
        return value
    copy, key = node.copy(), place[0]
    copy[key] = _put(node[key], place[1:], value)
    return copy
