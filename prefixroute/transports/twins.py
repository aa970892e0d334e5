"""A transport with the settings of another and connections of its own."""

from __future__ import annotations

import copy
from ssl import SSLContext
from typing import Any, Final

from prefixroute.transports.library import library_or_none

__all__ = ["can_have_twin", "twin_of"]

_STATE: Final = (
    *("_connections", "_requests", "_optional_thread_lock", "_network_backend"),
    "_ssl_context",
)


def can_have_twin(transport: Any) -> bool:
    """Return whether a transport is one of the libraries' own, built as it is known to be."""
    library = library_or_none(type(transport))
    if library is None:
        return False
    module = library.module
    if type(transport) not in (module.HTTPTransport, module.AsyncHTTPTransport):
        return False  # a subclass may hold more than settings
    pool = getattr(transport, "_pool", None)
    return all(hasattr(pool, name) for name in _STATE)


def twin_of(transport: Any, tls: SSLContext | None = None) -> Any:
    """Return a transport with the same TLS, proxy, limits and socket options, and no connections.

    If ``tls`` is given, its settings are used for whom requests are for, not for a proxy.

    The libraries keep these settings in their pool and show them nowhere, hence the look inside.
    """
    twin, pool = copy.copy(transport), copy.copy(transport._pool)  # noqa: SLF001
    pool._connections, pool._requests = [], []  # noqa: SLF001
    pool._optional_thread_lock = type(pool._optional_thread_lock)()  # noqa: SLF001
    if type(pool._network_backend).__name__ == "AutoBackend":  # noqa: SLF001 - remembers its loop
        pool._network_backend = type(pool._network_backend)()  # noqa: SLF001
    if tls is not None:
        pool._ssl_context = tls  # noqa: SLF001
    twin._pool = pool  # noqa: SLF001
    return twin
