"""Warms the cache of an endpoint that joins, in a thread of the router's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from prefixroute.core.bodies import Remembered
from prefixroute.core.prompt import Prompt
from prefixroute.core.router import RouterCore
from prefixroute.core.warming import HOLD_S
from prefixroute.transports.asking import post
from prefixroute.transports.pools import Pools

if TYPE_CHECKING:
    from prefixroute.core.endpoint import Endpoint

__all__ = ["Primer"]

_EVERY_S: Final = 0.2
"""One prefix at a time, and no more than five a second."""
_BEGIN_WITHIN_S: Final = 0.5
"""Many routers see the same endpoint join at the same moment; the first to prime spares the others
the computing."""
_SHORTEST_S: Final = 0.1
_FAILURES: Final = 2
"""In a row, after which the endpoint is left in peace: not ready yet, or it asks for a key."""
_OK: Final = 200


class Primer:
    """Sends an endpoint that has joined the hottest prefixes that it will own, one token each.

    Through the router's own pools, with the endpoint's own key. They count as no requests, and
    failures say nothing about the endpoint. A thread for each endpoint, which lasts no longer than
    ``HOLD_S`` and the request under way; a fork's child has none, and the endpoint is let in there
    when the time is over.

    Args:
        core: Knows with what, and is told.
        pools: The router's own connection pools.
    """

    def __init__(self, core: RouterCore, pools: Pools) -> None:
        self._core, self._pools = core, pools
        self._random = Random()  # noqa: S311 - spreads the beginnings
        self._stopped = threading.Event()

    def start(self, endpoints: Iterable[Endpoint]) -> None:
        """Begin with these."""
        if self._stopped.is_set():  # the router was closed, and is open again
            self._stopped = threading.Event()
        stopped = self._stopped
        for endpoint in endpoints:
            threading.Thread(
                target=self._run, args=(endpoint, stopped), name="prefixroute-priming", daemon=True
            ).start()

    def stop(self) -> None:
        """End; a request that is under way ends by itself."""
        self._stopped.set()

    def _run(self, endpoint: Endpoint, stopped: threading.Event) -> None:
        began, done = time.monotonic(), 0
        try:
            stopped.wait(self._random.uniform(0.0, _BEGIN_WITHIN_S))
            done = self._prime(endpoint, stopped, began + HOLD_S)
        finally:
            took_s = time.monotonic() - began
            self._core.end_priming(endpoint, prefixes=done, took_s=took_s)

    def _prime(self, endpoint: Endpoint, stopped: threading.Event, until: float) -> int:
        """Return how many prefixes it has computed."""
        done = failures = 0
        for one in self._core.to_prime(endpoint):
            left_s = until - time.monotonic()
            if stopped.is_set() or left_s <= _SHORTEST_S or failures == _FAILURES:
                break
            due = time.monotonic() + _EVERY_S
            if self._send(endpoint, one, left_s):
                self._core.primed(endpoint, one)
                done, failures = done + 1, 0
            else:
                failures += 1
            stopped.wait(max(0.0, due - time.monotonic()))
        return done

    def _send(self, endpoint: Endpoint, one: Remembered, timeout_s: float) -> bool:
        try:
            body = one.request(self._read)
            if body is None:
                return False
            status, _ = post(self._pools, endpoint, one.path, body, timeout_s=timeout_s)
        except Exception:  # noqa: BLE001 - whatever keeps it from answering
            return False
        return status == _OK

    def _read(self, body: bytes, path: str) -> Prompt:
        return self._core.read(body, path=path)
