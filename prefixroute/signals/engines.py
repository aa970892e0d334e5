"""``EngineMetrics``: asks engines how loaded they are, and tells the router."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from random import Random
from typing import Final, Protocol

import anyio

from prefixroute.core.checks import check_number, refusal
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load import EngineLoad
from prefixroute.core.logs import log
from prefixroute.signals.metrics import read_load
from prefixroute.signals.service import Service, started

__all__ = ["EngineMetrics", "Polled"]

_JITTER: Final = 0.2
"""Share by which an interval varies, so that many pollers do not ask together."""
_LONGEST_BACKOFF_S: Final = 60.0
"""After which an endpoint without readable metrics is asked again at the latest."""
_SHORTEST_TIMEOUT_S: Final = 1.0
_AT_ONCE: Final = 16
"""Endpoints that one poller asks at the same time."""
_OK: Final = 200


class Polled(Protocol):
    """What is asked of a router."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Who is polled."""
        ...

    def report_load(self, loads: Mapping[str, EngineLoad]) -> None:
        """Take what engines report."""
        ...

    def ask(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        """GET a path of an endpoint."""
        ...

    async def aask(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        """GET a path of an endpoint, on the running event loop."""
        ...


class EngineMetrics(Service):
    """Reads the ``/metrics`` of every endpoint now and then, and reports their load to a router.

    Knows vLLM, SGLang (``--enable-metrics``), llama.cpp (``--metrics``) and TGI, by itself. An
    endpoint that has no such metrics, or does not answer, is asked ever less often, up to once a
    minute; the router goes on guessing its load. Nothing here delays a request.

    ``with`` it polls in a thread of its own (which begins anew in the child of a fork), ``async
    with`` it polls in a task of the running event loop, on asyncio or trio. Each poller starts at
    a random moment of its first interval.

    Args:
        router: Is told, by :meth:`Router.report_load`.
        every_s: Interval, seconds. The router takes a report for stale after three of them.
        path: Where the metrics are, at an endpoint's root.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.
    """

    def __init__(self, router: Polled, *, every_s: float = 1.0, path: str = "/metrics") -> None:
        if not callable(getattr(router, "report_load", None)):
            raise refusal("EngineMetrics", "router", router, "a Router")
        given: object = path
        if not isinstance(given, str) or not given.startswith("/"):
            raise refusal("EngineMetrics", "path", path, "a path such as '/metrics'")
        self._router, self._path = router, path
        self._every_s = check_number("EngineMetrics", "every_s", every_s, above=True)
        self._timeout_s = max(self._every_s, _SHORTEST_TIMEOUT_S)
        self._random = Random()  # noqa: S311 - spreads the polls
        self._misses: dict[str, int] = {}  # rounds in a row without a load, by endpoint
        self._due_at: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<EngineMetrics every {self._every_s:g} s, of {len(self._router.endpoints)}>"

    # -- one round ---------------------------------------------------------------

    def poll(self) -> dict[str, EngineLoad]:
        """Ask every endpoint that is due, report their loads, and return them by endpoint id."""
        due = self._due()
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(due)))) as threads:
            return self._told(dict(zip(due, threads.map(self._ask, due), strict=True)))

    async def apoll(self) -> dict[str, EngineLoad]:
        """Do what :meth:`poll` does, on the running event loop."""
        found: dict[Endpoint, EngineLoad | None] = {}
        limiter = anyio.Semaphore(_AT_ONCE)

        async def ask(endpoint: Endpoint) -> None:
            async with limiter:
                found[endpoint] = await self._aask(endpoint)

        async with anyio.create_task_group() as group:
            for endpoint in self._due():
                group.start_soon(ask, endpoint)
        return self._told(found)

    def _due(self) -> list[Endpoint]:
        now, endpoints = time.monotonic(), self._router.endpoints
        known = {endpoint.id for endpoint in endpoints}
        for gone in self._due_at.keys() - known:
            del self._due_at[gone]
            self._misses.pop(gone, None)
        return [e for e in endpoints if self._due_at.get(e.id, 0.0) <= now]

    def _ask(self, endpoint: Endpoint) -> EngineLoad | None:
        try:
            status, body = self._router.ask(endpoint, self._path, timeout_s=self._timeout_s)
        except Exception:  # noqa: BLE001 - whatever keeps it from answering
            return None
        return read_load(body) if status == _OK else None

    async def _aask(self, endpoint: Endpoint) -> EngineLoad | None:
        try:
            status, body = await self._router.aask(endpoint, self._path, timeout_s=self._timeout_s)
        except Exception:  # noqa: BLE001 - as above
            return None
        return read_load(body) if status == _OK else None

    def _told(self, found: Mapping[Endpoint, EngineLoad | None]) -> dict[str, EngineLoad]:
        """Report what was read, and put off those that had nothing to say."""
        now = time.monotonic()
        for endpoint, load in found.items():
            name = endpoint.id
            if load is not None:
                self._misses.pop(name, None)
                self._due_at[name] = 0.0
                continue
            misses = self._misses[name] = self._misses.get(name, 0) + 1
            backoff_s = min(_LONGEST_BACKOFF_S, self._every_s * 2.0 ** min(misses, 32))
            self._due_at[name] = now + backoff_s * self._random.uniform(0.5, 1.0)
            if misses == 1:
                log.info("%s has no metrics that tell its load", name)
        loads = {endpoint.id: load for endpoint, load in found.items() if load is not None}
        if loads:
            self._router.report_load(loads)
        return loads

    # -- again and again ---------------------------------------------------------

    def _pause_s(self) -> float:
        return self._every_s * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def _run(self, stopped: threading.Event) -> None:
        pause_s = self._random.uniform(0.0, self._every_s)
        while not stopped.wait(pause_s):
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - a poller that died would go unnoticed
                log.exception("polling engines failed; it goes on")
            pause_s = self._pause_s()

    async def run(self) -> None:
        """Poll until cancelled."""
        await anyio.sleep(self._random.uniform(0.0, self._every_s))
        while True:
            try:
                await self.apoll()
            except Exception:  # noqa: BLE001 - as above
                log.exception("polling engines failed; it goes on")
            await anyio.sleep(self._pause_s())

    def start(self) -> None:
        """Begin to poll in a thread, unless one does already."""
        if self._thread is not None:
            return
        import_module("httpx")  # not in the thread: OpenAI's SDK fails on what is half loaded
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stopped,), name="prefixroute-metrics", daemon=True
        )
        self._thread.start()
        started.add(self)

    def stop(self) -> None:
        """End the thread; returns when it has ended, after a round that is under way."""
        thread, self._thread = self._thread, None
        started.discard(self)
        if thread is not None:
            self._stopped.set()
            thread.join()

    def _start_anew(self) -> None:
        self._thread = None
        self.start()
