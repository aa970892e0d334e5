"""How far an attempt got before it failed, as the library's own tracing tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Wire"]

_STALE_WITHIN_S: Final = 0.25


class Wire:
    """Watches one attempt through the ``trace`` extension of its request.

    Args:
        inner: The caller's own trace function, which goes on being called.
    """

    __slots__ = ("_inner", "_opened", "_written_at")

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self._inner = inner
        self._opened = False
        self._written_at: float | None = None

    def _note(self, name: str) -> None:
        if name.startswith(("connection.connect", "connection.start_tls")):
            self._opened = True
        elif ".send_request_" in name:
            self._written_at = time.monotonic()

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
