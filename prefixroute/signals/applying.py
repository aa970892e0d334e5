"""Applies what a source says to a router, in a thread of its own.

A change of the endpoints takes milliseconds for each of them, since a ring is built. In a thread of
its own that holds up neither the event loop nor whoever reads the source, and of many changes that
come meanwhile only the last is made.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from prefixroute.core.logs import log
from prefixroute.signals.last_good import LastGood
from prefixroute.signals.reconcile import Reconciler
from prefixroute.signals.sources.listing import Listing

__all__ = ["Applier"]

_SETTLE_EVERY_S: Final = 0.1
"""How often it is looked whether a leaving endpoint has finished; only while there is one."""


class Applier:
    """Takes listings and failures from any thread; follows those that are believed, in its own.

    Args:
        good: Decides what is believed.
        reconciler: Follows; used by the thread alone.
        again_s: After how long what has failed is tried again, seconds.
    """

    def __init__(self, good: LastGood, reconciler: Reconciler, *, again_s: float) -> None:
        self._good, self._reconciler, self._again_s = good, reconciler, again_s
        self._next: Listing | None = None  # believed, and not yet followed
        self._doubted: Listing | None = None  # names too few, and not for long enough
        self._thread: threading.Thread | None = None
        self.renew()

    def renew(self) -> None:
        """Forget the thread and its locks, which the child of a fork does not have."""
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._thread = None

    def start(self) -> None:
        """Begin to apply."""
        self._stopped = stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(stopped,), name="prefixroute-endpoints", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End; nothing that is said after this has an effect."""
        with self._lock:
            self._stopped.set()
        self._news.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    # -- what the source says ------------------------------------------------------

    def heard(self, listing: Listing) -> None:
        """Take what the source says now."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._doubted = None
            if self._good.believes(listing, time.monotonic()):
                self._next = listing
            else:
                self._doubted = listing
        self._news.set()

    def failed(self, error: Exception) -> int:
        """Note that the source could not be read; return how often in a row."""
        with self._lock:
            if not self._stopped.is_set():
                self._good.failed(error)
                self._doubted = None
            return self._good.misses

    # -- the thread ------------------------------------------------------------------

    def _run(self, stopped: threading.Event) -> None:
        pause_s: float | None = None
        while not stopped.is_set():
            self._news.wait(pause_s)
            self._news.clear()
            pause_s = self.step(stopped)

    def step(self, stopped: threading.Event) -> float | None:
        """Follow what is to be followed; return after how long to look again if nothing comes."""
        now = time.monotonic()
        with self._lock:
            if stopped.is_set():
                return None
            if self._doubted is not None and now >= self._good.doubts_until():
                self._good.believes(self._doubted, now)  # by now it does
                self._next, self._doubted = self._doubted, None
            listing, self._next = self._next, None
        try:
            if listing is None:
                self._reconciler.settle(now)
            else:
                self._reconciler.follow(listing, now)
        except Exception:  # noqa: BLE001 - a thread that died would go unnoticed
            log.exception("changing the router's endpoints failed; it is tried again")
            with self._lock:
                if self._next is None:
                    self._next = listing
            return self._again_s
        unsettled = self._reconciler.leaving or self._doubted is not None
        return _SETTLE_EVERY_S if unsettled else None
