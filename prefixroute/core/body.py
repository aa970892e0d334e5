"""The fields of a request body, whatever kind of object the body is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

__all__ = ["Fields", "decode_fields", "read_fields"]


class Fields(msgspec.Struct, gc=False):
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
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    lora: Any = None
    lora_path: Any = None
    lora_request: Any = None
    adapter_id: Any = None
    cache_salt: Any = None
    extra_key: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    session_id: Any = None
    prompt_cache_key: Any = None
    stream: Any = None


_NAMES: Final = frozenset(Fields.__struct_fields__)
decode_fields = msgspec.json.Decoder(Fields).decode
"""Returns a body's fields; raises ``MsgspecError`` for what is no JSON object to msgspec."""


def read_fields(body: Any) -> tuple[Fields | None, bool]:
    """Return a body's fields (``None``: it is no JSON object), and whether it is a prompt itself.

    A mapping takes the way over JSON, so that it agrees with its serialisation whatever it holds.
    """
    if body is None:
        return Fields(), False
    if hasattr(body, "model_dump"):
        body = _plain(body)
    if isinstance(body, Mapping):
        return _decode(_encode({k: v for k, v in body.items() if k in _NAMES})), False
    if isinstance(body, bytes | bytearray | memoryview):
        data = bytes(body)
        return (_decode(data) if data else Fields()), False
    return Fields(prompt=body), True


def _decode(data: bytes) -> Fields | None:
    try:
        return decode_fields(data)
    except msgspec.MsgspecError:  # json also takes half a surrogate pair, NaN, a byte order mark
        decoded = json.loads(data, parse_constant=lambda _: None)
    if not isinstance(decoded, dict):
        return None
    return Fields(**{name: value for name, value in decoded.items() if name in _NAMES})


def _encode(fields: dict[str, object]) -> bytes:
    try:
        return _encode_json(fields)
    except Exception:  # noqa: BLE001 - json also takes half a surrogate pair and keys that are None
        return json.dumps(fields, default=_plain).encode()


def _plain(value: Any) -> object:
    """Return a value that is no JSON as the JSON that an SDK would send for it."""
    plain: object
    match value:
        case str():
            plain = str.__str__(value)
        case int():
            plain = int(value)
        case float():
            plain = float(value)
        case Mapping():
            plain = dict(value)
        case Sequence():
            plain = list(value)
        case _ if hasattr(value, "model_dump"):  # pydantic's: a message that an SDK returned, say
            plain = value.model_dump(mode="json", exclude_unset=True)
        case _:
            plain = value.tolist() if hasattr(value, "tolist") else str(value)
    return plain


_encode_json = msgspec.json.Encoder(enc_hook=_plain).encode
