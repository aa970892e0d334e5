"""Waiting for room at an endpoint, in a thread or in a task."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

from prefixroute.core.router import RouterCore
from prefixroute.core.waiters import Waiter

__all__ = ["async_sleep", "current_loop", "wait_async", "wait_sync"]

_LOOK_EVERY_S: Final = 0.25
"""Room that comes of time alone (a cooldown that is over) is noticed this often."""


def wait_sync(core: RouterCore, waiter: Waiter, seconds: float) -> None:
    """Block until the waiter has a lease, or for ``seconds``."""
    granted = threading.Event()
    waiter.on_granted(granted.set)
    deadline = time.monotonic() + seconds
    while not granted.is_set():
        left = deadline - time.monotonic()
        if left <= 0:
            return
        granted.wait(min(left, _LOOK_EVERY_S))
        core.poke()


def current_loop() -> object:
    """Return what the running event loop is known by: an asyncio loop or a trio token."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        import trio  # noqa: PLC0415 - only where it runs

        return trio.lowlevel.current_trio_token()


async def async_sleep(seconds: float) -> None:
    """Sleep on asyncio or trio."""
    if isinstance(current_loop(), asyncio.AbstractEventLoop):
        await asyncio.sleep(seconds)
    else:
        import trio  # noqa: PLC0415 - only where it runs

        await trio.sleep(seconds)


async def wait_async(core: RouterCore, waiter: Waiter, seconds: float) -> None:
    """Await until the waiter has a lease, or for ``seconds``."""
    loop = current_loop()
    deadline = time.monotonic() + seconds
    if isinstance(loop, asyncio.AbstractEventLoop):
        granted = asyncio.Event()
        wake: Callable[[], object] = granted.set
        waiter.on_granted(lambda: loop.call_soon_threadsafe(wake))
        while not granted.is_set() and (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(granted.wait(), min(left, _LOOK_EVERY_S))
            except TimeoutError:
                core.poke()
        return
    import trio  # noqa: PLC0415 - only where it runs

    event = trio.Event()
    token = trio.lowlevel.current_trio_token()
    waiter.on_granted(lambda: token.run_sync_soon(event.set))
    while not event.is_set() and (left := deadline - time.monotonic()) > 0:
        with trio.move_on_after(min(left, _LOOK_EVERY_S)):
            await event.wait()
        core.poke()
