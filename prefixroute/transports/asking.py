"""A GET at one endpoint, with its key, through the router's own pools; no request of a caller's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from prefixroute.core.keys import key_of
from prefixroute.transports.attempt import PLACEHOLDER_HOST, attempt_request
from prefixroute.transports.library import Library, library_named
from prefixroute.transports.pools import Pools
from prefixroute.transports.waiting import current_loop

if TYPE_CHECKING:
    from prefixroute.core.endpoint import Endpoint

__all__ = ["ask", "ask_async"]


def ask(pools: Pools, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """Return the status and the body of what an endpoint answers to a GET.

    Args:
        pools: The router's.
        endpoint: Who is asked.
        path: At its root, such as ``/metrics``; below its URL if it starts with ``/v1/``.
        timeout_s: For each step: connecting, sending, each read.

    Raises:
        httpx.TransportError: It does not answer.
        KeyUnavailable: The function that gives its key gave none.
    """
    library = library_named("httpx")
    request, tls = _request(library, endpoint, path, timeout_s), endpoint.ssl_context
    pool: Any = pools.sync((library, tls), partial(library.make_transport, tls))
    response = pool.handle_request(request)
    try:
        response.read()
    finally:
        response.close()
        if pools.closed:  # while it connected, so that no pool knows the connection any more
            response.extensions["network_stream"].close()
    return response.status_code, response.content


async def ask_async(
    pools: Pools, endpoint: Endpoint, path: str, *, timeout_s: float
) -> tuple[int, bytes]:
    """Do what :func:`ask` does, on the running event loop."""
    library = library_named("httpx")
    request, tls = _request(library, endpoint, path, timeout_s), endpoint.ssl_context
    make = partial(library.make_async_transport, tls)
    pool = await pools.asynchronous((library, tls), make, current_loop())
    response = await pool.handle_async_request(request)
    try:
        await response.aread()
    finally:
        await response.aclose()
        if pools.closed:  # see above
            await response.extensions["network_stream"].aclose()
    return response.status_code, response.content


def _request(library: Library, endpoint: Endpoint, path: str, timeout_s: float) -> Any:
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
    asked = library.module.Request(
        "GET", f"https://{PLACEHOLDER_HOST}{path}", extensions={"timeout": timeout}
    )
    return attempt_request(library, asked, endpoint, key_of(endpoint))
