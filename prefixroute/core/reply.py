"""Reads a reply's body as it passes: the first token, an error, the usage, the reply's id.

:class:`ReplyReader` is fed the bytes and keeps a bounded part of them. It alters nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from prefixroute.core.usage import (
    Usage,
    find_id,
    find_usage,
    first_known,
    read_reply,
    read_usage,
)

__all__ = ["ReplyReader"]

_WHOLE_BYTES: Final = 2**20
"""A JSON body of up to this is kept and decoded; of a longer one its end is searched."""
_KEPT_BYTES: Final = 2**16
_TAIL_BYTES: Final = 2**14
"""Of a stream, the tail that is kept; what passes is searched as it goes."""
_HEAD_BYTES: Final = 2**13
_EVENT_BYTES: Final = 2**16
"""A longer event counts as the first token without being read."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"  # which a stream may begin with
_SERVER_ERROR: Final = 500
_STATUSES: Final = {
    "authentication_error": 401,
    "badrequesterror": 400,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 503,
    "permission_error": 403,
    "rate_limit_error": 429,
}
"""What the error types of the APIs mean, for errors that come without a status."""

_ENDED: Final = re.compile(
    rb"(?:^|[\r\n])data:[ ]?\[DONE\]"
    rb'|"type":[ ]?"(?:message_stop|response\.(?:completed|incomplete))"'
)


class ReplyReader:
    """Reads one body as it passes.

    Args:
        events: The body is a stream of server-sent events.

    Attributes:
        first_token: Content has come (events only).
        error: Status of the error that came in place of content; ``None``: none (events only).
    """

    __slots__ = (
        "_buffer", "_chunks", "_events", "_head", "_looking", "_most", "_open_line", "_passed",
        "_size", "_started", "_whole", "error", "first_token",
    )  # fmt: skip

    def __init__(self, *, events: bool) -> None:
        self._events = events
        self._buffer = b""  # of the event that is not complete yet, until the first token
        self._open_line = False  # a CR came last
        self._looking = events  # for the first token
        self._head = b""  # of what has been let go
        self._most = _KEPT_BYTES if events else _WHOLE_BYTES  # that is kept
        self._chunks: list[bytes] = []
        self._size = 0  # of the chunks
        self._whole = not events  # nothing has been let go
        self._started: Usage | None = None  # Anthropic's message_start has the counts
        self._passed: Usage | None = None  # seen in what has been let go
        self.first_token = False
        self.error: int | None = None

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the body."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._most:
            self._let_go()
        if self._looking:
            self._find_first(chunk)

    def _let_go(self) -> None:
        kept = b"".join(self._chunks)
        self._passed = find_usage(kept) or self._passed
        self._head = self._head or kept[:_HEAD_BYTES]
        self._whole, self._most = False, _KEPT_BYTES
        self._chunks = [kept[-_TAIL_BYTES:]]
        self._size = len(self._chunks[0])

    # -- the first token -----------------------------------------------------------

    def _find_first(self, chunk: bytes) -> None:
        *events, self._buffer = (self._buffer + self._lines(chunk)).split(b"\n\n")
        for event in events:
            self._event(event)
            if self.first_token or self.error is not None:
                self._looking, self._buffer = False, b""
                return
        if len(self._buffer) > _EVENT_BYTES:
            self.first_token, self._looking, self._buffer = True, False, b""

    def _lines(self, chunk: bytes) -> bytes:
        """Return the bytes with each line's end (CR LF, LF or CR) as LF."""
        if self._open_line:
            chunk = b"\r" + chunk
        self._open_line = chunk[-1:] == b"\r"  # its LF may be the next chunk's first byte
        if self._open_line:
            chunk = chunk[:-1]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk

    def _event(self, event: bytes) -> None:
        lines = event.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        named_error = any(line[6:].strip() == b"error" for line in lines if line[:6] == b"event:")
        if not data and not named_error:
            return
        decoded = _decode(data)
        if named_error or _is_error(decoded):
            self.error = _status(decoded)
        elif has_content(decoded):
            self.first_token = True
        if self._started is None:
            self._started = read_usage(decoded)

    # -- the end -------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether a stream has said that it is over, whatever else may come."""
        return self._events and _ENDED.search(b"".join(self._chunks)[-_TAIL_BYTES:]) is not None

    def close(self) -> tuple[Usage | None, str | None]:
        """Return the usage and the id that the body has reported so far.

        Of a stream that broke off among its tokens, with an error as its last event,
        :attr:`error` is known from now on.
        """
        kept = b"".join(self._chunks)
        if self._whole:
            return read_reply(kept)
        if self._events and self.error is None:
            self._find_last_error(kept)
        head = self._head or kept[:_HEAD_BYTES]
        return first_known(find_usage(kept), self._passed, self._started), find_id(head)

    def _find_last_error(self, kept: bytes) -> None:
        end = len(kept)
        while (at := kept.rfind(b"data:", 0, end)) >= 0:
            data = kept[at + 5 : end].strip()
            if (at == 0 or kept[at - 1] in b"\r\n") and data != b"[DONE]":
                decoded = _decode(data) if b'"error"' in data else None
                self.error = _status(decoded) if _is_error(decoded) else None
                return
            end = at


def has_content(event: object) -> bool:
    """Return whether a decoded event carries output, rather than a role, a ping or a start."""
    if not isinstance(event, Mapping):
        return False
    kind = event.get("type")
    if isinstance(kind, str):  # Anthropic and /v1/responses name their events
        return kind == "content_block_delta" or kind.endswith(
            (".delta", ".completed", ".incomplete")
        )
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


def _is_error(event: object) -> bool:
    if not isinstance(event, Mapping):
        return False
    return bool(event.get("error")) or event.get("type") in ("error", "response.failed")


def _status(event: object) -> int:
    """Return the status that an error in a stream would have had as a reply of its own."""
    error = event.get("error") if isinstance(event, Mapping) else None
    for place in (error, event):
        if not isinstance(place, Mapping):
            continue
        for name in ("code", "status", "status_code"):
            value = place.get(name)
            if type(value) is int and 400 <= value <= 599:
                return value
        kind = place.get("type")
        if isinstance(kind, str) and kind.lower() in _STATUSES:
            return _STATUSES[kind.lower()]
    return _SERVER_ERROR


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
