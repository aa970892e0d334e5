"""Connection pools: who opened them, which event loop they belong to, and who closes them when."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Any

__all__ = ["Pools"]


class _LoopPools:
    """The pools of one event loop; closed on it before it ends."""

    def __init__(self) -> None:
        self.pools: dict[Hashable, Any] = {}
        self.closer: AsyncGenerator[None, None] | None = None


class Pools:
    """Inner transports that a router has opened itself, by key; async ones one per event loop.

    Connections cannot leave their event loop, nor be shared with the child of a fork: each loop
    and each process has its own. An async pool is closed on its loop, at the latest when that ends.
    """

    def __init__(self) -> None:
        # Reentrant: a client that is collected closes itself, also while a pool is being made.
        self._lock = threading.RLock()
        self._sync: dict[Hashable, Any] = {}
        self._loops: dict[Any, _LoopPools] = {}
        self._children: weakref.WeakSet[Pools] = weakref.WeakSet()
        self.closed = False
        _all.add(self)

    def child(self) -> Pools:
        """Return pools that can be closed on their own, and are closed with these."""
        made = Pools()
        self._children.add(made)
        return made

    def sync(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return a pool; ``make`` makes it if it is not there."""
        pool = self._sync.get(key)
        if pool is None:
            with self._lock:
                pool = self._sync.get(key)
                if pool is None:
                    pool = self._sync[key] = make()
        return pool

    async def asynchronous(self, key: Hashable, make: Callable[[], Any], loop: Any) -> Any:
        """Return a pool of the running event loop; ``make`` makes it if it is not there."""
        of_loop = self._loops.get(loop)
        if of_loop is None:
            of_loop = await self._enter(loop)
        pool = of_loop.pools.get(key)
        if pool is None:
            pool = of_loop.pools[key] = make()
        return pool

    async def _enter(self, loop: Any) -> _LoopPools:
        of_loop = _LoopPools()
        with self._lock:
            for other in [known for known in self._loops if _has_ended(known)]:
                del self._loops[other]
            self._loops[loop] = of_loop
        # Event loops close the asynchronous generators that were begun on them when they end.
        of_loop.closer = self._closing(loop, of_loop)
        await anext(of_loop.closer)
        return of_loop

    async def _closing(self, loop: Any, of_loop: _LoopPools) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._loops.get(loop) is of_loop:
                del self._loops[loop]
            for pool in of_loop.pools.values():
                await pool.aclose()

    def close(self) -> None:
        """Close the sync pools."""
        with self._lock:
            pools, self._sync = list(self._sync.values()), {}
        for pool in pools:
            pool.close()
        for child in list(self._children):
            child.close()

    async def aclose(self, loop: Any) -> None:
        """Close the pools of the running event loop."""
        with self._lock:
            of_loop = self._loops.pop(loop, None)
        if of_loop is not None and of_loop.closer is not None:
            await of_loop.closer.aclose()
        for child in list(self._children):
            await child.aclose(loop)

    def __del__(self) -> None:
        for pool in self._sync.values():
            pool.close()

    def _after_fork(self) -> None:
        _inherited.append((self._sync, self._loops))
        self._lock = threading.RLock()
        self._sync, self._loops = {}, {}


def _has_ended(loop: Any) -> bool:
    return bool(getattr(loop, "is_closed", bool)())


_all: weakref.WeakSet[Pools] = weakref.WeakSet()
_inherited: list[object] = []
"""What a fork's child got of its parent's connections: kept, and never touched."""


def _after_fork() -> None:
    for pools in list(_all):
        pools._after_fork()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
