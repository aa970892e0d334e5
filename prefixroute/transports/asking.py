"""A GET at one endpoint, with its key, through the router's own pools; no request of a caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """
    library = library_named("httpx")
    request = _request(library, endpoint, path, timeout_s)
    response = pools.sync(library, library.make_transport).handle_request(request)
    try:
        response.read()
    finally:
        response.close()
    return response.status_code, response.content


async def ask_async(
    pools: Pools, endpoint: Endpoint, path: str, *, timeout_s: float
) -> tuple[int, bytes]:
    """Do what :func:`ask` does, on the running event loop."""
    library = library_named("httpx")
    request = _request(library, endpoint, path, timeout_s)
    pool = await pools.asynchronous(library, library.make_async_transport, current_loop())
    response = await pool.handle_async_request(request)
    try:
        await response.aread()
    finally:
        await response.aclose()
    return response.status_code, response.content


def _request(library: Library, endpoint: Endpoint, path: str, timeout_s: float) -> Any:
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
    asked = library.module.Request(
        "GET", f"https://{PLACEHOLDER_HOST}{path}", extensions={"timeout": timeout}
    )
    return attempt_request(library, asked, endpoint)
