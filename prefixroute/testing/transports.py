"""Mock transports: a cluster of simulated engines without a socket, for httpx and httpx2."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast, overload

import anyio

from prefixroute.testing.call import Call, IdleConnections
from prefixroute.testing.clock import Pause
from prefixroute.testing.libraries import AnyRequest, AnyResponse, with_stream_base
from prefixroute.testing.wire import Head

if TYPE_CHECKING:
    import httpx
    import httpx2

    class _SyncBase(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
        ...

    class _AsyncBase(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        ...
else:
    _SyncBase = _AsyncBase = object

__all__ = ["AsyncFakeTransport", "FakeTransport"]

CallMaker = Callable[[AnyRequest, IdleConnections], Call]
_T = TypeVar("_T")


class FakeTransport(_SyncBase):
    """A cluster as the transport of a sync client of httpx or httpx2, or of both.

    It answers the hosts of `FakeCluster.urls`, raises the errors of the library that the request
    belongs to, keeps that request's read timeout, and calls its `trace` extension. Closing it
    does nothing: several clients may share it.
    """

    def __init__(self, make_call: CallMaker) -> None:
        """Made by `FakeCluster.transport()`."""
        self._make_call = make_call
        self._idle = IdleConnections()

    @overload
    def handle_request(self, request: httpx.Request) -> httpx.Response: ...
    @overload
    def handle_request(self, request: httpx2.Request) -> httpx2.Response: ...
    def handle_request(self, request: AnyRequest) -> AnyResponse:
        """Answer one request.

        Raises:
            ConnectError, ReadTimeout, ReadError, RemoteProtocolError: Of the request's library.
        """
        call = self._make_call(request, self._idle)
        try:
            for name, info in call.connect():
                if call.trace is not None:
                    call.trace(name, info)
            stream = cast("Iterable[bytes]", request.stream)
            for name, info in call.send(b"".join(stream)):
                if call.trace is not None:
                    call.trace(name, info)
            head = _wait(call.head())
        except BaseException:
            call.cancel()
            raise
        return _response(call, head, _SyncBody, "SyncByteStream")

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()


class AsyncFakeTransport(_AsyncBase):
    """A cluster as the transport of an async client, on asyncio or trio: see `FakeTransport`."""

    def __init__(self, make_call: CallMaker) -> None:
        """Made by `FakeCluster.async_transport()`."""
        self._make_call = make_call
        self._idle = IdleConnections()

    @overload
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response: ...
    @overload
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response: ...
    async def handle_async_request(self, request: AnyRequest) -> AnyResponse:
        """Answer one request.

        Raises:
            ConnectError, ReadTimeout, ReadError, RemoteProtocolError: Of the request's library.
        """
        call = self._make_call(request, self._idle)
        try:
            for name, info in call.connect():
                if call.trace is not None:
                    await cast("Awaitable[object]", call.trace(name, info))
            stream = cast("AsyncIterable[bytes]", request.stream)
            body = b"".join([part async for part in stream])
            for name, info in call.send(body):
                if call.trace is not None:
                    await cast("Awaitable[object]", call.trace(name, info))
            head = await _wait_async(call.head())
        except BaseException:
            call.cancel()
            raise
        return _response(call, head, _AsyncBody, "AsyncByteStream")

    async def aclose(self) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


class _SyncBody:
    def __init__(self, call: Call) -> None:
        self._call = call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            data = _wait(self._call.chunk())
        except BaseException:
            self._call.cancel()
            raise
        if data is None:
            raise StopIteration
        return data

    def close(self) -> None:
        self._call.cancel()


class _AsyncBody:
    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await _wait_async(self._call.chunk())
        except BaseException:
            self._call.cancel()
            raise
        if data is None:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        self._call.cancel()


def _response(call: Call, head: Head, body_class: type, base_name: str) -> AnyResponse:
    stream = with_stream_base(body_class, call.library, base_name)(call)
    response: AnyResponse = call.library.Response(
        head.status,
        headers=call.headers_of(head),
        stream=stream,
        extensions={"http_version": b"HTTP/1.1"},
    )
    return response


def _wait(steps: Generator[Pause, None, _T]) -> _T:
    while True:
        try:
            pause = next(steps)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        if pause.sleep_s > 0:
            time.sleep(pause.sleep_s)


async def _wait_async(steps: Generator[Pause, None, _T]) -> _T:
    while True:
        try:
            pause = next(steps)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        await anyio.sleep(pause.sleep_s)
