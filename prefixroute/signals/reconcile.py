"""Makes a router's endpoints those that a source names: who joins, rests, drains and is removed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.health import HealthState
from prefixroute.core.logs import log
from prefixroute.core.stats import Stats
from prefixroute.errors import UnknownEndpointError
from prefixroute.signals.sources.listing import Listing

__all__ = ["Led", "Reconciler"]


class Led(Protocol):
    """What is asked of a router."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Who belongs to it."""
        ...

    def set_endpoints(
        self,
        endpoints: Iterable[Endpoint | str]
        | Callable[[tuple[Endpoint, ...]], Iterable[Endpoint | str]],
    ) -> None:
        """Replace the list."""
        ...

    def start_drain(self, endpoint: Endpoint | str) -> None:
        """Send it no new requests."""
        ...

    def readmit(self, endpoint: Endpoint | str) -> None:
        """Send it requests again."""
        ...

    def in_flight(self, endpoint: Endpoint | str) -> int:
        """Return how many requests are open there."""
        ...

    def stats(self) -> Stats:
        """Return the counts, with the state of each endpoint."""
        ...


class Reconciler:
    """Follows listings; single-threaded, is told the time, never waits.

    An endpoint that is no longer named drains: it gets no new requests, and is removed when it has
    none in flight or its time is over. What somebody else has told the router to drain stays so.

    Args:
        router: Whose endpoints these are.
        drain_timeout_s: How long one that leaves may finish its requests, seconds.
        keep: Ids and URLs of endpoints that are none of the source's business.
    """

    def __init__(self, router: Led, *, drain_timeout_s: float, keep: frozenset[str]) -> None:
        self._router, self._drain_timeout_s, self._keep = router, drain_timeout_s, keep
        self._wanted: dict[str, Endpoint] = {}  # by id: get requests
        self._resting: dict[str, Endpoint] = {}  # keep their place
        self._rested: set[str] = set()  # members that rest because of this
        self._leaving: dict[str, float] = {}  # until when they may finish

    @property
    def leaving(self) -> frozenset[str]:
        """The ids of those that are being drained, to be removed."""
        return frozenset(self._leaving)

    def follow(self, listing: Listing, now: float) -> None:
        """Make the router's endpoints those of a listing.

        Args:
            listing: To be believed.
            now: Monotonic seconds.
        """
        self._wanted, self._resting = self._own(listing)
        members = {e.id: e for e in self._router.endpoints if not self._kept(e)}
        self._leaving = {name: at for name, at in self._leaving.items() if name in members}
        self._rested &= members.keys()
        for name, member in members.items():
            if self._is_same(member, self._wanted):
                self._return(name)
            elif self._is_same(member, self._resting):
                self._rest(name)
            elif name in self._wanted:  # another server under its name takes its place
                self._leaving.pop(name, None)
                self._rested.discard(name)
            elif name not in self._leaving:
                self._leave(name, now)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Take in who is named, and remove who has finished."""
        if tuple(self._merged(self._router.endpoints, now)) != self._router.endpoints:
            self._router.set_endpoints(lambda present: self._merged(present, now))
        left = {endpoint.id for endpoint in self._router.endpoints}
        self._leaving = {name: at for name, at in self._leaving.items() if name in left}

    # -- who is who ----------------------------------------------------------------

    def _kept(self, endpoint: Endpoint) -> bool:
        return endpoint.id in self._keep or endpoint.url in self._keep

    def _own(self, listing: Listing) -> tuple[dict[str, Endpoint], dict[str, Endpoint]]:
        """Return by id who gets requests and who rests; of one id or URL only the first."""
        taken = {n for e in self._router.endpoints if self._kept(e) for n in (e.id, e.url)}
        wanted: dict[str, Endpoint] = {}
        resting: dict[str, Endpoint] = {}
        for found, into in ((listing.endpoints, wanted), (listing.resting, resting)):
            for endpoint in sorted(found, key=lambda e: (e.id, e.url)):
                if endpoint.id not in taken and endpoint.url not in taken:
                    into[endpoint.id] = endpoint
                    taken |= {endpoint.id, endpoint.url}
        return wanted, resting

    @staticmethod
    def _is_same(member: Endpoint, named: dict[str, Endpoint]) -> bool:
        """Return whether a member is named, at the URL that it has: else it is another server."""
        return member.id in named and named[member.id].url == member.url

    def _merged(self, present: Iterable[Endpoint], now: float) -> list[Endpoint]:
        """Return the router's next list: those who stay in their order, then those who join."""
        present = list(present)
        names = {n for e in self._wanted.values() for n in (e.id, e.url)}
        members = {endpoint.id for endpoint in present}
        merged = [e for e in (self._next(e, names, now) for e in present) if e is not None]
        merged += [e for name, e in self._wanted.items() if name not in members]
        if any(endpoint.weight > 0 for endpoint in merged):
            return merged
        return present  # a router has at least one; they are drained, and used for want of others

    def _next(self, member: Endpoint, names: set[str], now: float) -> Endpoint | None:
        """Return what becomes of a member; ``None``: it is removed."""
        if self._kept(member):
            return member
        if member.id in self._wanted:
            return self._wanted[member.id]
        if self._is_same(member, self._resting):
            return self._resting[member.id]
        if member.url in names or member.id in names:
            return None  # somebody else is there now
        until = self._leaving.get(member.id, math.inf)  # inf: added since the last listing
        over = now >= until or (until < math.inf and not self._in_flight(member.id))
        return None if over else member

    # -- what becomes of members -----------------------------------------------------

    def _return(self, name: str) -> None:
        """Send one requests again that this had drained."""
        if self._leaving.pop(name, None) is not None or name in self._rested:
            self._rested.discard(name)
            with suppress(UnknownEndpointError):
                self._router.readmit(name)

    def _rest(self, name: str) -> None:
        if self._leaving.pop(name, None) is not None:
            self._rested.add(name)  # drained already
        elif name not in self._rested and not self._is_draining(name):
            self._rested.add(name)
            log.info("%s rests: it is not ready, and gets no new requests", name)
            with suppress(UnknownEndpointError):
                self._router.start_drain(name)

    def _leave(self, name: str, now: float) -> None:
        self._rested.discard(name)
        self._leaving[name] = now + self._drain_timeout_s
        with suppress(UnknownEndpointError):
            self._router.start_drain(name)
        if count := self._in_flight(name):
            log.info("%s leaves: it may finish its %d requests", name, count)

    def _is_draining(self, name: str) -> bool:
        states = {one.id: one.state for one in self._router.stats().endpoints}
        return states.get(name) is HealthState.DRAINING

    def _in_flight(self, name: str) -> int:
        with suppress(UnknownEndpointError):
            return self._router.in_flight(name)
        return 0
