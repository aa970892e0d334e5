"""A chat as a tokenizer renders it by the model's template, and where its messages end in that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import field

from prefixroute.core.body import Fields
from prefixroute.core.content import is_empty, without_billing_header

__all__ = ["Chat", "chat_of", "probes", "split_rendered", "suffix_of"]

Json: TypeAlias = Any

_ROOT_ROLES: Final = ("system", "developer")
_TEXT_TYPES: Final = ("text", "input_text", "output_text")
_TO_TAG: Final = re.compile(r"\s+(?=<)")
_MARK: Final = re.compile(r"\s*[^\s>\]]{1,40}[>\]]")
_PROBE: Final = "prefixroute-probe"


class Chat(msgspec.Struct, frozen=True, kw_only=True):
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


def probes() -> dict[str, Chat]:
    """Return for each role a chat that shows what a template puts behind a content of that role."""
    asked, seen = {"role": "user", "content": "Hello"}, {"content": _PROBE}
    return {
        "user": Chat(messages=[{"role": "user", **seen}]),
        "assistant": Chat(messages=[asked, {"role": "assistant", **seen}, asked]),
        "system": Chat(messages=[{"role": "system", **seen}, asked]),
    }


def suffix_of(text: str) -> str:
    """Return what a template put behind the content of a probe, up to the end of one mark."""
    behind = text.partition(_PROBE)[2]
    mark = _MARK.match(behind)
    return behind[:8] if mark is None else mark[0]


def split_rendered(
    text: str, messages: Sequence[Mapping[str, object]], suffixes: Mapping[str, str]
) -> tuple[str, list[str], str]:
    """Return a rendered chat as its root, one piece for each later message, and the rest.

    The root ends where the first message after the system prompt is announced, a message where its
    content ends. A piece depends on what stands before its end alone, so it stays the same as the
    chat goes on. A message whose content is not found (a template may drop it) has an empty piece.

    Args:
        text: The rendered chat.
        messages: What was rendered.
        suffixes: What the template puts behind a content, by role: a short content such as "a" is
            found in many places without it.
    """
    count = 0
    while count < len(messages) and messages[count]["role"] in _ROOT_ROLES:
        count += 1
    found = _Finder(text, suffixes)
    at = found.root_end(messages[:count], messages[count:])
    root, pieces = text[:at], []
    for message in messages[count:]:
        end = found.span(message, at)[1]
        pieces.append(text[at:end])
        at = end
    if pieces and not pieces[-1] and _texts(messages[-1]):
        pieces[-1], at = text[at:], len(text)  # prompts that differ in it alone must differ
    return root, pieces, text[at:]


def _texts(message: Mapping[str, object]) -> list[str]:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in _list(content)]
    return [text for text in texts if not text.isspace() and text]


class _Finder:
    """Finds the contents of messages in a rendered chat."""

    def __init__(self, text: str, suffixes: Mapping[str, str]) -> None:
        self._text, self._suffixes = text, suffixes

    def span(self, message: Mapping[str, object], at: int) -> tuple[int, int]:
        """Return where a content starts and ends, from ``at`` on; twice ``at``: it is not there."""
        texts, start, end = _texts(message), -1, at
        suffix = self._suffixes.get(str(message["role"]), "")
        for number, content in enumerate(texts, 1):
            first, last = self._find(content, suffix if number == len(texts) else "", end)
            if first >= 0:
                start, end = first if start < 0 else start, last
        space = _TO_TAG.match(self._text, end) if start >= 0 else None
        return (at if start < 0 else start), (end if space is None else space.end())

    def _find(self, content: str, suffix: str, at: int) -> tuple[int, int]:
        text, bare = self._text, content.strip()  # as many templates have it
        spans = [
            (found, found + len(wanted))
            for wanted in ([content] if bare == content else [content, bare])
            if (found := text.find(wanted + suffix, at)) >= 0
        ]
        if not spans and (found := text.find(bare, at)) >= 0:
            spans = [(found, found + len(bare))]
        return min(spans, default=(-1, at))

    def root_end(
        self, system: Sequence[Mapping[str, object]], rest: Sequence[Mapping[str, object]]
    ) -> int:
        """Return where the root ends: before the mark that announces the first message."""
        text, end = self._text, 0
        for message in system:
            end = self.span(message, end)[1]
        if rest and not _texts(rest[0]):
            return end  # nothing shows where the first message is
        start = len(text)
        if rest and (start := self.span(rest[0], end)[0]) == end > 0:
            end, start = 0, self.span(rest[0], 0)[0]  # the system prompt is in a later message
        tag = text.rfind("<", end, start)  # a special token, which nothing merges with
        return end if tag < 0 else tag
