"""Calls that wait, in order, for an endpoint to have room."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING

from prefixroute.core.prompt import Prompt

if TYPE_CHECKING:
    from prefixroute.core.lease import Lease

__all__ = ["Waiter"]


class Waiter:
    """One waiting call. Room goes to the longest waiting call that can use it.

    Args:
        prompt: What is to be placed.
        exclude: Ids of endpoints that were tried already.
    """

    __slots__ = ("_notify", "context", "exclude", "lease", "prompt")

    def __init__(self, prompt: Prompt, exclude: frozenset[str] = frozenset()) -> None:
        self.prompt, self.exclude = prompt, exclude
        self.context = copy_context()  # who frees the room tells of the lease
        self.lease: Lease | None = None
        self._notify: Callable[[], object] | None = None

    def on_granted(self, notify: Callable[[], object]) -> None:
        """Have ``notify`` called, from any thread, once there is a lease; at once if there is."""
        self._notify = notify
        if self.lease is not None:
            self._tell()

    def grant(self, lease: Lease) -> None:
        """Give the lease."""
        self.lease = lease
        self._tell()

    def _tell(self) -> None:
        if self._notify is not None:
            with suppress(RuntimeError):  # its event loop has ended: whoever waited is gone
                self._notify()
