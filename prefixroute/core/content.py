"""The content of messages, as parts to hash: text as its bytes, media as digests, the rest as JSON.

A text and a list with one text part of the same text give the same parts, and so do a mapping and
its serialisation. What callers add to steer a cache or to label a call (``cache_control``, a
billing header in front of a system prompt) is not part of the prompt.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import msgspec

from prefixroute.core.hashing import digest64
from prefixroute.core.prompt import Part, pack_fields, utf8

__all__ = ["canonical_json", "input_messages", "message_head", "message_parts", "system_parts"]

Json: TypeAlias = Any

MEDIA_BYTES: Final = 1024
"""Size that an image or a sound is taken for, about 256 tokens; its real one is the engine's."""

_TEXT_TYPES: Final = frozenset({None, "text", "input_text", "output_text"})
_MEDIA_WORDS: Final = ("image", "audio", "video", "file", "document", "media")
_BILLING_HEADER: Final = "x-anthropic-billing-header"
_ROLE_KINDS: Final = {"system": b"S", "developer": b"D"}
_HEAD_FIELDS: Final = ((b"r", "role"), (b"n", "name"), (b"i", "tool_call_id"))
_TAIL_FIELDS: Final = (
    (b"c", "tool_calls"),
    (b"f", "function_call"),
    (b"r", "reasoning"),
    (b"q", "reasoning_content"),
)

_encode_json = msgspec.json.Encoder().encode


def canonical_json(value: Json) -> bytes:
    """Return a JSON value as bytes, keys in the order given, without ``cache_control``."""
    value = _without_cache_control(value)
    try:
        return _encode_json(value)
    except (UnicodeEncodeError, TypeError, ValueError):  # half a surrogate pair, say
        return json.dumps(value, default=str).encode()


def message_head(message: Json) -> bytes:
    """Return the head of a message's segment: role, name and the tool call that it answers."""
    if not isinstance(message, dict):
        return b"M"
    fields = []
    for tag, name in _HEAD_FIELDS:
        value = message.get(name)
        if value is not None:
            fields.append((tag, utf8(value) if isinstance(value, str) else canonical_json(value)))
    return pack_fields(b"M", fields)


def message_parts(message: Json) -> list[Part]:
    """Return the parts of a message: its content, then tool calls and reasoning."""
    if not isinstance(message, dict):
        return [_json_part(message)]
    if message.get("content") is None and "role" not in message:  # an item that is no message
        return [_json_part(message)]
    parts = content_parts(message.get("content"))
    for kind, name in _TAIL_FIELDS:
        value = message.get(name)
        if value is not None:
            data = utf8(value) if isinstance(value, str) else canonical_json(value)
            parts.append((kind, data, len(data)))
    return parts


def content_parts(content: Json) -> list[Part]:
    """Return the parts of a content field: null, a text, or a list of parts."""
    if content is None:
        return []
    if isinstance(content, str):
        return [_text_part(content)]
    if isinstance(content, list):
        return [_content_part(part) for part in content]
    return [_json_part(content)]


def system_parts(system: Json) -> list[Part]:
    """Return the parts of a system field (text or blocks), without per-call billing headers."""
    if system is None:
        return []
    if isinstance(system, list):
        system = [block for block in system if not _is_billing_header(block)]
    return [(b"S", b"", 0), *content_parts(system)]


def leading_system(messages: list[Json]) -> tuple[list[Part], int]:
    """Return the parts of the leading system and developer messages, and how many these are."""
    parts: list[Part] = []
    for count, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        kind = _ROLE_KINDS.get(role) if isinstance(role, str) else None
        if kind is None:
            return parts, count
        parts.append((kind, utf8(str(message.get("name") or "")), 0))
        content = message.get("content")
        if isinstance(content, list):
            content = [block for block in content if not _is_billing_header(block)]
        parts += message_parts({**message, "content": content})
    return parts, len(messages)


def input_messages(items: Json) -> list[Json]:
    """Return the ``input`` of /v1/responses as messages; a text is one user message."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}] if items else []
    return items if isinstance(items, list) else []


def _content_part(part: Json) -> Part:
    if isinstance(part, str):
        return _text_part(part)
    if isinstance(part, dict):
        kind, text = part.get("type"), part.get("text")
        if isinstance(text, str) and (kind is None or kind in _TEXT_TYPES):
            return _text_part(text)
        if isinstance(kind, str) and any(word in kind for word in _MEDIA_WORDS):
            return _media_part(part)
    return _json_part(part)


def _text_part(text: str) -> Part:
    data = utf8(text)
    return (b"t", data, len(data))


def _json_part(value: Json) -> Part:
    data = canonical_json(value)
    return (b"j", data, len(data))


def _media_part(part: Json) -> Part:
    data = canonical_json(part)
    digest = digest64(data).to_bytes(8, "little") + len(data).to_bytes(8, "little")
    return (b"d", digest, MEDIA_BYTES)


def _is_billing_header(block: Json) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.lstrip()[:32].lower().startswith(_BILLING_HEADER)


def _without_cache_control(value: Json) -> Json:
    if isinstance(value, dict):
        return {k: _without_cache_control(v) for k, v in value.items() if k != "cache_control"}
    if isinstance(value, list):
        return [_without_cache_control(v) for v in value]
    return value
