"""From a request to its :class:`Prompt`, whatever the request is; never raises.

Knows the request shapes of OpenAI (chat, completions, responses), Anthropic (messages), SGLang,
llama.cpp and TGI (generate). What it cannot read has no key and is spread over the least loaded
endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from prefixroute.core.body import Fields, read_fields
from prefixroute.core.content import (
    MESSAGE_BYTES,
    Content,
    is_empty,
    json_part,
    packed_value,
    read_chat,
    read_messages,
    size_of,
    system_parts,
)
from prefixroute.core.hashing import (
    ChainBuilder,
    Part,
    Segment,
    digest64,
    pack_fields,
    utf8,
    window_key,
)
from prefixroute.core.prompt import BYTES_PER_TOKEN, Cut, KeySource, Prompt
from prefixroute.core.rendered import Chat, chat_of
from prefixroute.core.texts import read_prompts
from prefixroute.core.tokens import TokenReader
from prefixroute.core.turns import SeenTurns, Turns

__all__ = ["Body", "Headers", "read_prompt"]

Body: TypeAlias = (
    Mapping[str, object]
    | bytes
    | bytearray
    | memoryview
    | str
    | Sequence[int]
    | Sequence[str]
    | Sequence[Sequence[int]]
    | Prompt
    | None
)
"""A request body (JSON bytes or mapping), a text, token ids, a batch of these, or a Prompt."""

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]] | None

_ROOT_FIELDS: Final = (
    (b"m", "model"),
    (b"l", "lora"),
    (b"o", "lora_path"),
    (b"q", "lora_request"),
    (b"a", "adapter_id"),
    (b"s", "cache_salt"),
    (b"x", "extra_key"),
    (b"t", "chat_template"),
    (b"k", "chat_template_kwargs"),
)
_SESSION: Final = "x-session-id"
_PREFIX: Final = "x-prefix-id"
_HEADER_LENGTHS: Final = (len(_SESSION), len(_PREFIX))
_STORED: Final = re.compile(r"/(?:responses|conversations)/([^/]+)")


class _Shape(Enum):
    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"


_PATHS: Final = (
    *((f"/{shape.value}", shape) for shape in _Shape),
    ("/generate_stream", _Shape.GENERATE),
    ("/completion", _Shape.GENERATE),
)


_CHATS: Final = frozenset({_Shape.CHAT, _Shape.MESSAGES, _Shape.RESPONSES})
_OF_MESSAGES: Final = frozenset({_Shape.CHAT, _Shape.MESSAGES})
_DEFAULT_CUT: Final = Cut()
_NO_KEY: Final = Prompt()
_NOTHING: Final = Content(source=KeySource.NONE)


def read_prompt(
    body: Body,
    *,
    path: str | bytes | None = None,
    headers: Headers = None,
    session: str | None = None,
    cut: Cut = _DEFAULT_CUT,
    tokens: TokenReader | None = None,
    seen: SeenTurns | None = None,
) -> Prompt:
    """Return the prompt of a request. Never raises: what cannot be read has an empty chain.

    Args:
        body: Request body (JSON bytes or mapping: the same chain), text, token ids or Prompt.
        path: The request's path or URL; without it the body's fields tell its shape.
        headers: The request's headers; ``x-session-id`` and ``x-prefix-id`` are read.
        session: Keeps requests together; goes before the header and the body's ``session_id``.
        cut: Where the placement wants prompts cut.
        tokens: Counts prompts in a tokenizer's tokens; ``None``: in bytes.
        seen: Turns that were read before with the same cut, in bytes; the prompt is the same.
    """
    if isinstance(body, Prompt):
        return body
    try:
        ids = _read_headers(headers)
        session = _id(session) or ids.get(_SESSION)
        path, prefix_id = _path(path), ids.get(_PREFIX)
        turns = None if seen is None or session is not None else seen.find(body)
        prompt = None if turns is None else _read_on(turns, path, prefix_id)
        return prompt or _read(body, path, session, prefix_id, cut, tokens, seen)
    except Exception:  # noqa: BLE001 - a request is never failed by routing
        return _NO_KEY


def _read(
    body: object,
    path: str | None,
    session: str | None,
    prefix_id: str | None,
    cut: Cut,
    tokens: TokenReader | None,
    seen: SeenTurns | None,
) -> Prompt:
    fields, direct = read_fields(body)
    if fields is None:
        return _NO_KEY
    shape = _shape_of(fields, path, direct=direct)
    model, stream, pin = _name(fields.model), fields.stream is True, _pin(fields, path)
    content = _content_of(fields, shape)
    session = session or _id(fields.session_id)
    if shape is None or (content.source is KeySource.NONE and session is None):
        return Prompt(model=model, pin=pin, stream=stream)
    head = _root_head(fields, prefix_id or _id(fields.prompt_cache_key))
    tools = _tools(fields) if shape in _CHATS else []
    if tokens is not None:
        content, tools = tokens.read(content, tools, partial(_chat, fields, shape), cut)
    built = _build(content, head, tools, session, cut)
    if seen is not None and session is None and content.replies and shape in _OF_MESSAGES:
        seen.note(body, _root_digest(fields, head, tools), built)
    return Prompt(
        chain=tuple(built.chain),
        ends=tuple(built.ends),
        size=built.size,
        tokens_per_unit=1.0 if content.counted else 1 / BYTES_PER_TOKEN,
        root_blocks=built.root_blocks,
        replies=tuple(built.replies),
        source=content.source if session is None else KeySource.SESSION,
        model=model,
        session=session,
        pin=pin,
        stream=stream,
        batch=content.batch,
    )


def _read_on(turns: Turns, path: str | None, prefix_id: str | None) -> Prompt | None:
    """Return the prompt of which some turns were seen; ``None``: it is another one's body."""
    fields = turns.fields
    if _shape_of(fields, path, direct=False) not in _OF_MESSAGES or _id(fields.session_id):
        return None
    head = _root_head(fields, prefix_id or _id(fields.prompt_cache_key))
    if _root_digest(fields, head, _tools(fields)) != turns.root:
        return None
    built = turns.builder()
    segments, replies = read_messages(fields.messages)
    built.add_all(segments, extra=MESSAGE_BYTES, replies=replies)
    turns.note(built)
    return Prompt(
        chain=tuple(built.chain),
        ends=tuple(built.ends),
        size=built.size,
        root_blocks=built.root_blocks,
        replies=tuple(built.replies),
        source=KeySource.MESSAGES,
        model=_name(fields.model),
        pin=_pin(fields, path),
        stream=fields.stream is True,
    )


def _root_digest(fields: Fields, head: bytes, tools: list[Part]) -> int:
    """Return a digest of what is in the root beside the messages that lead it."""
    parts = [*tools, *system_parts(fields.system)]
    return digest64(pack_fields(b"K", [(b"h", head), *[(kind, data) for kind, data, _ in parts]]))


def _build(
    content: Content, head: bytes, tools: list[Part], session: str | None, cut: Cut
) -> ChainBuilder:
    """Cut and hash: by one window, by session, or by the whole chain."""
    block = content.payload_bytes(cut.block_bytes)
    builder = ChainBuilder(block)
    root = [*tools, *content.root]
    around = content.around if root else 0
    named: list[Segment] = []
    if session is not None:
        named.append((pack_fields(b"Z", [(b"z", utf8(session))]), []))
    if cut.window_bytes is not None:
        head = pack_fields(b"H", [(b"h", head), *((kind, data) for kind, data, _ in tools)])
        first = [(b"", content.root), *(named or content.rest[:1])]
        window = None if named else content.payload_bytes(cut.window_bytes)
        builder.append(window_key(head, first, window))
        builder.grow(size_of(root) + around + content.rest_size())
    else:
        builder.add(head, root, extra=around)
        builder.root_blocks = len(builder.chain)
        steps = [step for step in content.steps if step < block]
        if named:
            builder.add_all(named, steps=steps)
            builder.grow(content.rest_size())
        else:
            builder.add_all(
                content.rest, extra=content.around, steps=steps, replies=content.replies
            )
    builder.size += content.others
    return builder


def _root_head(fields: Fields, prefix_id: str | None) -> bytes:
    """Return what tells roots apart beside their text: model, adapter, salts, template."""
    named = [] if prefix_id is None else [(b"p", utf8(prefix_id))]
    for tag, name in _ROOT_FIELDS:
        value = getattr(fields, name)
        if not is_empty(value):
            named.append((tag, packed_value(value)))
    return pack_fields(b"R", named)


def _tools(fields: Fields) -> list[Part]:
    given = ((b"T", fields.tools), (b"F", fields.functions), (b"O", fields.documents))
    return [json_part(value, kind) for kind, value in given if not is_empty(value)]


# -- which request is it? -------------------------------------------------------------------------


def _shape_of(fields: Fields, path: str | None, *, direct: bool) -> _Shape | None:
    if path is not None:
        shape = next((shape for end, shape in _PATHS if path.endswith(end)), None)
        return shape if shape is None or not direct else _Shape.COMPLETIONS
    if fields.messages is not None:
        return _Shape.CHAT
    if fields.prompt is not None and (fields.input is None or not isinstance(fields.prompt, dict)):
        return _Shape.COMPLETIONS
    return _Shape.GENERATE if fields.input is None else _Shape.RESPONSES


def _content_of(fields: Fields, shape: _Shape | None) -> Content:
    match shape:
        case _Shape.CHAT | _Shape.MESSAGES:
            return read_chat(fields.messages, fields.system, KeySource.MESSAGES)
        case _Shape.RESPONSES:
            return read_chat(_items(fields.input), fields.instructions, KeySource.INPUT)
        case _Shape.COMPLETIONS:
            return read_prompts(fields.prompt)
        case _Shape.GENERATE:
            media = (fields.image_data, fields.audio_data, fields.video_data)
            for prompt in (fields.text, fields.inputs, fields.prompt, fields.input_ids):
                content = read_prompts(prompt, media)
                if content.source is not KeySource.NONE:
                    return content
    return _NOTHING


def _chat(fields: Fields, shape: _Shape) -> Chat | None:
    """Return the chat that a template can render; ``None``: there is none."""
    if shape is _Shape.RESPONSES:
        return chat_of(fields, _items(fields.input), fields.instructions)
    return chat_of(fields, fields.messages, fields.system)


def _items(items: object) -> list[object]:
    """Return the input of /v1/responses as messages; a list of token ids is an embedding's."""
    if isinstance(items, str) and items:
        return [{"role": "user", "content": items}]
    if isinstance(items, list) and all(isinstance(item, dict | str) for item in items):
        return items
    return []


def _pin(fields: Fields, path: str | None) -> str | None:
    """Return the id of what was answered earlier: in the body, or of the path's resource."""
    conversation = fields.conversation
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    pin = _name(fields.previous_response_id) or _name(conversation)
    if pin is None and path is not None and (match := _STORED.search(path)):
        pin = match[1]
    return pin


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _id(value: object) -> str | None:
    """Return what somebody chose as an id as text; the empty text is none."""
    match value:
        case None | bool() | dict() | list():
            return None
        case bytes():
            return value.decode("utf-8", "surrogateescape") or None
        case str():
            return str.__str__(value) or None
    return str(value)


def _path(path: object) -> str | None:
    text = path.decode("latin-1") if isinstance(path, bytes) else str(path or "")
    text = text.partition("?")[0].partition("#")[0].strip("/")
    return f"/{text}" if text else None


def _read_headers(headers: object) -> dict[str, str]:
    """Return the two headers that matter, by lower-case name; the first of each counts."""
    found: dict[str, str] = {}
    with suppress(Exception):
        for name, value in _header_pairs(headers):
            if isinstance(name, str | bytes) and len(name) in _HEADER_LENGTHS:
                text = (name if isinstance(name, str) else name.decode("latin-1")).lower()
                if text in (_SESSION, _PREFIX) and (chosen := _id(value)):
                    found.setdefault(text, chosen.strip())
    return found


def _header_pairs(headers: Any) -> Iterable[tuple[object, object]]:
    if headers is None:
        return ()
    raw = getattr(headers, "raw", None)  # httpx keeps bytes: spares it decoding every value
    if isinstance(raw, list):
        return raw
    pairs: Iterable[tuple[object, object]]
    pairs = headers.items() if hasattr(headers, "items") else headers
    return pairs
