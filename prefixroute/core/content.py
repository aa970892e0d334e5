"""What a request asks to prefill: :class:`Content`, and how the messages of a chat become it.

A text counts as its bytes, media as digests, anything else as JSON. A text and a list with one
text part of the same text give the same parts. What callers add to steer a cache or to label a
call (``cache_control``, a billing header in front of a system prompt) is not part of the prompt.

All values have been decoded from JSON: dicts, lists, str, numbers, bool and ``None`` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from prefixroute.core.hashing import Part, Segment, digest64, pack_fields, utf8
from prefixroute.core.prompt import BYTES_PER_TOKEN, KeySource

__all__ = [
    "MESSAGE_BYTES",
    "TOKEN_BYTES",
    "Content",
    "canonical_json",
    "is_empty",
    "json_part",
    "media_part",
    "packed_value",
    "read_chat",
    "read_messages",
    "size_of",
    "system_parts",
    "text_part",
    "without_billing_header",
]

Json: TypeAlias = Any

MEDIA_BYTES: Final = 1024
"""Size that an image or a sound is taken for, about 256 tokens; its real one is the engine's."""

MESSAGE_BYTES: Final = 16
"""What a chat template adds around a message, about 4 tokens."""

TOKEN_BYTES: Final = 8
"""Token ids are hashed as 64-bit integers."""

MAX_NESTING: Final = 8
"""How deep blocks inside blocks are looked into; below that they count as JSON."""

_TEXT_TYPES: Final = (None, "text", "input_text", "output_text")
_MEDIA_TYPES: Final = ("file", "input_file", "document", "media")
_MEDIA_WORDS: Final = ("image", "audio", "video", "screenshot")
_BLOCK_KEYS: Final = frozenset({"content", "source", "output", "function"})
_BILLING_HEADER: Final = re.compile(r"\s{0,64}x-anthropic-billing-header\b[^\n]*\n?", re.IGNORECASE)
_HEAD_FIELDS: Final = ((b"r", "role"), (b"n", "name"), (b"i", "tool_call_id"))
_TAIL_FIELDS: Final = (
    (b"c", "tool_calls"),
    (b"f", "function_call"),
    (b"r", "reasoning"),
    (b"q", "reasoning_content"),
)

_encode_json = msgspec.json.Encoder().encode


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks to prefill, before it is cut.

    Args:
        source: What it was read from.
        root: Parts of the system prompt.
        rest: Every later message; or the one text or list of token ids.
        replies: Indices in ``rest`` of the messages that a model wrote.
        steps: Boundaries of a text before its first whole block, bytes.
        around: Size that the engine's template adds around a segment, units.
        others: Size of what is no part of the chain, units: the other prompts of a batch, which
            is placed by its first; what a template adds behind the last message.
        batch: There are several prompts.
        counted: Units are tokens, not bytes.
    """

    source: KeySource
    root: list[Part] = []
    rest: list[Segment] = []
    replies: Sequence[int] = ()
    steps: Sequence[int] = ()
    around: int = 0
    others: int = 0
    batch: bool = False
    counted: bool = False

    def payload_bytes(self, text_bytes: int) -> int:
        """Return how many bytes are hashed for what ``text_bytes`` bytes of text would hold."""
        return text_bytes * TOKEN_BYTES // int(BYTES_PER_TOKEN) if self.counted else text_bytes

    def rest_size(self) -> int:
        """Size of what follows the root, units."""
        sizes = (len(b) if isinstance(b, bytes) else size_of(b) for _, b in self.rest)
        return sum(sizes) + self.around * len(self.rest)


def canonical_json(value: Json) -> bytes:
    """Return a JSON value as bytes, the same for equal values; keys stay in the order given."""
    try:
        return _encode_json(value)
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def packed_value(value: Json) -> bytes:
    """Return a field's value as bytes; the text ``"3"`` and the number 3 differ."""
    return b"s" + utf8(value) if isinstance(value, str) else b"j" + canonical_json(value)


def is_empty(value: Json) -> bool:
    """Whether a field says no more than if it were absent: null, an empty list or object."""
    return value is None or (isinstance(value, list | dict) and not value)


def text_part(text: str) -> Part:
    """Return a text as a part."""
    data = utf8(text)
    return (b"t", data, len(data))


def json_part(value: Json, kind: bytes = b"j") -> Part:
    """Return tools or a block as a part: its JSON without cache marks."""
    data = canonical_json(_without_cache_control(value))
    return (kind, data, len(data))


def media_part(value: Json) -> Part:
    """Return an image, a sound or the like as a part: a digest of all of its bytes."""
    data = canonical_json(_without_cache_control(value))
    return (
        b"d",
        digest64(data).to_bytes(8, "little") + len(data).to_bytes(8, "little"),
        MEDIA_BYTES,
    )


def size_of(parts: Iterable[Part]) -> int:
    """Return the size of parts, units."""
    return sum(size for _, _, size in parts)


_PLAIN_HEADS: Final = {
    role: pack_fields(b"M", [(b"r", packed_value(role))])
    for role in ("user", "assistant", "system", "developer", "tool")
}


def read_chat(messages: Json, system: Json, source: KeySource) -> Content:
    """Return the content of a chat; its source is ``NONE`` if it has no messages.

    Args:
        messages: Messages, or the items of /v1/responses.
        system: The system prompt where it has a field of its own: text or blocks.
        source: What it counts as.
    """
    root = system_parts(system)
    if not isinstance(messages, list) or not messages:
        return Content(source=KeySource.NONE, root=root, around=MESSAGE_BYTES)
    count = 0
    while count < len(messages) and (kind := _root_kind(messages[count])):
        message = messages[count]
        name = message.get("name")
        root.append((kind, b"" if name is None else packed_value(name), 0))
        root += _content_parts(without_billing_header(message.get("content")))
        root += _tail_parts(message)
        count += 1
    rest, replies = read_messages(messages[count:] if count else messages)
    return Content(source=source, root=root, rest=rest, replies=replies, around=MESSAGE_BYTES)


def _root_kind(message: Json) -> bytes | None:
    """Return the mark of a system or developer message, ``None`` for any other."""
    if _is_message(message):
        match message["role"]:
            case "system":
                return b"S"
            case "developer":
                return b"D"
    return None


def _is_reply(message: Json) -> bool:
    """Whether a model wrote it: an assistant's message, or a call or a thought of its own."""
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    calls = isinstance(kind, str) and (kind == "reasoning" or kind.endswith("_call"))
    return calls or message.get("role") == "assistant"


def _is_message(message: Json) -> bool:
    """Whether it has a role and is no item of another type, such as a function call."""
    return (
        isinstance(message, dict)
        and message.get("role") is not None
        and message.get("type") in (None, "message")
    )


def system_parts(system: Json) -> list[Part]:
    """Return a system prompt that has a field of its own as parts."""
    system = without_billing_header(system)
    return [] if is_empty(system) else [(b"S", b"", 0), *_content_parts(system)]


def read_messages(messages: list[Json]) -> tuple[list[Segment], list[int]]:
    """Return the segments of messages behind the root, and which of them a model wrote."""
    segments: list[Segment] = []
    replies: list[int] = []
    for message in messages:
        try:  # nearly all messages are a role and a text, and there are many
            if len(message) == 2:
                role = message["role"]
                segments.append((_PLAIN_HEADS[role], message["content"].encode()))
                if role == "assistant":
                    replies.append(len(segments) - 1)
                continue
        except (AttributeError, KeyError, TypeError, UnicodeEncodeError):
            pass
        segments.append(_segment(message))
        if _is_reply(message):
            replies.append(len(segments) - 1)
    return segments, replies


def _segment(message: Json) -> Segment:
    if not _is_message(message):
        whole = _block_parts(message) if isinstance(message, dict) else [json_part(message)]
        return pack_fields(b"M", []), whole
    fields = ((tag, message.get(name)) for tag, name in _HEAD_FIELDS)
    head = pack_fields(b"M", [(tag, packed_value(v)) for tag, v in fields if v is not None])
    return head, [*_content_parts(message.get("content")), *_tail_parts(message)]


def _tail_parts(message: dict[str, Json]) -> list[Part]:
    values = ((kind, message.get(name)) for kind, name in _TAIL_FIELDS)
    data = ((kind, packed_value(value)) for kind, value in values if not is_empty(value))
    return [(kind, value, len(value)) for kind, value in data]


def _content_parts(content: Json, nesting: int = 0) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [text_part(content)]
    if isinstance(content, list):
        return [part for block in content for part in _block_parts(block, nesting)]
    return [json_part(content, b"v")]


def _block_parts(block: Json, nesting: int = 0) -> list[Part]:
    """Return a block of content as one part; or, if it has blocks of its own, in brackets."""
    if isinstance(block, str):
        return [text_part(block)]
    if not isinstance(block, dict) or nesting == MAX_NESTING:
        return [json_part(block)]
    text = block.get("text")
    if isinstance(text, str) and block.get("type") in _TEXT_TYPES:
        return [text_part(text)]
    if _is_media(block):
        return [media_part(block)]
    for key in ("content", "output"):
        inner = block.get(key)
        if isinstance(inner, str | list) or (isinstance(inner, dict) and "type" in inner):
            single = isinstance(inner, dict)
            outer = canonical_json(_without_cache_control({**block, key: {} if single else []}))
            parts = _content_parts([inner] if single else inner, nesting + 1)
            return [(b"o", outer, len(outer)), *parts, (b"e", b"", 0)]
    return [json_part(block)]


def _is_media(block: dict[str, Json]) -> bool:
    kind = block.get("type")
    if kind is None:
        return any(word in key for key in block for word in _MEDIA_WORDS)
    if not isinstance(kind, str):
        return False
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        return False
    return kind in _MEDIA_TYPES or any(word in kind for word in _MEDIA_WORDS)


def _without_cache_control(value: Json, nesting: int = 0) -> Json:
    """Return tools or blocks without cache marks and nulls; arguments and schemas stay whole."""
    if nesting > MAX_NESTING:
        return value
    if isinstance(value, list):
        return [_without_cache_control(item, nesting + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_cache_control(item, nesting + 1) if key in _BLOCK_KEYS else item
        for key, item in value.items()
        if key != "cache_control" and item is not None
    }


def without_billing_header(content: Json) -> Json:
    """Return a system prompt without the line that a client puts there for each call."""
    if isinstance(content, str):
        header = _BILLING_HEADER.match(content)
        return content if header is None else content[header.end() :] or None
    if not isinstance(content, list):
        return content
    kept = []
    for block in content:
        text = block.get("text") if isinstance(block, dict) else block
        header = _BILLING_HEADER.match(text) if isinstance(text, str) else None
        if header is None:
            kept.append(block)
        elif rest := header.string[header.end() :]:
            kept.append(rest)
    return kept
