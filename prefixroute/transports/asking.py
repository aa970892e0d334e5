"""The router's own requests to one endpoint, with its key, through its own pools; no caller's.

Bounded in time and in bytes, whatever is at the other end: whoever asks may have to go on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prefixroute.core.keys import key_of
from prefixroute.errors import RouterClosedError
from prefixroute.transports.attempt import PLACEHOLDER_HOST, attempt_request
from prefixroute.transports.breaking import break_off
from prefixroute.transports.call import Attempt
from prefixroute.transports.library import Library, library_named
from prefixroute.transports.pools import Pools
from prefixroute.transports.waiting import current_loop
from prefixroute.transports.wire import Wire

if TYPE_CHECKING:
    from prefixroute.core.endpoint import Endpoint

__all__ = ["ask", "ask_async", "post"]

_STEPS: Final = 4
"""So many times the time of a step is what the whole may take: steps may be many."""
_LARGEST: Final = 2**24


def ask(pools: Pools, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """Return the status and the body of what an endpoint answers to a GET.

    Args:
        pools: The router's.
        endpoint: Who is asked.
        path: At its root, such as ``/metrics``; below its URL if it starts with ``/v1/``.
        timeout_s: For each step: connecting, sending, each read; for all of them, four times that.

    Raises:
        httpx.TransportError: It does not answer, or without end.
        KeyUnavailable: The function that gives its key gave none.
        RouterClosedError: The router is closed.
    """
    library = library_named("httpx")
    request = _request(library, endpoint, path, timeout_s)
    return _sent(pools, endpoint, library, request, timeout_s)


def post(
    pools: Pools, endpoint: Endpoint, path: str, body: bytes, *, timeout_s: float
) -> tuple[int, bytes]:
    """Return the status and the body of what an endpoint answers to a POST of JSON.

    Args:
        pools: The router's.
        endpoint: Who is asked.
        path: As for :func:`ask`.
        body: JSON.
        timeout_s: As for :func:`ask`.

    Raises:
        httpx.TransportError: It does not answer.
        KeyUnavailable: The function that gives its key gave none.
        RouterClosedError: The router is closed.
    """
    library = library_named("httpx")
    request = _request(library, endpoint, path, timeout_s, body)
    return _sent(pools, endpoint, library, request, timeout_s)


def _sent(
    pools: Pools, endpoint: Endpoint, library: Library, request: Any, timeout_s: float
) -> tuple[int, bytes]:
    _check_open(pools)
    tls = endpoint.ssl_context
    pool: Any = pools.sync((library, tls), partial(library.make_transport, tls))
    wire = Wire(None)
    request.extensions["trace"] = wire.trace
    with _ending(library, Attempt(request, wire, None, pool), _STEPS * timeout_s):
        response = pool.handle_request(request)
        body = _Body(library)
        try:
            for chunk in response.iter_bytes():
                body.take(chunk)
        finally:
            response.close()
            if not pools.keeps(pool):  # it was closed meanwhile, and forgot what still connected
                response.extensions["network_stream"].close()
    return response.status_code, bytes(body.content)


async def ask_async(
    pools: Pools, endpoint: Endpoint, path: str, *, timeout_s: float
) -> tuple[int, bytes]:
    """Do what :func:`ask` does, on the running event loop."""
    import anyio  # noqa: PLC0415 - only who asks pays for it

    library = library_named("httpx")
    request, tls = _request(library, endpoint, path, timeout_s), endpoint.ssl_context
    make = partial(library.make_async_transport, tls)
    _check_open(pools)
    pool = await pools.asynchronous((library, tls), make, current_loop())
    with anyio.move_on_after(_STEPS * timeout_s):
        response = await pool.handle_async_request(request)
        body = _Body(library)
        try:
            async for chunk in response.aiter_bytes():
                body.take(chunk)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
                if not pools.keeps(pool):  # see above
                    await response.extensions["network_stream"].aclose()
        return response.status_code, bytes(body.content)
    raise _endless(library)


class _Body:
    """What has come of a body, up to a size."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.content = bytearray()

    def take(self, chunk: bytes) -> None:
        self.content += chunk
        if len(self.content) > _LARGEST:
            raise _endless(self._library)


@contextmanager
def _ending(library: Library, attempt: Attempt, within_s: float) -> Iterator[None]:
    """End an attempt that takes longer than this, seconds."""
    timer = threading.Timer(within_s, break_off, (attempt,))
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if attempt.wire.cancelled:
            raise _endless(library) from error
        raise
    finally:
        timer.cancel()


def _endless(library: Library) -> Exception:
    error: Exception = library.module.ReadTimeout("its answer has no end: too long, or too slow")
    return error


def _check_open(pools: Pools) -> None:
    """Refuse to open connections anew that nobody would close."""
    if pools.closed:
        raise RouterClosedError("the router was closed: it asks no endpoint any more")


def _request(
    library: Library, endpoint: Endpoint, path: str, timeout_s: float, body: bytes | None = None
) -> Any:
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
    asked = library.module.Request(
        "GET" if body is None else "POST",
        f"https://{PLACEHOLDER_HOST}{path}",
        headers={} if body is None else {"content-type": "application/json"},
        content=body,
        extensions={"timeout": timeout},
    )
    return attempt_request(library, asked, endpoint, key_of(endpoint))
