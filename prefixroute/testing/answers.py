"""What a simulated engine says: text, JSON or a tool call, always the same for the same prompt."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b, shake_128
from typing import assert_never

from prefixroute.testing.engine import RenderedPrompt
from prefixroute.testing.model import EngineModel
from prefixroute.testing.prompts import encode, tool_call_bytes

__all__ = [
    "Answer",
    "CallTool",
    "Finish",
    "Limits",
    "Task",
    "WriteJson",
    "WriteText",
    "minimal_json",
    "write_answer",
]

# 64 letters for 256 values of a byte: only lower case, so that a token is always whole.
_LETTERS = b"abcdefghijklmnopqrstuvwxyzaeiouaeiouaeiounrstlnrstlnrstldmhcpbgk" * 4
_MAX_SCHEMA_DEPTH = 24


class Finish(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteText:
    """Answer with words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJson:
    """Answer with the smallest JSON that a schema allows."""

    schema: object


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTool:
    """Answer with a call of a tool, with the smallest arguments that its schema allows."""

    name: str
    schema: object


Task = WriteText | WriteJson | CallTool
"""What kind of answer is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an answer may be and must be, in tokens.

    Attributes:
        most_tokens: At most; None: as long as the model likes.
        least_tokens: At least, if it is text.
        ignore_eos: Text goes on up to `most_tokens`.
    """

    most_tokens: int | None = None
    least_tokens: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer.

    Attributes:
        text: The text, or the arguments of the tool call.
        tool: Name of the tool that is called; None for text.
        finish: Why it ended.
        rendered: Its bytes in the engine's cache, and in the next turn's prompt.
        tokens: How many tokens it is.
        pieces: The text in the pieces of a stream, each with the tokens up to its end.
    """

    text: str
    tool: str | None
    finish: Finish
    rendered: bytes
    tokens: int
    pieces: tuple[tuple[int, str], ...]


def write_answer(
    prompt: RenderedPrompt, task: Task, limits: Limits, model: EngineModel, seed: int
) -> Answer:
    """Write the answer to a prompt. The same arguments give the same answer.

    Args:
        prompt: What is answered.
        task: What kind of answer it shall be.
        limits: How long it may be.
        model: Gives the usual length, and the size of tokens and pieces.
        seed: Another seed gives other words.
    """
    tool: str | None = None
    match task:
        case WriteText():
            text = _words(prompt, _text_tokens(limits, model), model.bytes_per_token, seed)
        case WriteJson(schema=schema):
            text = json.dumps(minimal_json(schema))
        case CallTool(name=name, schema=schema):
            tool, text = name, json.dumps(minimal_json(schema))
        case _:
            assert_never(task)
    most = None if limits.most_tokens is None else limits.most_tokens * model.bytes_per_token
    whole, text = text, text[:most]
    is_cut = text != whole or (limits.ignore_eos and most is not None)
    rendered = (encode(text) if tool is None else tool_call_bytes(tool, text))[:most]
    tokens = model.tokens_of(rendered)
    return Answer(
        text=text,
        tool=tool,
        finish=Finish.LENGTH if is_cut else Finish.STOP if tool is None else Finish.TOOL,
        rendered=rendered,
        tokens=tokens,
        pieces=_pieces(text, tokens, model),
    )


def minimal_json(schema: object, root: object = None, depth: int = 0) -> object:
    """The smallest value that a JSON schema allows, as far as its usual keywords go.

    Args:
        schema: The schema; anything that is none allows an empty object.
        root: The schema that `$ref` starts from; None: `schema` itself.
        depth: How deep in `root` this is; a schema that recurs without end is cut off with null.
    """
    if root is None:
        root = schema
    if not isinstance(schema, Mapping):
        return {}
    if depth > _MAX_SCHEMA_DEPTH:
        return None
    match schema:
        case {"$ref": str(reference)}:
            value = minimal_json(_resolve(root, reference), root, depth + 1)
        case {"const": value}:
            pass
        case {"enum": [value, *_]} | {"default": value}:
            pass
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]}:
            value = minimal_json(first, root, depth + 1)
        case {"allOf": [*parts]}:
            value = _merged([minimal_json(part, root, depth + 1) for part in parts])
        case _:
            value = _minimal_of_type(schema, root, depth)
    return value


def _minimal_of_type(schema: Mapping[str, object], root: object, depth: int) -> object:
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "string":
            return "x" * _count(schema.get("minLength"))
        case "integer" | "number":
            return _least_number(schema)
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            item = minimal_json(schema.get("items"), root, depth + 1)
            return [item] * _count(schema.get("minItems"))
        case _:
            return _minimal_object(schema, root, depth)


def _minimal_object(schema: Mapping[str, object], root: object, depth: int) -> object:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return {}
    return {name: minimal_json(properties.get(name), root, depth + 1) for name in required}


def _count(least: object) -> int:
    return least if isinstance(least, int) else 0


def _least_number(schema: Mapping[str, object]) -> int:
    match schema:
        case {"minimum": int() | float() as least}:
            return math.ceil(least)
        case {"exclusiveMinimum": int() | float() as below}:
            return math.floor(below) + 1
        case {"maximum": int() | float() as most}:
            return min(0, math.floor(most))
        case _:
            return 0


def _merged(parts: list[object]) -> object:
    merged: dict[object, object] = {}
    for part in parts:
        if not isinstance(part, Mapping):
            return part
        merged.update(part)
    return merged


def _resolve(root: object, reference: str) -> object:
    found = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) and name else found
    return found


def _text_tokens(limits: Limits, model: EngineModel) -> int:
    if limits.ignore_eos and limits.most_tokens is not None:
        return limits.most_tokens
    return max(model.output_tokens, limits.least_tokens)


def _words(prompt: RenderedPrompt, tokens: int, token_bytes: int, seed: int) -> str:
    """Words of one token each: a token's worth of letters, the last of which is a space."""
    topic = blake2b(prompt.salt + b"\0" + prompt.text, digest_size=16, salt=_seed_bytes(seed))
    letters = bytearray(shake_128(topic.digest()).digest(tokens * token_bytes).translate(_LETTERS))
    if token_bytes > 1:
        for end in range(token_bytes - 1, len(letters) - 1, token_bytes):
            letters[end] = 0x20
    return letters.decode("ascii")


def _seed_bytes(seed: int) -> bytes:
    return (seed % 2**64).to_bytes(8, "little")


def _pieces(text: str, tokens: int, model: EngineModel) -> tuple[tuple[int, str], ...]:
    step = model.tokens_per_event * model.bytes_per_token
    return tuple(
        (min(tokens, (start + step) // model.bytes_per_token), text[start : start + step])
        for start in range(0, len(text), step)
    )
