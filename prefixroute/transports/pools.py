"""Connection pools: who opened them, which event loop they belong to, and who closes them when."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["Pools"]


@dataclass(frozen=True, slots=True)
class _OfLoop:
    """The pools of one event loop, and the generator that closes them before it ends."""

    pools: dict[Hashable, Any]
    closer: AsyncGenerator[None, None]


class Pools:
    """Inner transports that a router has opened itself, by key; async ones one per event loop.

    Connections cannot leave their event loop, nor be shared with the child of a fork: each loop
    and each process has its own. An async pool is closed on its loop, at the latest when that ends.
    """

    def __init__(self) -> None:
        # Reentrant: a client that is collected closes itself, also while a pool is being made.
        self._lock = threading.RLock()
        self._sync: dict[Hashable, Any] = {}
        self._loops: dict[Any, _OfLoop] = {}
        self._children: weakref.WeakSet[Pools] = weakref.WeakSet()
        self._handles = {False: 0, True: 0}
        self.closed = False  # for good
        _all.add(self)

    def child(self) -> Pools:
        """Return pools that can be closed on their own, and are closed with these."""
        made = Pools()
        self._children.add(made)
        return made

    def opened(self, *, asynchronous: bool) -> None:
        """Count a transport that uses these pools."""
        with self._lock:
            self._handles[asynchronous] += 1

    def was_last(self, *, asynchronous: bool) -> bool:
        """Take a transport off; return whether it was the last of its kind."""
        with self._lock:
            self._handles[asynchronous] -= 1
            return self._handles[asynchronous] == 0

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

    async def _enter(self, loop: Any) -> _OfLoop:
        pools: dict[Hashable, Any] = {}
        # Event loops close the asynchronous generators that were begun on them when they end.
        of_loop = _OfLoop(pools, _closing(weakref.ref(self), loop, pools))
        with self._lock:
            for other in [known for known in self._loops if _has_ended(known)]:
                del self._loops[other]
            self._loops[loop] = of_loop
        await anext(of_loop.closer)
        return of_loop

    def _forget(self, loop: Any, pools: dict[Hashable, Any]) -> None:
        with self._lock:
            of_loop = self._loops.get(loop)
            if of_loop is not None and of_loop.pools is pools:
                del self._loops[loop]

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
        if of_loop is not None:
            pools = list(of_loop.pools.values())
            of_loop.pools.clear()  # here and now: nothing is left to the generator
            with suppress(RuntimeError):  # it is ending already
                await of_loop.closer.aclose()
            for pool in pools:
                await pool.aclose()
        for child in list(self._children):
            await child.aclose(loop)

    def keeps(self, pool: Any) -> bool:
        """Return whether a pool is one of these, and so will be closed in time."""
        kept = [*self._sync.values()]
        for of_loop in list(self._loops.values()):
            kept += of_loop.pools.values()
        return not self.closed and any(pool is one for one in kept)

    def __del__(self) -> None:
        for pool in self._sync.values():
            with suppress(Exception):  # at the end of the process much is gone already
                pool.close()

    def _after_fork(self) -> None:
        _inherited.append((self._sync, self._loops))
        self._lock = threading.RLock()
        self._sync, self._loops = {}, {}


async def _closing(
    owner: weakref.ref[Pools], loop: Any, pools: dict[Hashable, Any]
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        owning = owner()
        if owning is not None:
            owning._forget(loop, pools)  # noqa: SLF001 - same module
        while pools:
            await pools.popitem()[1].aclose()


def _has_ended(loop: Any) -> bool:
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()


_all: weakref.WeakSet[Pools] = weakref.WeakSet()
_inherited: list[object] = []
"""What a fork's child got of its parent's connections: kept, and never touched."""


def _after_fork() -> None:
    for pools in list(_all):
        pools._after_fork()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
