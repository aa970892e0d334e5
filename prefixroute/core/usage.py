"""What a reply says of its prompt: token counts, cached tokens, the first token, the response's id.

:class:`ReplyReader` is fed the bytes of a body as they pass and keeps a bounded part of them: the
events up to the first token, a short head, and a short tail. It alters nothing.

Knows the usage of OpenAI (chat, completions, responses), Anthropic, vLLM, SGLang and llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["ReplyReader", "Usage", "read_usage"]

_HEAD_BYTES: Final = 8_192
_TAIL_BYTES: Final = 16_384
_EVENT_BYTES: Final = 65_536
"""A longer event without a content field counts as the first token without being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a prompt as a reply reports them; ``None``: not reported, not zero."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def read_usage(reply: object) -> Usage | None:
    """Return the usage in a decoded reply or event; ``None``: it has none."""
    if not isinstance(reply, Mapping):
        return None
    for place in (reply, reply.get("response"), reply.get("message")):
        if isinstance(place, Mapping):
            found = _from_usage(place.get("usage")) or _from_engine(place)
            if found is not None:
                return found
    return None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _from_usage(usage: object) -> Usage | None:
    if not isinstance(usage, Mapping):
        return None
    if "prompt_tokens" in usage:
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
        if cached is None:
            cached = _count(usage.get("prompt_cache_hit_tokens"))
        return Usage(prompt_tokens=_count(usage["prompt_tokens"]), cached_tokens=cached)
    tokens = _count(usage.get("input_tokens"))
    if tokens is None:
        return None
    details = usage.get("input_tokens_details")
    if isinstance(details, Mapping):
        return Usage(prompt_tokens=tokens, cached_tokens=_count(details.get("cached_tokens")))
    # Anthropic counts the cached tokens apart from input_tokens.
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens")) or 0
    return Usage(prompt_tokens=tokens + written + (read or 0), cached_tokens=read)


def _from_engine(reply: Mapping[Any, Any]) -> Usage | None:
    meta = reply.get("meta_info")  # SGLang's /generate
    if isinstance(meta, Mapping) and "prompt_tokens" in meta:
        return Usage(
            prompt_tokens=_count(meta["prompt_tokens"]),
            cached_tokens=_count(meta.get("cached_tokens")),
        )
    timings = reply.get("timings")  # llama.cpp's /completion
    if isinstance(timings, Mapping) and "prompt_n" in timings:
        cached = _count(timings.get("cache_n"))
        computed = _count(timings["prompt_n"])
        total = None if computed is None else computed + (cached or 0)
        return Usage(prompt_tokens=total, cached_tokens=cached)
    return None


def has_content(event: object) -> bool:
    """Return whether a decoded event carries output, rather than a role, a ping or a start."""
    if not isinstance(event, Mapping):
        return False
    kind = event.get("type")
    if isinstance(kind, str):  # Anthropic and /v1/responses name their events
        return kind == "content_block_delta" or kind.endswith((".delta", ".completed"))
    choices = event.get("choices")
    if isinstance(choices, list):
        return any(_choice_has_content(choice) for choice in choices)
    return bool(event.get("content") or event.get("text") or event.get("token"))


def _choice_has_content(choice: object) -> bool:
    if not isinstance(choice, Mapping):
        return False
    if choice.get("text") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return False
    return any(value for name, value in delta.items() if name != "role")


class ReplyReader:
    """Reads one body as it passes.

    Args:
        events: The body is a stream of server-sent events.

    Attributes:
        first_token: Content has come (events only).
        error: The first event with data is an error (events only).
    """

    __slots__ = ("_buffer", "_events", "_first_usage", "_head", "_tail", "error", "first_token")

    def __init__(self, *, events: bool) -> None:
        self._events = events
        self._buffer = b""
        self._head = b""
        self._tail: list[bytes] = []
        self._first_usage: Usage | None = None
        self.first_token = self.error = False

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the body."""
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
        tail = self._tail
        tail.append(chunk)
        if len(tail) > 64:
            tail[:] = [b"".join(tail)[-_TAIL_BYTES:]]
        if self._events and not self.first_token and not self.error:
            self._find_first(chunk)

    def _find_first(self, chunk: bytes) -> None:
        self._buffer += chunk
        if b"\r" in self._buffer:
            self._buffer = self._buffer.replace(b"\r\n", b"\n")
        *events, self._buffer = self._buffer.split(b"\n\n")
        for event in events:
            self._event(event)
            if self.first_token or self.error:
                self._buffer = b""
                return
        if len(self._buffer) > _EVENT_BYTES:
            self.first_token, self._buffer = True, b""

    def _event(self, event: bytes) -> None:
        lines = event.split(b"\n")
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        named_error = any(line[6:].strip() == b"error" for line in lines if line[:6] == b"event:")
        if not data and not named_error:
            return
        decoded = _decode(data)
        is_error = isinstance(decoded, Mapping) and bool(
            decoded.get("error") or decoded.get("type") == "error"
        )
        if named_error or is_error:
            self.error = True
        elif has_content(decoded):
            self.first_token = True
        elif self._first_usage is None:
            self._first_usage = read_usage(decoded)  # Anthropic's message_start has the counts

    def usage(self) -> Usage | None:
        """Return the usage that the body reported so far; call it at the end."""
        tail = b"".join(self._tail)[-_TAIL_BYTES:]
        found = self._from_events(tail) if self._events else self._from_body(tail)
        first = self._first_usage
        if first is not None and (found is None or found.cached_tokens is None):
            return first
        return found

    def _from_events(self, tail: bytes) -> Usage | None:
        for line in reversed(tail.split(b"\n")):
            if line.startswith(b"data:") and b"{" in line:
                found = read_usage(_decode(line[5:].strip()))
                if found is not None:
                    return found
        return _search(tail)  # the last event alone may be longer than the tail

    def _from_body(self, tail: bytes) -> Usage | None:
        whole = _decode(tail)
        return read_usage(whole) if whole is not None else _search(tail)

    def response_id(self) -> str | None:
        """Return the id that the body gives its response; ``None``: none in its first bytes."""
        head = self._head
        start = head.find(b"{")
        decoded = _decode(head) if not self._events else None
        if isinstance(decoded, Mapping):
            return _text(decoded.get("id"))
        if self._events:
            for line in head.split(b"\n"):
                if line.startswith(b"data:"):
                    event = _decode(line[5:].strip())
                    if isinstance(event, Mapping):
                        response = event.get("response")
                        named = response if isinstance(response, Mapping) else event
                        return _text(named.get("id"))
        at = head.find(b'"id"', start)
        opening = head.find(b'"', head.find(b":", at)) if at >= 0 else -1
        closing = head.find(b'"', opening + 1) if opening >= 0 else -1
        return head[opening + 1 : closing].decode("utf-8", "replace") if closing > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None


def _decode_start(data: bytes) -> Any:
    try:
        return json.JSONDecoder().raw_decode(data.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None


def _search(tail: bytes) -> Usage | None:
    """Return the usage from the end of a body whose start was let go."""
    for name in (b"usage", b"meta_info", b"timings"):  # a long body: its end alone is left
        at = tail.rfind(b'"' + name + b'"')
        start = tail.find(b"{", at) if at >= 0 else -1
        if start >= 0:
            value = _decode_start(tail[start:])
            found = read_usage({name.decode(): value})
            if found is not None:
                return found
    return None
