"""The inner transports of one router: who opened them, and who closes them when."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from prefixroute.transports.library import Library

__all__ = ["Pools"]


class Pools:
    """Connection pools that a router's transports share, one per library (and event loop).

    Closing one transport never closes a pool that another one uses: pools are closed with the last
    transport, or by the router.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles = 0
        self._sync: dict[str, Any] = {}
        self._loops: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def opened(self) -> None:
        """Count a transport."""
        with self._lock:
            self._handles += 1

    def closed(self) -> bool:
        """Take a transport off; return whether it was the last."""
        with self._lock:
            self._handles -= 1
            return self._handles == 0

    def sync(self, library: Library) -> Any:
        """Return the library's pool."""
        pool = self._sync.get(library.name)
        if pool is None:
            with self._lock:
                pool = self._sync.get(library.name)
                if pool is None:
                    pool = self._sync[library.name] = library.module.HTTPTransport()
        return pool

    def asynchronous(self, library: Library, loop: object) -> Any:
        """Return the library's pool of this event loop; connections cannot leave theirs."""
        with self._lock:
            pools = self._loops.setdefault(loop, {})
            pool = pools.get(library.name)
            if pool is None:
                pool = pools[library.name] = library.module.AsyncHTTPTransport()
        return pool

    def close(self) -> None:
        """Close the sync pools; the next request opens new ones."""
        with self._lock:
            pools, self._sync = list(self._sync.values()), {}
        for pool in pools:
            pool.close()

    async def aclose(self, loop: object) -> None:
        """Close the pools of this event loop."""
        with self._lock:
            pools = list(self._loops.pop(loop, {}).values())
        for pool in pools:
            await pool.aclose()
