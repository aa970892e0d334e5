"""The two shells: they run an exchange's script over an inner transport, sync and async."""

from __future__ import annotations

import time
from functools import partial
from ssl import SSLContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from prefixroute.core.router import RouterCore
from prefixroute.core.steps import (
    Answer,
    Failed,
    Keep,
    Outcome,
    Race,
    Responded,
    Script,
    Send,
    Step,
    Wait,
    WaitForCapacity,
)
from prefixroute.errors import ConfigurationError, RouterClosedError
from prefixroute.transports.attempt import PLACEHOLDER_HOST
from prefixroute.transports.breaking import can_break_off
from prefixroute.transports.call import Attempt, Call, Refusal, Reply, is_buffered, is_replayable
from prefixroute.transports.library import Library, library_of, library_or_none
from prefixroute.transports.pools import Pools
from prefixroute.transports.race import race_async, race_sync
from prefixroute.transports.replies import close_iterator
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

__all__ = ["AsyncRoutedTransport", "RoutedTransport", "refused_tls"]


class _Handle:
    """What both transports are: a counted hold on the router's pools.

    Args:
        core: The router.
        pools: The router's own connection pools.
        inner: A transport to send through in place of the router's own pools. If it is of one
            library, the other's requests are refused; if of none, it gets both.
        closes_inner: Whether it is closed with this one; else whoever made it closes it.
    """

    _asynchronous: bool
    _method: str
    _other: str

    def __init__(
        self,
        core: RouterCore,
        pools: Pools,
        inner: object | None = None,
        *,
        closes_inner: bool = False,
    ) -> None:
        self._core, self._pools = core, pools
        self._inner: Any = inner
        self._inner_library = library_or_none(type(inner))
        self._closes_inner = closes_inner
        self._closed = False
        if inner is not None and not callable(getattr(inner, self._method, None)):
            raise ConfigurationError(
                f"inner={type(inner).__module__}.{type(inner).__qualname__} must be a transport "
                f"with {self._method}(); for the other kind there is router.{self._other}(), and "
                "of a client give the transport"
            )
        if inner is not None and not hasattr(inner, "transport_of"):
            for endpoint in core.endpoints:
                self._given(endpoint.ssl_context)
        if inner is not None and core.failover.hedge_after_s is not None:
            self._check_hedging(inner)
        pools.opened(asynchronous=self._asynchronous)

    def _check_hedging(self, inner: Any) -> None:
        """Refuse an inner transport whose attempts could not be ended when they have lost."""
        if not self._asynchronous and not can_break_off(inner):
            raise ConfigurationError(
                f"inner={type(inner).__module__}.{type(inner).__qualname__} must be an "
                "HTTPTransport without HTTP/2 while Failover(hedge_after_s=...) is set: a sync "
                "attempt that has lost can be ended only there; use an async client, give no "
                "inner transport, or set no hedge_after_s"
            )

    def _given(self, tls: SSLContext | None) -> Any:
        """Return the inner transport, which has TLS settings of its own and takes no others."""
        if tls is not None:
            raise refused_tls(self._inner)
        return self._inner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._core!r}>"

    def _library(self, request: Any) -> Library:
        """Return the library of a request, if it can be sent.

        Raises:
            RouterClosedError: This transport or the router is closed.
            ConfigurationError: The inner transport is of the other library.
        """
        if self._is_closed():
            what = "this transport" if self._closed else "the router"
            raise RouterClosedError(f"{what} was closed: make a new one")
        library, own = library_of(type(request)), self._inner_library
        if own is not None and own is not library:
            raise ConfigurationError(
                f"inner={type(self._inner).__qualname__} is a transport of {own.name}, and the "
                f"client is one of {library.name}: give a {library.name} transport"
            )
        return library

    def _is_closed(self) -> bool:
        return self._closed or self._pools.closed

    def _leave(self) -> bool:
        """Close the handle; return whether it was open."""
        was_open, self._closed = not self._closed, True
        return was_open


def refused_tls(transport: object) -> ConfigurationError:
    """Return the error that says that an endpoint's own TLS settings cannot be used."""
    kind = type(transport)
    return ConfigurationError(
        f"an endpoint has an ssl_context=, and {kind.__module__}.{kind.__qualname__} sends with "
        "TLS settings of its own: give it the context instead, or let the router send "
        "(router.transport() without inner=, a client without a transport of yours)"
    )


def _next(script: Script[Reply], outcome: Outcome[Reply]) -> Step[Reply] | Answer[Reply]:
    """Return the script's next step, or its answer."""
    try:
        return script.send(outcome)
    except StopIteration as done:
        answer: Answer[Reply] = done.value
        return answer


class RoutedTransport(_Handle, _SyncBase):
    """An httpx and httpx2 transport that sends each request where its prefix is cached."""

    _asynchronous, _method, _other = False, "handle_request", "async_transport"

    def handle_request(self, request: Any) -> Any:
        """Route a request; requests to other hosts pass through untouched."""
        library = self._library(request)
        if request.url.host != PLACEHOLDER_HOST:
            return self._transport_of(library, request).handle_request(request)
        if not is_buffered(request) and is_replayable(request):
            request.read()
        call = Call(self._core, library, request, asynchronous=False, closed=self._is_closed)
        exchange = call.exchange()
        try:
            script = exchange.run()
            step = _next(script, None)
            while not isinstance(step, Answer):
                step = _next(script, self._step(call, step))
        except BaseException:
            exchange.stop()
            raise
        return call.answer(step)

    def _step(self, call: Call, step: Step[Reply]) -> Outcome[Reply]:
        match step:
            case Send():
                return self._send(call, self._begin(call, step))
            case Race():
                begin, send = partial(self._begin, call), partial(self._send, call)
                return race_sync(step, begin=begin, send=send, keep=partial(self._keep, call))
            case Keep():
                return self._keep(call, step)
            case Wait(seconds):
                time.sleep(seconds)
            case WaitForCapacity(waiter, seconds):
                wait_sync(self._core, waiter, seconds)
        return None

    def _begin(self, call: Call, send: Send) -> Attempt:
        tls = send.lease.endpoint.ssl_context
        attempt = call.attempt(send)
        attempt.transport = self._transport_of(call.library, attempt.request, tls)
        return attempt

    def _send(self, call: Call, attempt: Attempt) -> Responded[Reply] | Failed:
        try:
            return call.responded(attempt.transport.handle_request(attempt.request), attempt)
        except Exception as error:  # noqa: BLE001 - sorted by what it means
            return call.failed(error, attempt)

    def _keep(self, call: Call, keep: Keep[Reply]) -> Responded[Reply]:
        refusal = Refusal(call.library, keep)
        response = keep.refusal.response.response
        try:
            for chunk in response.stream:
                if not refusal.take(chunk):
                    break
        except Exception:  # noqa: BLE001 - the refusal itself is known
            refusal.broke()
        finally:
            response.close()
        return refusal.kept()

    def _transport_of(self, library: Library, request: Any, tls: SSLContext | None = None) -> Any:
        if self._inner is None:
            return self._pools.sync((library, tls), partial(library.make_transport, tls))
        transport_of = getattr(self._inner, "transport_of", None)  # of a client: see ``wrap``
        return self._given(tls) if transport_of is None else transport_of(request, tls)

    def close(self) -> None:
        """Close this transport; the router's pools close with the last one."""
        if not self._leave():
            return
        if self._pools.was_last(asynchronous=False):
            self._pools.close()
        if self._closes_inner:
            self._inner.close()

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

    _asynchronous, _method, _other = True, "handle_async_request", "transport"

    async def handle_async_request(self, request: Any) -> Any:
        """Route a request; requests to other hosts pass through untouched."""
        library = self._library(request)
        if request.url.host != PLACEHOLDER_HOST:
            transport = await self._transport_of(library, request)
            return await transport.handle_async_request(request)
        if not is_buffered(request) and is_replayable(request):
            await request.aread()
        call = Call(self._core, library, request, asynchronous=True, closed=self._is_closed)
        exchange = call.exchange()
        try:
            script = exchange.run()
            step = _next(script, None)
            while not isinstance(step, Answer):
                step = _next(script, await self._step(call, step))
        except GeneratorExit:  # a task that is collected, which is no place to take a lock
            raise
        except BaseException:
            exchange.stop()
            raise
        return call.answer(step)

    async def _step(self, call: Call, step: Step[Reply]) -> Outcome[Reply]:
        match step:
            case Send():
                return await self._send(call, await self._begin(call, step))
            case Race():
                begin, send = partial(self._begin, call), partial(self._send, call)
                keep = partial(self._keep, call)
                return await race_async(step, begin=begin, send=send, keep=keep)
            case Keep():
                return await self._keep(call, step)
            case Wait(seconds):
                await async_sleep(seconds)
            case WaitForCapacity(waiter, seconds):
                await wait_async(self._core, waiter, seconds)
        return None

    async def _begin(self, call: Call, send: Send) -> Attempt:
        tls = send.lease.endpoint.ssl_context
        attempt = call.attempt(send)
        attempt.transport = await self._transport_of(call.library, attempt.request, tls)
        return attempt

    async def _send(self, call: Call, attempt: Attempt) -> Responded[Reply] | Failed:
        try:
            response = await attempt.transport.handle_async_request(attempt.request)
            return call.responded(response, attempt)
        except Exception as error:  # noqa: BLE001 - sorted by what it means
            return call.failed(error, attempt)

    async def _keep(self, call: Call, keep: Keep[Reply]) -> Responded[Reply]:
        refusal = Refusal(call.library, keep)
        response = keep.refusal.response.response
        chunks = aiter(response.stream)
        try:
            async for chunk in chunks:
                if not refusal.take(chunk):
                    break
        except Exception:  # noqa: BLE001 - the refusal itself is known
            refusal.broke()
        finally:
            await close_iterator(chunks)
            await response.aclose()
        return refusal.kept()

    async def _transport_of(
        self, library: Library, request: Any, tls: SSLContext | None = None
    ) -> Any:
        if self._inner is None:
            make = partial(library.make_async_transport, tls)
            return await self._pools.asynchronous((library, tls), make, current_loop())
        transport_of = getattr(self._inner, "transport_of", None)  # of a client: see ``wrap``
        return self._given(tls) if transport_of is None else await transport_of(request, tls)

    async def aclose(self) -> None:
        """Close this transport; the router's pools close with the last one."""
        if not self._leave():
            return
        if self._pools.was_last(asynchronous=True):
            await self._pools.aclose(current_loop())
        if self._closes_inner:
            await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()
