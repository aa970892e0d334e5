"""From a request to its :class:`Prompt`, whatever the request is; never raises.

Knows the request shapes of OpenAI (chat, completions, responses), Anthropic (messages), SGLang,
llama.cpp and TGI (generate). What it cannot read has no key and is spread over the least loaded
endpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

from prefixroute.core.content import (
    canonical_json,
    input_messages,
    leading_system,
    message_head,
    message_parts,
    system_parts,
)
from prefixroute.core.prompt import (
    BYTES_PER_TOKEN,
    MESSAGE_BYTES,
    TEXT_STEPS,
    TOKEN_BYTES,
    ChainBuilder,
    Cut,
    KeySource,
    Part,
    Prompt,
    pack_fields,
    pack_tokens,
    utf8,
    window_key,
)

__all__ = ["Body", "Headers", "read_prompt"]

Body: TypeAlias = (
    "Mapping[str, Any] | bytes | bytearray | memoryview | str | Sequence[int] | Prompt | None"
)
"""A request body (JSON bytes or mapping), a plain text, token ids, or a Prompt."""

Headers: TypeAlias = "Mapping[str, str] | Iterable[tuple[str, str]] | None"

_ROOT_FIELDS: Final = (
    (b"l", "lora"),
    (b"o", "lora_path"),
    (b"q", "lora_request"),
    (b"a", "adapter_id"),
    (b"s", "cache_salt"),
    (b"t", "chat_template"),
    (b"k", "chat_template_kwargs"),
)


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


class _Fields(msgspec.Struct, gc=False):
    """The fields of a body that placement reads; the rest is skipped while scanning."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    input: Any = None
    instructions: Any = None
    system: Any = None
    tools: Any = None
    functions: Any = None
    documents: Any = None
    text: Any = None
    inputs: Any = None
    input_ids: Any = None
    lora: Any = None
    lora_path: Any = None
    lora_request: Any = None
    adapter_id: Any = None
    cache_salt: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    session_id: Any = None
    prompt_cache_key: Any = None
    stream: Any = None


_DEFAULT_CUT: Final = Cut()
_decode_fields = msgspec.json.Decoder(_Fields).decode
_NAMES: Final = frozenset(_Fields.__struct_fields__)


def read_prompt(
    body: Body,
    *,
    path: str | None = None,
    headers: Headers = None,
    session: str | None = None,
    cut: Cut = _DEFAULT_CUT,
) -> Prompt:
    """Return the prompt of a request. Never raises: what cannot be read has an empty chain.

    Args:
        body: Request body (JSON bytes or mapping: the same chain), text, token ids or Prompt.
        path: The request's path; without it the body's fields tell its shape.
        headers: The request's headers; ``x-session-id`` and ``x-prefix-id`` are read.
        session: Keeps requests together; goes before the header and the body's ``session_id``.
        cut: Where the placement wants prompts cut.
    """
    if isinstance(body, Prompt):
        return body
    try:
        return _read(body, path, _read_headers(headers), session, cut)
    except Exception:  # noqa: BLE001 - a request is never failed by routing
        return Prompt()


def _read(
    body: object, path: str | None, headers: dict[str, str], session: str | None, cut: Cut
) -> Prompt:
    if isinstance(body, str | list | tuple):
        fields, content = _Fields(), _prompts(body)
    else:
        parsed = _parse(body)
        if parsed is None:
            return Prompt()
        fields, content = parsed, _content_of(parsed, path)
    common = {"model": _text_or_none(fields.model), "pin": _pin(fields)}
    stream = fields.stream is True
    session = session or headers.get("x-session-id") or _text_or_none(fields.session_id)
    if content is None or not (content.rest or content.root or session):
        return Prompt(stream=stream, **common)
    prefix_id = headers.get("x-prefix-id") or _text_or_none(fields.prompt_cache_key)
    head = _root_head(fields, prefix_id)
    request = _Request(content=content, head=head, tools=_tools(fields), session=session, cut=cut)
    built = request.chain()
    return Prompt(
        chain=tuple(built.chain),
        ends=tuple(built.ends),
        size=built.size,
        tokens_per_unit=1 / BYTES_PER_TOKEN if content.unit == 1 else 1.0,
        root_blocks=built.root_blocks,
        source=KeySource.SESSION if session else content.source,
        session=session,
        stream=stream,
        **common,
    )


def _read_headers(headers: Headers) -> dict[str, str]:
    if headers is None:
        return {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {name.lower(): value for name, value in pairs if name[:2] in ("x-", "X-")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What a request asks to prefill, before it is cut.

    ``unit`` is the bytes of payload in one unit of size; ``others`` the units of the other prompts
    of a batch, which is placed by its first.
    """

    source: KeySource
    root: list[Part] = field(default_factory=list)
    rest: list[tuple[bytes, list[Part]]] = field(default_factory=list)
    steps: Sequence[int] = ()
    around: int = 0
    unit: int = 1
    others: int = 0

    def rest_size(self) -> int:
        """Size of all behind the root, units."""
        sizes = (sum(size for _, _, size in parts) + self.around for _, parts in self.rest)
        return sum(sizes) // self.unit + self.others


_NOTHING: Final = _Content(source=KeySource.NONE)


def _content_of(fields: _Fields, path: str | None) -> _Content | None:
    match _shape_of(fields, path):
        case _Shape.CHAT | _Shape.MESSAGES:
            return _chat(fields.messages, fields.system, KeySource.MESSAGES)
        case _Shape.RESPONSES:
            return _chat(input_messages(fields.input), fields.instructions, KeySource.INPUT)
        case _Shape.COMPLETIONS:
            return _prompts(fields.prompt)
        case _Shape.GENERATE:
            given = (fields.text, fields.inputs, fields.prompt, fields.input_ids)
            return _prompts(next((value for value in given if value is not None), None))
        case None:
            return None


def _shape_of(fields: _Fields, path: str | None) -> _Shape | None:
    if path is not None:
        path = path.partition("?")[0].rstrip("/")
        return next((shape for end, shape in _PATHS if path.endswith(end)), None)
    if fields.messages is not None:
        return _Shape.CHAT
    if fields.prompt is not None:
        return _Shape.COMPLETIONS
    return _Shape.GENERATE if fields.input is None else _Shape.RESPONSES


def _chat(messages: object, system: object, source: KeySource) -> _Content:
    if not isinstance(messages, list) or not messages:
        return _NOTHING
    leading, count = leading_system(messages)
    rest = [(message_head(message), message_parts(message)) for message in messages[count:]]
    root = [*system_parts(system), *leading]
    return _Content(source=source, root=root, rest=rest, around=MESSAGE_BYTES)


def _prompts(prompt: object) -> _Content:
    """Read ``"x"``, ``["a", "b"]``, ``[1, 2]`` or ``[[1, 2], [3]]``."""
    batch = prompt if isinstance(prompt, list | tuple) else [prompt]
    if batch and all(type(item) is int for item in batch):
        batch = [batch]
    if not batch or not batch[0]:
        return _NOTHING
    if all(isinstance(item, str) for item in batch):
        texts = [utf8(item) for item in batch]
        others = sum(len(text) for text in texts[1:])
        part = (b"t", texts[0], len(texts[0]))
        rest = [(b"P", [part])]
        return _Content(source=KeySource.TEXT, rest=rest, steps=TEXT_STEPS, others=others)
    if all(isinstance(item, list | tuple) and all(type(i) is int for i in item) for item in batch):
        data = pack_tokens(batch[0])
        others = sum(len(item) for item in batch[1:])
        rest = [(b"I", [(b"i", data, len(data))])]
        steps = [step * TOKEN_BYTES // int(BYTES_PER_TOKEN) for step in TEXT_STEPS]
        return _Content(
            source=KeySource.TOKENS, rest=rest, steps=steps, unit=TOKEN_BYTES, others=others
        )
    return _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request read: what it asks to prefill and what its root is told apart by."""

    content: _Content
    head: bytes
    tools: list[Part]
    session: str | None
    cut: Cut

    def chain(self) -> ChainBuilder:
        """Cut and hash: by session, by one window, or by the whole chain."""
        content, session = self.content, self.session
        block = self.cut.block_bytes
        if content.unit == TOKEN_BYTES:
            block = block * TOKEN_BYTES // int(BYTES_PER_TOKEN)
        builder = ChainBuilder(block, content.unit)
        if session is None and self.cut.window_bytes is not None:
            self._window(builder, self.cut.window_bytes * block // self.cut.block_bytes)
            return builder
        root = [*self.tools, *content.root]
        builder.add(self.head, root, extra=content.around if root else 0)
        builder.root_blocks = len(builder.chain)
        if session is not None:
            builder.add(pack_fields(b"Z", [(b"z", utf8(session))]), [])
            builder.grow(content.rest_size())
            return builder
        steps = [step for step in content.steps if step < block]
        for head, parts in content.rest:
            builder.add(head, parts, extra=content.around, steps=steps)
        builder.size += content.others
        return builder

    def _window(self, builder: ChainBuilder, window_bytes: int) -> None:
        """One key: root and first message, so that later turns of a chat keep it."""
        content = self.content
        head = pack_fields(b"H", [(b"h", self.head), *((k, data) for k, data, _ in self.tools)])
        parts = list(content.root)
        if content.rest:
            first_head, first_parts = content.rest[0]
            parts += [(b"h", first_head, 0), *first_parts]
        root_size = sum(size for _, _, size in (*self.tools, *content.root))
        builder.append(window_key(head, parts, window_bytes))
        builder.grow(root_size // content.unit + content.rest_size())


def _root_head(fields: _Fields, prefix_id: str | None) -> bytes:
    named = [(b"m", fields.model), (b"p", prefix_id)]
    named += [(tag, getattr(fields, name)) for tag, name in _ROOT_FIELDS]
    return pack_fields(
        b"R",
        [
            (tag, b"s" + utf8(value) if isinstance(value, str) else b"j" + canonical_json(value))
            for tag, value in named
            if value is not None
        ],
    )


def _tools(fields: _Fields) -> list[Part]:
    parts = []
    for kind, value in ((b"T", fields.tools), (b"F", fields.functions), (b"O", fields.documents)):
        if value:
            data = canonical_json(value)
            parts.append((kind, data, len(data)))
    return parts


def _pin(fields: _Fields) -> str | None:
    conversation = fields.conversation
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return _text_or_none(fields.previous_response_id) or _text_or_none(conversation)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _parse(body: object) -> _Fields | None:
    """Return the fields of a JSON body; ``None`` if it is no JSON object."""
    if isinstance(body, Mapping):
        try:
            data = msgspec.json.encode(body if isinstance(body, dict) else dict(body))
        except Exception:  # noqa: BLE001 - what msgspec refuses the standard library may take
            data = json.dumps(dict(body), default=str).encode()
    elif isinstance(body, bytes | bytearray | memoryview):
        data = bytes(body)
    else:
        return None
    try:
        return _decode_fields(data)
    except msgspec.MsgspecError:  # half a surrogate pair, NaN, a byte order mark: json takes them
        decoded = json.loads(data)
    if not isinstance(decoded, dict):
        return None
    return _Fields(**{name: value for name, value in decoded.items() if name in _NAMES})
