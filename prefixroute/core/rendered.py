"""A chat as a tokenizer renders it by the model's template, and where its messages end in that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from prefixroute.core.body import Fields
from prefixroute.core.content import is_empty, without_billing_header

__all__ = ["Chat", "chat_of", "split_rendered"]

Json: TypeAlias = Any

_ROOT_ROLES: Final = ("system", "developer")
_TEXT_TYPES: Final = ("text", "input_text", "output_text")
_TO_TAG: Final = re.compile(r"\s+(?=<)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat to be rendered, whatever API it came by, in the shape of /v1/chat/completions.

    Args:
        messages: Role, content and whatever else a message has; the content is a str, or a list of
            ``{"type": "text"}`` parts, two or more. A system prompt is the first message.
        tools: Tools in the order given.
        documents: Documents in the order given.
        template_kwargs: The caller's ``chat_template_kwargs``.
    """

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)


def chat_of(fields: Fields, messages: Json, system: Json) -> Chat | None:
    """Return a chat that a template can render; ``None``: it holds more than text and calls.

    A template that the request brings along is not rendered: it is somebody's program.

    Args:
        fields: The body's.
        messages: Messages, or the items of /v1/responses.
        system: The system prompt where it has a field of its own.
    """
    kwargs = fields.chat_template_kwargs
    if not is_empty(fields.chat_template) or not is_empty(fields.functions):
        return None
    given = [] if is_empty(system) else [{"role": "system", "content": system}]
    read = [_message(message) for message in [*given, *messages]]
    tools = None if is_empty(fields.tools) else [_tool(tool) for tool in _list(fields.tools)]
    documents = None if is_empty(fields.documents) else _list(fields.documents)
    if None in read or tools == [] or None in (tools or ()) or documents == []:
        return None
    return Chat(
        messages=[message for message in read if message is not None],
        tools=[tool for tool in tools if tool is not None] if tools else None,
        documents=documents,
        template_kwargs=kwargs if isinstance(kwargs, dict) else {},
    )


def _list(value: Json) -> list[Json]:
    """Return a list of objects; an empty one for anything else."""
    fine = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    return value if fine else []


def _message(message: Json) -> dict[str, Json] | None:
    if not isinstance(message, dict) or message.get("type") not in (None, "message"):
        return None
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        return None
    if role in _ROOT_ROLES:
        content = without_billing_header(content)
    if content is None or content == []:
        content = ""
    if isinstance(content, list):
        texts = [_text(part) for part in content]
        if None in texts:
            return None
        content = [{"type": "text", "text": text} for text in texts]
        content = texts[0] if len(texts) == 1 else content
    return {**message, "content": content} if isinstance(content, str | list) else None


def _text(part: Json) -> str | None:
    if isinstance(part, dict) and part.get("type") in _TEXT_TYPES:
        part = part.get("text")
    return part if isinstance(part, str) else None


def _tool(tool: dict[str, Json]) -> dict[str, Json] | None:
    """Return a tool as chats have it; ``None``: it is none of the caller's own functions."""
    if isinstance(tool.get("function"), dict):
        return tool
    if not isinstance(tool.get("name"), str):
        return None
    function = {"name": tool["name"]}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    if "input_schema" in tool:  # Anthropic's
        return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}
    if tool.get("type") == "function":  # of /v1/responses
        parameters = tool.get("parameters")
        return {"type": "function", "function": {**function, "parameters": parameters}}
    return None


def split_rendered(
    text: str, messages: Sequence[Mapping[str, object]]
) -> tuple[str, list[str], str]:
    """Return a rendered chat as its root, one piece for each later message, and the rest.

    The root ends where the first message after the system prompt is announced, a message where its
    content ends. A piece depends on what stands before its end alone, so it stays the same as the
    chat goes on. A message whose content is not found (a template may drop it) has an empty piece.
    """
    count = 0
    while count < len(messages) and messages[count]["role"] in _ROOT_ROLES:
        count += 1
    rest = [_contents(message) for message in messages[count:]]
    at = _root_end(text, [c for m in messages[:count] for c in _contents(m)], rest)
    root, pieces = text[:at], []
    for contents in rest:
        end = _end_of(text, at, contents)
        pieces.append(text[at:end])
        at = end
    if rest and rest[-1] and not pieces[-1]:  # two prompts that differ in it alone must differ
        pieces[-1], at = text[at:], len(text)
    return root, pieces, text[at:]


def _contents(message: Mapping[str, object]) -> list[str]:
    """Return the texts of a message as they can be found: many templates strip them."""
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in _list(content)]
    return [found for text in texts if (found := text.strip())]


def _root_end(text: str, system: Sequence[str], rest: Sequence[Sequence[str]]) -> int:
    first = next((contents[0] for contents in rest if contents), None)
    end = _end_of(text, 0, system)
    start = len(text) if first is None else text.find(first, end)
    if start < 0:  # some templates put the system prompt into the last message
        end, start = 0, text.find(first or "")
    if start < 0:
        return end
    tag = text.rfind("<", end, start)  # a special token, which nothing merges with
    return end if tag < 0 else tag


def _end_of(text: str, at: int, contents: Sequence[str]) -> int:
    """Return where the last of the contents ends, looked for from ``at`` on; else ``at``."""
    end = at
    for content in contents:
        found = text.find(content, end)
        if found >= 0:
            end = found + len(content)
    space = _TO_TAG.match(text, end) if end > at else None
    return end if space is None else space.end()
