"""``Service``: what goes on beside a router, in a thread or a task, also in the child of a fork."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio

__all__ = ["Service"]


class Service(ABC):
    """Runs in a thread of its own ``with`` it, in a task of the running event loop ``async with``.

    Whoever has a thread is in :data:`started`: the child of a fork does not have it.
    """

    _tasks: AsyncExitStack | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin in a thread, unless one does already."""

    @abstractmethod
    def stop(self) -> None:
        """End the thread."""

    @abstractmethod
    async def run(self) -> None:
        """Go on until cancelled."""

    @abstractmethod
    def _start_anew(self) -> None:
        """Go on in the child of a fork."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self._tasks = AsyncExitStack()
        group = await self._tasks.enter_async_context(anyio.create_task_group())
        group.start_soon(self.run)
        self._tasks.callback(group.cancel_scope.cancel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await tasks.__aexit__(kind, error, traceback)


started: weakref.WeakSet[Service] = weakref.WeakSet()
"""Those with a thread."""


def _after_fork() -> None:
    for service in list(started):
        service._start_anew()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
