"""The body of a routed reply: passes the bytes on, reads what they report, ends the lease."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any, Final, Protocol

from prefixroute.core.lease import Lease, is_transport_error
from prefixroute.core.usage import ReplyReader
from prefixroute.transports.library import Library

__all__ = ["Watch", "stream_types"]

_INFLATE: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_SERVER_ERROR: Final = 500


class Watch:
    """What is done with a reply's bytes, whoever iterates over them.

    Args:
        lease: Released when the body ends, however it ends.
        events: The body is a stream of server-sent events.
        encoding: Content-Encoding; only the router's own reading decodes it.
        keep_id: The reply's id is to be remembered for requests that continue it.
    """

    __slots__ = ("_inflate", "_keep_id", "_lease", "_reader", "_told_error", "_told_first")

    def __init__(self, lease: Lease, *, events: bool, encoding: str, keep_id: bool) -> None:
        self._lease = lease
        self._keep_id = keep_id
        self._reader = (
            ReplyReader(events=events) if encoding in ("", "identity", *_INFLATE) else None
        )
        bits = _INFLATE.get(encoding)
        self._inflate = zlib.decompressobj(bits).decompress if bits is not None else None
        self._told_first = self._told_error = not events

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes; never raises."""
        reader = self._reader
        if reader is None:
            return
        if self._inflate is not None:
            try:
                chunk = self._inflate(chunk)
            except zlib.error:
                self._reader = None  # the caller's own decoding will say so
                return
        reader.feed(chunk)
        if not self._told_first and reader.first_token:
            self._told_first = self._told_error = True
            self._lease.first_token()
        elif not self._told_error and reader.error:
            self._told_error = True
            self._lease.failed(status=_SERVER_ERROR)

    def failed(self, error: BaseException) -> None:
        """End the lease: the body broke off, or whoever read it left."""
        if is_transport_error(error):
            self._lease.failed(error)
        self.end()

    def end(self) -> None:
        """End the lease, with what the reply reported; safe to repeat."""
        reader, self._reader = self._reader, None
        if reader is not None:
            usage = reader.usage()
            if usage is not None:
                self._lease.usage(
                    prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
                )
            response_id = reader.response_id() if self._keep_id else None
            if response_id is not None:
                self._lease.answered(response_id)
        self._lease.release()


class _Inner(Protocol):
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...


class _AsyncInner(Protocol):
    async def aclose(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class _SyncBody:
    def __init__(self, inner: _Inner, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def __iter__(self) -> Iterator[bytes]:
        feed = self._watch.feed
        try:
            for chunk in self._inner:
                feed(chunk)
                yield chunk
        except BaseException as error:
            self._watch.failed(error)
            raise
        self._watch.end()

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._watch.end()


class _AsyncBody:
    def __init__(self, inner: _AsyncInner, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        feed = self._watch.feed
        try:
            async for chunk in self._inner:
                feed(chunk)
                yield chunk
        except BaseException as error:
            self._watch.failed(error)
            raise
        self._watch.end()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._watch.end()


@cache
def stream_types(library: Library) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the sync and the async body as stream classes of a library, which checks for them."""
    sync = type("RoutedBody", (_SyncBody, library.module.SyncByteStream), {})
    asynchronous = type("AsyncRoutedBody", (_AsyncBody, library.module.AsyncByteStream), {})
    return sync, asynchronous
