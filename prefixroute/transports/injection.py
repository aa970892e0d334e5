"""``Router(inject_usage=True)``: asks a stream for its usage, and hides the answer.

Without ``stream_options.include_usage`` most engines report no cached tokens of a streamed reply.
Where the caller said nothing about it, the router says it for them, and takes the chunk that this
adds (``"choices": []`` with the usage) out of the stream again. This is the only case in which a
router alters a body; all other bytes, both ways, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any, Final, Protocol

import msgspec

from prefixroute.transports.library import Library

__all__ = ["UsageFilter", "asking_for_usage", "hiding_types", "with_usage"]

_PATHS: Final = ("/chat/completions", "/completions")
_ASK: Final = b'"stream_options":{"include_usage":true}'
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_BYTES: Final = 2**16
"""A longer event holds no usage: it is passed on before its end has come."""

_Fields = dict[str, msgspec.Raw]


def asking_for_usage(library: Library, request: Any, body: bytes | None) -> Any:
    """Return the request to send in place of the caller's, or theirs if it needs no asking.

    Args:
        library: Of the request.
        request: The caller's.
        body: Its body, if that is in memory.
    """
    if not body or not request.url.path.rstrip("/").endswith(_PATHS):
        return request
    asking = with_usage(body)
    if asking is None:
        return request
    own = {b"content-length": b"%d" % len(asking), b"accept-encoding": b"identity"}
    headers = [(name, own.get(name.lower(), value)) for name, value in request.headers.raw]
    return library.module.Request(
        request.method,
        request.url,
        headers=headers,
        content=asking,
        extensions=request.extensions,
    )


def with_usage(body: bytes) -> bytes | None:
    """Return the body of a streamed request that asks for usage; ``None``: leave it as it is.

    Whoever says anything about ``include_usage`` has decided. All that was there stays byte for
    byte.
    """
    try:
        fields = msgspec.json.decode(body, type=_Fields)
        given = fields.get("stream_options")
        options = {} if given is None else msgspec.json.decode(given, type=_Fields | None) or {}
    except msgspec.MsgspecError:
        return None
    if bytes(fields.get("stream", b"")).strip() != b"true" or "include_usage" in options:
        return None
    if given is None:
        end = body.rindex(b"}")
        return b"%s,%s%s" % (body[:end], _ASK, body[end:])
    options["include_usage"] = msgspec.Raw(b"true")
    return msgspec.json.encode({**fields, "stream_options": options})


class UsageFilter:
    """Takes the chunk that reports usage out of a stream, wherever its bytes are cut."""

    __slots__ = ("_held", "_passing")

    def __init__(self) -> None:
        self._held = b""
        self._passing = False  # in the middle of an event that is too long to be the one

    def feed(self, chunk: bytes) -> bytes:
        """Return what of the stream can be passed on now that these bytes have come."""
        data = self._held + chunk
        out, start = [], 0
        for match in _EVENT_END.finditer(data):
            event = data[start : match.end()]
            if self._passing or not _is_usage(event):
                out.append(event)
            start, self._passing = match.end(), False
        self._held = data[start:]
        if self._passing or len(self._held) > _LONGEST_BYTES:
            tail = max(0, len(self._held) - 3)  # which may be the start of the event's end
            out.append(self._held[:tail])
            self._held, self._passing = self._held[tail:], True
        return b"".join(out)

    def rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        held, self._held = self._held, b""
        return b"" if not self._passing and _is_usage(held) else held


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or b'"choices"' not in event:
        return False
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    try:
        chunk = msgspec.json.decode(b"\n".join(lines))
    except (msgspec.MsgspecError, RecursionError):
        return False
    return (
        isinstance(chunk, dict)
        and chunk.get("choices") == []
        and isinstance(chunk.get("usage"), dict)
        and "error" not in chunk
    )


class _Body(Protocol):
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...


class _AsyncBody(Protocol):
    async def aclose(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class _SyncHiding:
    """A body without its usage. An iterator, as the body inside is, for the same reason."""

    def __init__(self, inner: _Body) -> None:
        self._inner, self._filter = inner, UsageFilter()
        self._iterator: Iterator[bytes] | None = None
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        self._iterator = iter(self._inner)
        return self

    def __next__(self) -> bytes:
        while not self._over:
            try:
                kept = self._filter.feed(next(self._iterator))  # type: ignore[arg-type]
            except StopIteration:
                self._over, kept = True, self._filter.rest()
            if kept:
                return kept
        raise StopIteration

    def close(self) -> None:
        self._inner.close()


class _AsyncHiding:
    def __init__(self, inner: _AsyncBody) -> None:
        self._inner, self._filter = inner, UsageFilter()
        self._iterator: AsyncIterator[bytes] | None = None
        self._over = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._iterator = self._inner.__aiter__()
        return self

    async def __anext__(self) -> bytes:
        while not self._over:
            try:
                kept = self._filter.feed(await anext(self._iterator))  # type: ignore[arg-type]
            except StopAsyncIteration:
                self._over, kept = True, self._filter.rest()
            if kept:
                return kept
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await self._inner.aclose()


@cache
def hiding_types(library: Library) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the sync and the async body as stream classes of a library, which checks for them."""
    sync = type("HidingBody", (_SyncHiding, library.module.SyncByteStream), {})
    asynchronous = type("AsyncHidingBody", (_AsyncHiding, library.module.AsyncByteStream), {})
    return sync, asynchronous
