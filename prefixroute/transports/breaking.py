"""Ends a sync attempt from another thread: nothing else wakes one that waits for its answer.

The libraries show nowhere which connection a request is on, hence the look inside their pools.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from prefixroute.transports.call import Attempt

__all__ = ["break_off", "can_break_off"]

_DEEPEST: Final = 4
"""Of connections within connections: through a proxy, say."""


def can_break_off(transport: Any) -> bool:
    """Return whether attempts of a sync transport can be ended: it is one of the libraries' own.

    Not over HTTP/2, where others use the same connection.
    """
    asked = getattr(transport, "can_break_off", None)
    if callable(asked):
        return bool(asked())
    pool = getattr(transport, "_pool", None)
    known = hasattr(pool, "_requests") and hasattr(pool, "_optional_thread_lock")
    return known and not getattr(pool, "_http2", True)


def break_off(attempt: Attempt) -> None:
    """End an attempt that runs in another thread; one that has ended already is left alone.

    If it is still to connect, it ends once it has.
    """
    attempt.wire.cancelled = True
    pool = getattr(attempt.transport, "_pool", None)
    if pool is None:
        return
    with pool._optional_thread_lock:  # noqa: SLF001 - while it is held no connection changes hands
        for pending in pool._requests:  # noqa: SLF001
            if pending.request.extensions is attempt.request.extensions:
                _shut_down(pending.connection)


def _shut_down(connection: Any) -> None:
    for _ in range(_DEEPEST):
        stream = getattr(connection, "_network_stream", None)
        if stream is not None and hasattr(connection, "_h11_state"):
            found = stream.get_extra_info("socket")
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # TLS would say goodbye first
            return
        connection = getattr(connection, "_connection", None)
