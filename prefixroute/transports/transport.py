"""The two shells: they run an exchange's script over an inner transport, sync and async."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from prefixroute.core.exchange import (
    Answer,
    Discard,
    Failed,
    Outcome,
    Responded,
    Send,
    Step,
    Wait,
    WaitForCapacity,
)
from prefixroute.core.router import RouterCore
from prefixroute.errors import RouterClosedError
from prefixroute.transports.attempt import PLACEHOLDER_HOST
from prefixroute.transports.call import Call, is_buffered, is_replayable
from prefixroute.transports.library import Library, library_of
from prefixroute.transports.pools import Pools
from prefixroute.transports.waiting import async_sleep, current_loop, wait_async, wait_sync

if TYPE_CHECKING:
    import httpx
    import httpx2

    class _SyncBase(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
        """What type checkers see: a transport of either library."""

    class _AsyncBase(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        """What type checkers see: an async transport of either library."""
else:
    _SyncBase = _AsyncBase = object

__all__ = ["AsyncRoutedTransport", "RoutedTransport"]


class _Handle:
    """What both transports are: a counted hold on the router's pools.

    Args:
        core: The router.
        pools: The router's own connection pools.
        inner: A transport to send through instead of the router's own pools, for requests of its
            library; whoever made it closes it.
        library: The library of ``inner``, where its class does not tell.
        keep: Kept alive as long as the transport.
    """

    def __init__(
        self,
        core: RouterCore,
        pools: Pools,
        inner: object | None = None,
        *,
        library: Library | None = None,
        keep: object = None,
    ) -> None:
        self._core, self._pools = core, pools
        self._inner: Any = inner
        self._keep = keep
        if inner is not None and library is None:
            library = library_of(type(inner))
        self._inner_library = library
        self._closed = False
        pools.opened()

    def _check_open(self) -> None:
        if self._closed:
            raise RouterClosedError("this transport was closed; take a new one from the router")

    def _close_handle(self) -> bool:
        if self._closed:
            return False
        self._closed, self._keep = True, None
        return self._pools.closed()


def _next(script: Generator[Step[Any], Outcome[Any], Answer[Any]], outcome: Outcome[Any]) -> Any:
    """Return the script's next step, or its answer."""
    try:
        return script.send(outcome)
    except StopIteration as done:
        return done.value


class RoutedTransport(_Handle, _SyncBase):
    """An httpx and httpx2 transport that sends each request where its prefix is cached."""

    def handle_request(self, request: Any) -> Any:
        """Route a request; requests to other hosts pass through untouched."""
        self._check_open()
        library = library_of(type(request))
        inner = self._inner_of(library)
        if request.url.host != PLACEHOLDER_HOST:
            return inner.handle_request(request)
        if not is_buffered(request) and is_replayable(request):
            request.read()
        call = Call(self._core, library, request, asynchronous=False)
        with closing(call.script()) as script:
            step = _next(script, None)
            while not isinstance(step, Answer):
                step = _next(script, self._step(call, inner, step))
            return call.answer(step)

    def _step(self, call: Call, inner: Any, step: Step[Any]) -> Outcome[Any]:
        match step:
            case Send(lease):
                return self._send(call, inner, lease)
            case Discard(response):
                response.close()
            case Wait(seconds):
                time.sleep(seconds)
            case WaitForCapacity(waiter, seconds):
                wait_sync(self._core, waiter, seconds)
        return None

    def _send(self, call: Call, inner: Any, lease: Any) -> Responded[Any] | Failed:
        made, wire = call.attempt(lease)
        try:
            return call.responded(inner.handle_request(made))
        except Exception as error:  # noqa: BLE001 - sorted by what it means
            return call.failed(error, wire)

    def _inner_of(self, library: Library) -> Any:
        return self._inner if library is self._inner_library else self._pools.sync(library)

    def close(self) -> None:
        """Close this transport; the pools close with the last one."""
        if self._close_handle():
            self._pools.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()


class AsyncRoutedTransport(_Handle, _AsyncBase):
    """As :class:`RoutedTransport`, for async clients, on asyncio and trio."""

    async def handle_async_request(self, request: Any) -> Any:
        """Route a request; requests to other hosts pass through untouched."""
        self._check_open()
        library = library_of(type(request))
        inner = self._inner_of(library)
        if request.url.host != PLACEHOLDER_HOST:
            return await inner.handle_async_request(request)
        if not is_buffered(request) and is_replayable(request):
            await request.aread()
        call = Call(self._core, library, request, asynchronous=True)
        with closing(call.script()) as script:
            step = _next(script, None)
            while not isinstance(step, Answer):
                step = _next(script, await self._step(call, inner, step))
            return call.answer(step)

    async def _step(self, call: Call, inner: Any, step: Step[Any]) -> Outcome[Any]:
        match step:
            case Send(lease):
                return await self._send(call, inner, lease)
            case Discard(response):
                await response.aclose()
            case Wait(seconds):
                await async_sleep(seconds)
            case WaitForCapacity(waiter, seconds):
                await wait_async(self._core, waiter, seconds)
        return None

    async def _send(self, call: Call, inner: Any, lease: Any) -> Responded[Any] | Failed:
        made, wire = call.attempt(lease)
        try:
            return call.responded(await inner.handle_async_request(made))
        except Exception as error:  # noqa: BLE001 - sorted by what it means
            return call.failed(error, wire)

    def _inner_of(self, library: Library) -> Any:
        if library is self._inner_library:
            return self._inner
        return self._pools.asynchronous(library, current_loop())

    async def aclose(self) -> None:
        """Close this transport; the pools close with the last one."""
        if self._close_handle():
            await self._pools.aclose(current_loop())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()
