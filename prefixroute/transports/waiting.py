"""Waiting, in a thread or in a task."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

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
    while not granted.is_set() and (left := deadline - time.monotonic()) > 0:
        granted.wait(min(left, _LOOK_EVERY_S))
        core.poke()


def _trio() -> Any:
    """Return trio if this is one of its tasks, also where it is a guest of asyncio."""
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()  # in_trio_task() is there from trio 0.29 on only
    except RuntimeError:
        return None
    return trio


def current_loop() -> Any:
    """Return what the running event loop is known by: an asyncio loop or a trio token."""
    trio = _trio()
    return asyncio.get_running_loop() if trio is None else trio.lowlevel.current_trio_token()


async def async_sleep(seconds: float) -> None:
    """Sleep on asyncio or trio."""
    trio = _trio()
    await (asyncio if trio is None else trio).sleep(seconds)


async def wait_async(core: RouterCore, waiter: Waiter, seconds: float) -> None:
    """Await until the waiter has a lease, or for ``seconds``."""
    trio, loop = _trio(), current_loop()
    granted: Any = asyncio.Event() if trio is None else trio.Event()
    wake = loop.call_soon_threadsafe if trio is None else loop.run_sync_soon
    waiter.on_granted(lambda: wake(granted.set))
    deadline = time.monotonic() + seconds
    while not granted.is_set() and (left := deadline - time.monotonic()) > 0:
        look_s = min(left, _LOOK_EVERY_S)
        if trio is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(granted.wait(), look_s)
        else:
            with trio.move_on_after(look_s):
                await granted.wait()
        core.poke()
