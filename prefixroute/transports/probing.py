"""Active probes: the router itself asks its endpoints how they are, in a thread of its own."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from prefixroute.core.router import RouterCore
from prefixroute.errors import KeyUnavailable
from prefixroute.transports.asking import ask
from prefixroute.transports.pools import Pools

if TYPE_CHECKING:
    from prefixroute.core.endpoint import Endpoint

__all__ = ["Prober"]

_TIMEOUT_S: Final = 5.0
_JITTER: Final = 0.2
"""Share by which an interval varies, so that many routers don't ask together."""
_AT_ONCE: Final = 16
"""Endpoints that are asked at the same time."""


class Prober:
    """Asks every endpoint now and then and tells the router what it heard; counts as no request.

    The thread begins with the first call, ends with :meth:`stop` or with the router, and begins
    anew in the child of a fork.

    Args:
        core: Is told; not kept alive.
        pools: The router's own connection pools.
        every_s: Interval, seconds.
        path: What is asked for, at an endpoint's root.
    """

    def __init__(self, core: RouterCore, pools: Pools, *, every_s: float, path: str) -> None:
        self._core, self._pools = weakref.ref(core), pools
        self._every_s, self._path = every_s, path
        self._random = Random()  # noqa: S311 - spreads probes
        self._pid = 0  # of the process that the thread runs in
        self._stopped = threading.Event()

    def ensure(self) -> None:
        """Begin, unless it runs in this process already."""
        if self._pid == os.getpid():
            return
        self._pid, self._stopped = os.getpid(), threading.Event()
        threading.Thread(
            target=self._run, args=(self._stopped,), name="prefixroute-probes", daemon=True
        ).start()

    def stop(self) -> None:
        """End; a probe that is under way ends by itself."""
        self._pid = 0
        self._stopped.set()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._every_s * self._random.uniform(1 - _JITTER, 1 + _JITTER)):
            core = self._core()
            if core is None:
                return
            self._round(core, stopped)
            del core  # which may be collected while this waits

    def _round(self, core: RouterCore, stopped: threading.Event) -> None:
        """Ask all of them. The threads are daemons: none keeps the process from ending."""
        left = deque(core.endpoints)

        def work() -> None:
            while left and not stopped.is_set():
                with suppress(IndexError):  # another thread took the last one
                    self._probe(core, stopped, left.popleft())

        threads = [
            threading.Thread(target=work, name="prefixroute-probe", daemon=True)
            for _ in range(min(_AT_ONCE, len(left)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _probe(self, core: RouterCore, stopped: threading.Event, endpoint: Endpoint) -> None:
        try:
            status = self.ask(endpoint)
        except KeyUnavailable:
            return  # which says nothing about the endpoint
        if not stopped.is_set():  # else what was heard may come of the pools' being closed
            core.probed(endpoint, status)

    def ask(self, endpoint: Endpoint) -> int | None:
        """Return the status that an endpoint answers with; ``None``: it does not.

        Raises:
            KeyUnavailable: The function that gives its key gave none.
        """
        try:
            return ask(self._pools, endpoint, self._path, timeout_s=_TIMEOUT_S)[0]
        except KeyUnavailable:
            raise
        except Exception:  # noqa: BLE001 - whatever keeps it from answering
            return None
