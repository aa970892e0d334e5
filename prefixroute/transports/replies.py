"""The body of a routed reply: passes the bytes on, reads what they report, ends the lease."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, Protocol

from prefixroute.core.lease import Lease, is_transport_error
from prefixroute.core.reply import ReplyReader
from prefixroute.transports.library import Library

__all__ = ["Watch", "close_iterator", "stream_types"]

_INFLATE: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_SERVER_ERROR: Final = 500


class Watch:
    """What is done with a reply's bytes, whoever iterates over them.

    Nothing in here raises: what cannot be read is passed on unread.

    Args:
        lease: Released when the body ends, however it ends.
        kind: Content-Type; only JSON and server-sent events are read.
        encoding: Content-Encoding; only the router's own reading decodes it.
        keep_id: The reply's id is to be remembered for requests that continue it.
        digest: Returns a digest of the request, to count its errors once.
        on_failure: Called when the body breaks off.
        closed: Tells whether the caller has closed the client, and so the connection.
    """

    __slots__ = (
        "_closed", "_digest", "_encoding", "_inflate", "_keep_id", "_lease", "_on_failure",
        "_reader", "_told",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        *,
        kind: str,
        encoding: str,
        keep_id: bool,
        digest: Callable[[], int | None],
        on_failure: Callable[[], None],
        closed: Callable[[], bool],
    ) -> None:
        self._lease, self._keep_id, self._digest = lease, keep_id, digest
        self._on_failure, self._closed, self._encoding = on_failure, closed, encoding
        self._reader: ReplyReader | None = None
        events = kind.startswith("text/event-stream")
        if encoding in ("", "identity", *_INFLATE) and (events or not kind or "json" in kind):
            self._reader = ReplyReader(events=events)
        bits = _INFLATE.get(encoding)
        self._inflate = zlib.decompressobj(bits).decompress if bits is not None else None
        self._told = not events

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes."""
        reader = self._reader
        if reader is None:
            return
        try:
            reader.feed(chunk if self._inflate is None else self._inflate(chunk))
        except zlib.error as error:
            self._reader = None
            self._garbled(error)
            return
        except Exception:  # noqa: BLE001 - the caller's own reading will say what is wrong
            self._reader = None
            return
        if not self._told:
            self._tell(reader)

    def _tell(self, reader: ReplyReader) -> None:
        """Tell the lease how the reply has begun, as soon as that is known."""
        if reader.first_token:
            self._told = True
            self._lease.first_token()
        elif reader.error is not None:
            self._told = True
            self._note_error(reader.error)

    def _garbled(self, error: zlib.error) -> None:
        """Note that the body is not what it claims; of deflate there is a kind that is not read."""
        if self._encoding == "gzip":
            self._lease.failed(error)
            self._on_failure()

    def _note_error(self, status: int) -> None:
        digest = self._digest() if status == _SERVER_ERROR else None
        self._lease.failed(status=status, digest=digest)

    def ended(self) -> None:
        """End the lease: the body has come to its end."""
        self._read()
        self._lease.release()

    def broke(self, error: BaseException) -> None:
        """End the lease: the body broke off, or whoever read it was stopped."""
        if is_transport_error(error) and not self._closed():
            self._lease.failed(error)
            self._on_failure()
        self._read()
        self._lease.abandon()

    def closed(self) -> None:
        """End the lease: nobody will read on. Many stop at ``[DONE]`` rather than at the end."""
        over = self._reader is not None and self._reader.ended
        self._read()
        if over:
            self._lease.release()
        else:
            self._lease.abandon()

    def _read(self) -> None:
        """Take what the reply has reported."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        had_error = reader.error is not None
        try:
            usage, response_id = reader.close()
        except Exception:  # noqa: BLE001 - the caller's own reading will say what is wrong
            return
        if usage is not None:
            self._lease.usage(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
        if self._keep_id and response_id is not None:
            self._lease.answered(response_id)
        if reader.error is not None and not had_error:
            self._note_error(reader.error)


# Iterators rather than generators: a generator that is dropped runs its end in a finalizer, where
# the router's lock must not be taken. What is dropped in these is the lease, which knows that.


class _Inner(Protocol):
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...


class _AsyncInner(Protocol):
    async def aclose(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class _SyncBody:
    def __init__(self, inner: _Inner, watch: Watch) -> None:
        self._inner, self._watch = inner, watch
        self._iterator: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        self._iterator = iter(self._inner)
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._iterator)  # type: ignore[arg-type]  # set by __iter__
        except StopIteration:
            self._watch.ended()
            raise
        except BaseException as error:
            self._watch.broke(error)
            raise
        self._watch.feed(chunk)
        return chunk

    def close(self) -> None:
        self._watch.closed()
        self._inner.close()


class _AsyncBody:
    def __init__(self, inner: _AsyncInner, watch: Watch) -> None:
        self._inner, self._watch = inner, watch
        self._iterator: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._iterator = self._inner.__aiter__()
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._iterator)  # type: ignore[arg-type]  # set by __aiter__
        except StopAsyncIteration:
            self._watch.ended()
            raise
        except GeneratorExit:  # a task that is collected, which is no place to take a lock
            raise
        except BaseException as error:
            self._watch.broke(error)
            raise
        self._watch.feed(chunk)
        return chunk

    async def aclose(self) -> None:
        self._watch.closed()
        await close_iterator(self._iterator)
        await self._inner.aclose()


async def close_iterator(iterator: AsyncIterator[bytes] | None) -> None:
    """End a generator that is not read to its end, rather than leave that to its collection."""
    if isinstance(iterator, AsyncGenerator):
        with suppress(RuntimeError):  # somebody is reading from it
            await iterator.aclose()


@cache
def stream_types(library: Library) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the sync and the async body as stream classes of a library, which checks for them."""
    sync = type("RoutedBody", (_SyncBody, library.module.SyncByteStream), {})
    asynchronous = type("AsyncRoutedBody", (_AsyncBody, library.module.AsyncByteStream), {})
    return sync, asynchronous
