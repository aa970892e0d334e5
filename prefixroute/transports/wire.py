"""How far an attempt got before it failed, as the library's own tracing tells; and how it is cut.

What is done to a running attempt from outside is done here: it is told of each of its phases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Cancelled", "Limit", "Wire"]

_STALE_WITHIN_S: Final = 0.25
_SHORTEST_S: Final = 0.001
"""A timeout of 0 would mean something else to a socket."""
_PHASES: Final = ("connect", "read", "write", "pool")


class Cancelled(Exception):  # noqa: N818 - nothing failed
    """Raised within an attempt that has lost a race, so that it lets go of its connection."""


class Limit:
    """The time that an attempt may take until it has headers, by way of its own timeouts.

    The libraries read the timeouts of a request at the start of each of its phases.

    Args:
        timeouts: The request's own dictionary, which is written to.
        within_s: Seconds from now.
    """

    __slots__ = ("_lifted", "_own", "_timeouts", "_until")

    def __init__(self, timeouts: dict[str, float | None], within_s: float) -> None:
        self._timeouts, self._own = timeouts, dict(timeouts)
        self._until = time.monotonic() + within_s
        self._lifted = False
        self.cut()

    def cut(self) -> None:
        """Let no phase that begins now last beyond the limit."""
        if self._lifted:
            return
        left = max(_SHORTEST_S, self._until - time.monotonic())
        for phase in _PHASES:
            own = self._own.get(phase)
            self._timeouts[phase] = min(math.inf if own is None else own, left)

    def lift(self) -> None:
        """Give the request its own timeouts again, for the body."""
        self._lifted = True
        self._timeouts.clear()
        self._timeouts.update(self._own)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._until


class Wire:
    """Watches one attempt through the ``trace`` extension of its request.

    Args:
        inner: The caller's own trace function, which goes on being called.
        limit: Of the attempt's time; ``None``: none but its timeouts.

    Attributes:
        cancelled: Set from another thread: the attempt is to end before it writes.
    """

    __slots__ = ("_inner", "_limit", "_opened", "_written_at", "cancelled")

    def __init__(self, inner: Callable[..., Any] | None, limit: Limit | None = None) -> None:
        self._inner, self._limit = inner, limit
        self._opened = False
        self._written_at: float | None = None
        self.cancelled = False

    def _note(self, name: str) -> None:
        if name.startswith(("connection.connect", "connection.start_tls")):
            self._opened = True
        elif ".send_request_" in name:
            self._written_at = time.monotonic()
            # From here on the library closes its connection when something is raised.
            if self.cancelled and name.endswith(".started"):
                raise Cancelled
        if self._limit is not None and name.endswith(".started"):
            self._limit.cut()  # a limit that is lifted stays so: a body has phases of its own

    def trace(self, name: str, info: dict[str, Any]) -> None:
        """Serve as the trace function of a sync request."""
        self._note(name)
        if self._inner is not None:
            self._inner(name, info)

    async def atrace(self, name: str, info: dict[str, Any]) -> None:
        """Serve as the trace function of an async request."""
        self._note(name)
        if self._inner is not None:
            await self._inner(name, info)

    @property
    def stale(self) -> bool:
        """Whether the attempt wrote to an idle connection, and only just now."""
        written = self._written_at
        return (
            not self._opened
            and written is not None
            and time.monotonic() - written <= _STALE_WITHIN_S
        )
