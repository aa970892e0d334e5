"""``RedisFleet``: several routers, in processes or on hosts, act as one through Redis or Valkey."""

from __future__ import annotations

import threading
import time
from random import Random
from typing import Final

import anyio
import anyio.to_thread

from prefixroute.core.checks import check_number, refusal
from prefixroute.core.logs import log
from prefixroute.signals.fleet import FleetStats, Shared
from prefixroute.signals.link import LOSSES, Connect, Link, connector, shown_server
from prefixroute.signals.members import Accept
from prefixroute.signals.service import Service, started
from prefixroute.signals.talk import FRESH_INTERVALS, JITTER, Talk

__all__ = ["FleetStats", "RedisFleet"]

_LONGEST_BACKOFF_S: Final = 5.0
"""After which a server that was lost is tried again at the latest."""
_LISTEN_S: Final = 0.2
"""How long a thread that has to end may go on listening."""


class RedisFleet(Service):
    """Lets a router know what all others have at the endpoints, through Redis or Valkey.

    Every ``every_s`` it says in one command what it has outstanding at each endpoint, and reads
    what all of them have together. The share of one that is killed vanishes after ``ttl_s``. What
    is heard counts for three intervals; without the server the router decides by what it knows
    itself, says so once in the log, and goes on when the server is back. Nothing here delays a
    request: all of it happens in a thread of its own, which begins anew in the child of a fork.

    What is hot is judged by what a sample of the others has seen too, from the start on. An
    endpoint that a tenth of the routers (two at least) have ejected is ejected by all. No prompt,
    no key and no header goes to the server: ids of endpoints, counts, digests, and the settings
    that make the fingerprint.

    Args:
        router: Is one of them.
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, as redis-py takes it, with user and
            password if need be; or a function that returns a client of redis-py.
        every_s: Interval, seconds.
        ttl_s: For how long a router that says nothing more counts, seconds; at least three
            intervals. Default: 10 of them, at least 5.
        timeout_s: After which the server is taken for lost, seconds.
        prefix: Begins the name of every key and of the channel, in braces.
        cluster: The server is one of a cluster.
        share_membership: Drains, removals and additions made on one router are followed by all
            that have this set.
        accept: Is asked about an endpoint that another router added, and returns it (with a key,
            say) or ``None``. Without it a URL that this process was not given is never taken:
            whoever can write to the server could else have prompts and keys sent anywhere.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.

    Example::

        with RedisFleet(router, "redis://cache-0:6379/0"):
            ...
    """

    def __init__(
        self,
        router: Shared,
        url: str | Connect,
        *,
        every_s: float = 0.5,
        ttl_s: float | None = None,
        timeout_s: float = 1.0,
        prefix: str = "prefixroute",
        cluster: bool = False,
        share_membership: bool = False,
        accept: Accept | None = None,
    ) -> None:
        if not callable(getattr(router, "report_others", None)):
            raise refusal("RedisFleet", "router", router, "a Router")
        given: object = prefix
        if not isinstance(given, str) or not given or set(given) & set("{} \r\n"):
            raise refusal("RedisFleet", "prefix", prefix, "a name without braces or spaces")
        self._every_s = check_number("RedisFleet", "every_s", every_s, above=True)
        if ttl_s is None:
            ttl_s = max(5.0, 10.0 * self._every_s)
        least_s = FRESH_INTERVALS * self._every_s
        self._ttl_s = check_number("RedisFleet", "ttl_s", ttl_s, at_least=least_s)
        timeout_s = check_number("RedisFleet", "timeout_s", timeout_s, above=True)
        if accept is not None and not share_membership:
            raise refusal("RedisFleet", "accept", accept, "None without share_membership=True")
        if isinstance(url, str):
            connect = connector(url, cluster=cluster, timeout_s=timeout_s)
            self._shown = shown_server(url)
        elif callable(url):
            connect, self._shown = url, "Redis"
        else:
            raise refusal("RedisFleet", "url", type(url).__name__, "a URL, or a function")
        self._router, self._base = router, f"{{{prefix}}}:"
        self._link = Link(connect, self._base + "events")
        self._shares_membership, self._accept = share_membership, accept
        self._talk = self._new_talk()
        self._random = Random()  # noqa: S311 - spreads the turns
        self._turn = threading.Lock()  # one at a time
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._turns = self._losses = 0
        self._began = time.monotonic()
        self._connected: bool | None = None  # None: not tried yet

    def _new_talk(self) -> Talk:
        return Talk(
            self._router,
            self._link,
            self._base,
            every_s=self._every_s,
            ttl_s=self._ttl_s,
            share_membership=self._shares_membership,
            accept=self._accept,
        )

    def __repr__(self) -> str:
        stats = self.stats()
        state = "" if stats.connected else ", not connected"
        return f"<RedisFleet {self._shown}, {stats.peers} peers{state}>"

    def stats(self) -> FleetStats:
        """Return how the talk with the others goes; asks nobody."""
        now, link, talk = time.monotonic(), self._link, self._talk
        seconds = max(1e-9, now - self._began)
        return FleetStats(
            connected=bool(self._connected),
            peers=max(0, talk.view.routers - 1),
            age_s=None if talk.heard_at is None else now - talk.heard_at,
            turns=self._turns,
            losses=self._losses,
            commands_per_s=link.commands / seconds,
            bytes_per_s=link.bytes / seconds,
            fingerprints=dict(talk.view.fingerprints),
            hot_prefixes=talk.hot_prefixes,
        )

    # -- one turn ----------------------------------------------------------------

    def turn(self) -> bool:
        """Speak and listen once, now; return whether the server could be reached."""
        with self._turn:
            try:
                self._turns += 1
                self._talk.turn()
            except LOSSES as error:
                self._lost(error)
                return False
            if not self._connected:
                if self._connected is False:
                    log.info("%s is back: the routers hear of each other again", self._shown)
                self._connected = True
            return True

    def _lost(self, error: BaseException) -> None:
        self._link.close()
        self._talk.forgotten()
        if self._connected is not False:
            self._losses += 1
            log.warning(
                "%s cannot be used (%s: %s): this router decides by what it knows itself until "
                "it can",
                self._shown,
                type(error).__name__,
                error,
            )
        self._connected = False

    # -- again and again ---------------------------------------------------------

    def _run(self, stopped: threading.Event) -> None:
        misses, said = 0, False
        while not stopped.is_set():
            try:
                misses = 0 if self.turn() else misses + 1
                self._wait(stopped, misses)
                said = False
            except Exception:  # noqa: BLE001 - a thread that died would go unnoticed
                if not said:
                    log.exception("talking to other routers failed; it goes on")
                said = True
                stopped.wait(self._every_s)

    def _wait(self, stopped: threading.Event, misses: int) -> None:
        """Let the interval pass, and hear what comes meanwhile; longer after misses."""
        pause_s = self._every_s * self._random.uniform(1 - JITTER, 1 + JITTER)
        if misses:
            backoff_s = self._every_s * 2.0 ** min(misses, 16) * self._random.uniform(0.5, 1.0)
            stopped.wait(min(max(_LONGEST_BACKOFF_S, self._every_s), max(pause_s, backoff_s)))
            return
        until = time.monotonic() + pause_s
        while not stopped.is_set() and (left_s := until - time.monotonic()) > 0:
            with self._turn:
                try:
                    message = self._link.listen(min(left_s, _LISTEN_S))
                    if message is not None:
                        self._talk.hear(message)
                except LOSSES as error:
                    self._lost(error)
                    return

    def start(self) -> None:
        """Begin in a thread, unless one does already."""
        if self._thread is not None:
            return
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stopped,), name="prefixroute-fleet", daemon=True
        )
        self._thread.start()
        started.add(self)

    async def run(self) -> None:
        """Go on in a thread until cancelled."""
        self.start()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.stop)

    def stop(self) -> None:
        """Say goodbye and end the thread; with a server that is lost, after ``timeout_s``."""
        thread, self._thread = self._thread, None
        started.discard(self)
        if thread is None:
            return
        self._stopped.set()
        thread.join()
        with self._turn:
            if self._connected:
                try:
                    self._talk.leave()
                except LOSSES:
                    log.debug("%s did not hear the goodbye", self._shown)
            self._link.close()
            self._connected = None

    def _start_anew(self) -> None:
        self._thread, self._turn = None, threading.Lock()
        self._link.forked()
        self._connected = None
        self._talk = self._new_talk()
        self.start()
