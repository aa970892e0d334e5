"""``Discovery``: keeps a router's endpoints those that a source names."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from random import Random
from typing import Final, NoReturn

import anyio
import anyio.to_thread

from prefixroute.core.checks import check_int, check_number, refusal
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.logs import log
from prefixroute.core.urls import normalise_url, shown_url
from prefixroute.signals.applying import Applier
from prefixroute.signals.last_good import LastGood
from prefixroute.signals.reconcile import Led, Reconciler
from prefixroute.signals.service import Service, started
from prefixroute.signals.sources.functions import AsyncReader, AsyncSource, Given, source_of
from prefixroute.signals.sources.listing import Listing, Reader

__all__ = ["Discovery"]

_JITTER: Final = 0.2
"""Share by which an interval may be shorter, so that many processes do not ask together."""
_LONGEST_BACKOFF_S: Final = 30.0
_SHORTEST_PAUSE_S: Final = 0.01
"""Between two reads: a source that says "at once" again and again is not read in a frenzy."""
_LONGEST_PAUSE_S: Final = 3600.0
_PATIENCE_S: Final = 2.0
"""How long a read that hangs is waited for at the end; it can do nothing after that."""


class Discovery(Service):
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
        reconciler = Reconciler(router, drain_timeout_s=timeout_s, keep=kept)
        self._applier = Applier(self._good, reconciler, again_s=self._every_s)
        self._random = Random()  # noqa: S311 - spreads the asking
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._reader: Reader | None = None

    def __repr__(self) -> str:
        trouble = f", the last good list is kept: {self.trouble}" if self.trouble else ""
        return f"<Discovery of {self._source!r}{trouble}>"

    @property
    def trouble(self) -> str | None:
        """What keeps the source from being followed; ``None``: all is well."""
        return self._good.trouble

    # -- one round ---------------------------------------------------------------

    def _read(self, reader: Reader) -> float:
        """Read the source once; return after how long to do so again, seconds."""
        try:
            listing = reader.read()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from answering
            return self._failed(error, backs_off=reader.backs_off)
        return self._heard(listing)

    async def _aread(self, reader: AsyncReader) -> float:
        try:
            listing = await reader.read()
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed(error, backs_off=True)
        return self._heard(listing)

    def _heard(self, listing: Listing) -> float:
        self._applier.heard(listing)
        pause_s = self._every_s if listing.again_in_s is None else listing.again_in_s
        pause_s *= self._random.uniform(1 - _JITTER, 1.0)
        return min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def _failed(self, error: Exception, *, backs_off: bool) -> float:
        misses = self._applier.failed(error)
        if not backs_off:
            return self._every_s
        backoff_s = min(_LONGEST_BACKOFF_S, self._every_s * 2.0 ** min(misses - 1, 32))
        return max(self._every_s, backoff_s) * self._random.uniform(0.5, 1.0)

    # -- again and again ---------------------------------------------------------

    def _run(self, reader: Reader, stopped: threading.Event) -> None:
        pause_s = 0.0
        while not stopped.wait(pause_s):
            pause_s = self._read(reader)
        reader.close()

    async def run(self) -> None:
        """Follow the source until cancelled."""
        try:
            if isinstance(self._source, AsyncSource):
                await self._arun(self._source.aopen())
            self.start()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.stop)

    async def _arun(self, reader: AsyncReader) -> NoReturn:
        self._applier.start()
        try:
            while True:
                pause_s = await self._aread(reader)
                await anyio.sleep(pause_s)
        finally:
            await reader.aclose()

    def start(self) -> None:
        """Begin to follow the source in a thread, unless one does already.

        Raises:
            ConfigurationError: The source is async; it needs ``async with``.
        """
        if self._thread is not None:
            return
        self._reader, self._stopped = self._source.open(), threading.Event()
        self._applier.start()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._reader, self._stopped),
            name="prefixroute-discovery",
            daemon=True,
        )
        self._thread.start()
        started.add(self)

    def stop(self) -> None:
        """End the thread; a read that hangs is not waited for long, and has no effect any more."""
        self._stopped.set()
        self._applier.stop()
        thread, self._thread = self._thread, None
        started.discard(self)
        if thread is None:
            return
        if self._reader is not None:
            self._reader.interrupt()
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            log.info("%r does not answer; its thread ends when it does", self._source)

    def _start_anew(self) -> None:
        """Go on in the child of a fork, which has none of the threads, and maybe a held lock."""
        self._applier.renew()
        self._thread = None
        self.start()  # the reader is left alone: its connection is the parent's


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
