"""``Discovery``: keeps a router's endpoints those that a source names."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import AsyncExitStack
from random import Random
from types import TracebackType
from typing import Final, NoReturn, Self

import anyio
import anyio.to_thread

from prefixroute.core.checks import check_int, check_number, refusal
from prefixroute.core.endpoint import Endpoint, normalise_url, shown_url
from prefixroute.core.logs import log
from prefixroute.signals.last_good import LastGood
from prefixroute.signals.reconcile import Led, Reconciler
from prefixroute.signals.sources.functions import AsyncReader, AsyncSource, Given, source_of
from prefixroute.signals.sources.listing import Listing, Reader

__all__ = ["Discovery"]

_JITTER: Final = 0.2
"""Share by which an interval may be shorter, so that many processes do not ask together."""
_LONGEST_BACKOFF_S: Final = 30.0
_SHORTEST_PAUSE_S: Final = 0.01
"""Between two reads: a source that says "at once" again and again is not read in a frenzy."""
_LONGEST_PAUSE_S: Final = 3600.0
_SETTLE_EVERY_S: Final = 0.1
"""How often it is looked whether a leaving endpoint has finished; only while there is one."""
_PATIENCE_S: Final = 2.0
"""How long a read that hangs is waited for at the end; it can do nothing after that."""


class Discovery:
    """Keeps a router's endpoints those that a source names: a file, DNS, Kubernetes, a function.

    Who joins gets its share of the requests; who stays keeps its accounting and its prefixes, with
    the settings as they are now; who is no longer named gets no new requests, finishes what it
    has, and is removed. A source that cannot be read changes nothing, and one that names nobody is
    believed only after a grace time: ``trouble`` and one warning in the log tell of it. Nothing
    here delays a request.

    ``with`` it reads the source in a thread of its own (which begins anew in the child of a fork).
    ``async with`` does the same for sources that block, and reads async functions and iterators in
    a task of the running event loop, on asyncio or trio. At the end the router keeps the endpoints
    that it has.

    Args:
        router: Whose endpoints these are: all of them but ``keep``. One discovery for a router.
        source: A :class:`FileSource`, :class:`DnsSource` or :class:`KubernetesSource`; a function
            that returns a list, or an async one; an async iterator of lists; or a list.
        every_s: Interval at which a source is asked that does not say when it is to be, seconds.
        grace_s: How long a source has to name too few endpoints to be believed, seconds.
        min_endpoints: Fewer than so many (that may get requests) are too few.
        drain_timeout_s: How long an endpoint that leaves may finish its requests, seconds. Those
            that take longer still go on to their end, but are no longer shown by the router.
        keep: Endpoints, by id or URL, that stay whatever the source names: a fallback, say.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.

    Example::

        source = DnsSource("gpu.default.svc.cluster.local", port=8000)
        with Router(source.endpoints()) as router, Discovery(router, source):
            client = router.wrap(OpenAI(api_key="-"))
    """

    def __init__(
        self,
        router: Led,
        source: Given,
        *,
        every_s: float = 2.0,
        grace_s: float = 300.0,
        min_endpoints: int = 1,
        drain_timeout_s: float = 600.0,
        keep: Iterable[Endpoint | str] = (),
    ) -> None:
        owner = "Discovery"
        if not callable(getattr(router, "set_endpoints", None)):
            raise refusal(owner, "router", router, "a Router")
        self._source = source_of(source)
        self._every_s = check_number(owner, "every_s", every_s, above=True)
        check_int(owner, "min_endpoints", min_endpoints, 1)
        self._good = LastGood(
            repr(self._source),
            grace_s=check_number(owner, "grace_s", grace_s),
            min_endpoints=min_endpoints,
        )
        timeout_s = check_number(owner, "drain_timeout_s", drain_timeout_s)
        kept = _names(keep)
        self._reconciler = Reconciler(router, drain_timeout_s=timeout_s, keep=kept)
        self._random = Random()  # noqa: S311 - spreads the asking
        self._lock = threading.Lock()  # around what a round changes
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._settling: threading.Thread | None = None
        self._reader: Reader | None = None
        self._doubted: Listing | None = None  # names too few, and not for long enough
        self._tasks: AsyncExitStack | None = None

    def __repr__(self) -> str:
        trouble = f", the last good list is kept: {self.trouble}" if self.trouble else ""
        return f"<Discovery of {self._source!r}{trouble}>"

    @property
    def trouble(self) -> str | None:
        """What keeps the source from being followed; ``None``: all is well."""
        return self._good.trouble

    # -- one round ---------------------------------------------------------------

    def _read(self, reader: Reader, stopped: threading.Event) -> float:
        """Read the source once and follow it; return after how long to do so again, seconds."""
        try:
            listing = reader.read()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from answering
            return self._failed(error, stopped, backs_off=reader.backs_off)
        return self._heard(listing, stopped)

    async def _aread(self, reader: AsyncReader, stopped: threading.Event) -> float:
        try:
            listing = await reader.read()
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed(error, stopped, backs_off=True)
        return self._heard(listing, stopped)

    def _heard(self, listing: Listing, stopped: threading.Event) -> float:
        now = time.monotonic()
        with self._lock:
            if not stopped.is_set():
                self._follow(listing, now)
                self._settle_later(stopped)
        pause_s = self._every_s if listing.again_in_s is None else listing.again_in_s
        pause_s *= self._random.uniform(1 - _JITTER, 1.0)
        return min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def _follow(self, listing: Listing, now: float) -> None:
        """Follow a listing, or doubt it. Holds the lock."""
        self._doubted = None
        if self._good.believes(listing, now):
            self._reconciler.follow(listing, now)
        else:
            self._doubted = listing

    def _failed(self, error: Exception, stopped: threading.Event, *, backs_off: bool) -> float:
        with self._lock:
            if not stopped.is_set():
                self._good.failed(error)
                self._doubted = None
            misses = self._good.misses
        if not backs_off:
            return self._every_s
        backoff_s = min(_LONGEST_BACKOFF_S, self._every_s * 2.0 ** min(misses - 1, 32))
        return max(self._every_s, backoff_s) * self._random.uniform(0.5, 1.0)

    # -- what time alone changes -----------------------------------------------------

    def _unsettled(self) -> bool:
        """Return whether somebody is leaving, or a listing doubted."""
        return bool(self._reconciler.leaving) or self._doubted is not None

    def _settle_later(self, stopped: threading.Event) -> None:
        """See to it that those who have finished are removed, in a thread. Holds the lock.

        The other thread may be in a read that takes minutes.
        """
        if self._settling is None and self._unsettled():
            self._settling = threading.Thread(
                target=self._settle, args=(stopped,), name="prefixroute-draining", daemon=True
            )
            self._settling.start()

    def _settle(self, stopped: threading.Event) -> None:
        pause_s = _SETTLE_EVERY_S
        while not stopped.wait(pause_s):
            pause_s = _SETTLE_EVERY_S
            with self._lock:
                if stopped.is_set():
                    return
                now = time.monotonic()
                try:
                    if self._doubted is not None and now >= self._good.doubts_until():
                        self._follow(self._doubted, now)
                    else:
                        self._reconciler.settle(now)
                except Exception:  # noqa: BLE001 - a thread that died would go unnoticed
                    log.exception("removing drained endpoints failed; it goes on")
                    pause_s = self._every_s
                if not self._unsettled():
                    self._settling = None
                    return

    # -- again and again ---------------------------------------------------------

    def _run(self, reader: Reader, stopped: threading.Event) -> None:
        pause_s = 0.0
        while not stopped.wait(pause_s):
            try:
                pause_s = self._read(reader, stopped)
            except Exception:  # noqa: BLE001 - as above
                log.exception("following %r failed; it goes on", self._source)
                pause_s = self._every_s
        reader.close()

    async def run(self) -> None:
        """Follow the source until cancelled."""
        if isinstance(self._source, AsyncSource):
            await self._arun(self._source.aopen())
        self.start()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.stop)

    async def _arun(self, reader: AsyncReader) -> NoReturn:
        stopped = self._begin()
        try:
            while True:
                try:
                    pause_s = await self._aread(reader, stopped)
                except Exception:  # noqa: BLE001 - as above
                    log.exception("following %r failed; it goes on", self._source)
                    pause_s = self._every_s
                await anyio.sleep(pause_s)
        finally:
            self._end()
            await reader.aclose()

    def _begin(self) -> threading.Event:
        self._stopped = threading.Event()
        return self._stopped

    def _end(self) -> None:
        with self._lock:  # who has it finishes its round; nobody begins another
            self._stopped.set()
            settling, self._settling = self._settling, None
        if settling is not None:
            settling.join()

    def start(self) -> None:
        """Begin to follow the source in a thread, unless one does already.

        Raises:
            ConfigurationError: The source is async; it needs ``async with``.
        """
        if self._thread is not None:
            return
        self._reader = reader = self._source.open()
        self._thread = threading.Thread(
            target=self._run,
            args=(reader, self._begin()),
            name="prefixroute-discovery",
            daemon=True,
        )
        self._thread.start()
        _started.add(self)

    def stop(self) -> None:
        """End the thread; a read that hangs is not waited for long, and has no effect any more."""
        thread, self._thread = self._thread, None
        _started.discard(self)
        if thread is None:
            return
        self._end()
        if self._reader is not None:
            self._reader.interrupt()
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            log.info("%r does not answer; its thread ends when it does", self._source)

    def _start_anew(self) -> None:
        """Go on in the child of a fork, which has none of the threads, and maybe a held lock."""
        self._lock = threading.Lock()
        self._thread = self._settling = None
        self.start()  # the reader is left alone: its connection is the parent's

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


def _names(keep: Iterable[Endpoint | str]) -> frozenset[str]:
    """Return the ids and URLs that were given, URLs in their one spelling."""
    given: object = keep
    if isinstance(given, str | bytes | Endpoint) or not isinstance(given, Iterable):
        raise refusal("Discovery", "keep", shown_url(given), "a list of ids, URLs or Endpoints")
    names: set[str] = set()
    for one in keep:
        if isinstance(one, Endpoint):
            names |= {one.id, one.url}
            continue
        names.add(one)
        if "://" in str(one):
            names.add(normalise_url(one))
    return frozenset(names)


_started: weakref.WeakSet[Discovery] = weakref.WeakSet()
"""Those with a thread, which the child of a fork does not have."""


def _after_fork() -> None:
    for discovery in list(_started):
        discovery._start_anew()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
