"""``Roster``: the lock, the ledger behind it, and all that changes who belongs to a router."""
# ruff: noqa: SLF001 - the lock is a part of the roster that it is of

from __future__ import annotations

import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import Event, MembershipChanged, Observer
from prefixroute.core.hashing import digest64
from prefixroute.core.health import HealthPolicy
from prefixroute.core.ledger import Ledger
from prefixroute.core.load import EndpointState, EngineLoad, Loan
from prefixroute.core.logs import log, log_event
from prefixroute.core.membership import Members, check_endpoints
from prefixroute.core.placement import Placement
from prefixroute.core.settings import check_settings
from prefixroute.core.stats import Stats
from prefixroute.errors import ConfigurationError, UnknownEndpointError

if TYPE_CHECKING:
    from prefixroute.core.trials import Trials

__all__ = ["Roster"]

PLACEMENT_VERSION: Final = 1
"""Rises when the same settings and the same traffic come to place differently."""


class Roster(ABC):
    """Holds the endpoints and their accounting; thread-safe; never does I/O.

    Args:
        endpoints: URLs and endpoints; their order is irrelevant.
        placement: How prompts are placed.
        health: When endpoints are ejected.
        peers: Routers in front of these endpoints, this one included, if known.
        seed: Of the ring; if given, also of ties and jitter, which else start at random.
        observers: Told of events, outside the lock.
        clock: Returns monotonic seconds.
    """

    _trials: Trials | None = None
    """What the placement is compared with; mostly nothing."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint | str],
        *,
        placement: Placement,
        health: HealthPolicy,
        peers: int | None,
        seed: int | None,
        observers: Iterable[Observer],
        clock: Callable[[], float],
    ) -> None:
        if isinstance(observers, Iterable):
            observers = tuple(observers)
        check_settings(health, peers, seed, observers, clock)
        self._clock = clock
        self._last = -math.inf  # what the clock said last, and how far it has ever stepped back
        self._behind_s = 0.0
        self._placement = placement
        self._seed = seed or 0
        self._observers: tuple[Observer, ...] = tuple(observers)
        self._raised: set[int] = set()  # observers that did
        # Leases that were collected unreleased. A finalizer may run inside the lock, so it only
        # appends here; whoever takes the lock next releases them.
        self.dropped: deque[Loan] = deque()
        self._lock = threading.Lock()
        self._holder = 0  # the thread that has it
        self._change = threading.RLock()  # one membership change at a time; taken before _lock
        self._seeded = seed is not None
        self._random = Random(seed)  # noqa: S311 - ties and jitter, nothing secret
        self._ledger = Ledger(placement, health, peers, self._random)
        checked = check_endpoints(endpoints)
        self._members = self._ring_of([(EndpointState(endpoint), endpoint) for endpoint in checked])
        self._ledger.swap(self._members, self._now())
        _rosters.add(self)

    def _locked(self) -> _Locked:
        """Take the lock, release what was dropped, and tell observers once it is given back."""
        return _Locked(self)

    @abstractmethod
    def _end(self, ledger: Ledger, loan: Loan, now: float, *, neutral: bool) -> None:
        """End a loan."""

    @property
    def in_lock(self) -> bool:
        """Whether this very thread holds the lock: a finalizer runs, in a collection within it."""
        return self._holder == threading.get_ident()

    def _now(self) -> float:
        """Return the time; while the clock steps back it stands still, then goes on from there."""
        read = self._clock()
        if read < self._last:
            self._behind_s += self._last - read
        self._last = read
        return read + self._behind_s

    @abstractmethod
    def _grant(self, ledger: Ledger, now: float) -> list[Callable[[], object]]:
        """Give leases to those who wait and can have one; return how to tell them."""

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            log_event(event)
        for observer in self._observers:
            for event in events:
                try:
                    observer.on_event(event)
                except Exception:  # noqa: BLE001 - an observer never hurts a request
                    if id(observer) not in self._raised:
                        self._raised.add(id(observer))
                        log.exception("observer %s raised; said once", type(observer).__name__)

    # -- membership ------------------------------------------------------------

    def _ring_of(
        self, members: Iterable[tuple[EndpointState, Endpoint]], before: Members | None = None
    ) -> Members:
        nodes = self._placement.virtual_nodes
        return Members(members, virtual_nodes=nodes, seed=self._seed, before=before)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints, in the order given."""
        return self._members.endpoints

    def set_endpoints(
        self,
        endpoints: Iterable[Endpoint | str]
        | Callable[[tuple[Endpoint, ...]], Iterable[Endpoint | str]],
    ) -> None:
        """Replace the list. Endpoints that stay keep their accounting and their prefixes.

        Args:
            endpoints: The new list; or a function that makes it of the list as it is, with no other
                change in between.

        Raises:
            ConfigurationError: The list cannot work; the endpoints stay as they were.
        """
        with self._change:
            checked = check_endpoints(
                endpoints(self.endpoints) if callable(endpoints) else endpoints
            )
            old = {state.endpoint.id: state for state in self._members.states}
            pairs = []
            for endpoint in checked:
                state = old.get(endpoint.id)
                if state is None or state.endpoint.url != endpoint.url:
                    state = EndpointState(endpoint)  # another server: nothing known of it holds
                pairs.append((state, endpoint))
            members = self._ring_of(pairs, self._members)  # outside the lock: it takes milliseconds
            for model in {m for state, e in pairs if not state.member for m in e.models or ()}:
                members.groups(model)  # and so do these rings, which are looked at in _joining
            shadow = None if self._trials is None else self._trials.shadow
            twins = None if shadow is None else shadow.members_of(pairs)
            with self._locked() as (ledger, now):
                changed = tuple(
                    e.id for s, e in pairs if s.member and s.endpoint is not e and s.endpoint != e
                )
                joined, left = ledger.swap(members, now)
                self._members = members
                if shadow is not None and twins is not None:
                    shadow.swap(members.states, twins, now)
                held = self._joining(joined, now)
                if joined or left or changed:
                    ledger.events.append(
                        MembershipChanged(
                            joined=tuple(state.endpoint.id for state in joined),
                            left=tuple(state.endpoint.id for state in left),
                            changed=changed,
                        )
                    )
            if held:
                self._prime([state.endpoint for state in joined])

    @abstractmethod
    def _joining(self, joined: Sequence[EndpointState], now: float) -> bool:
        """Take who joins, under the lock; return whether they are to be primed."""

    @abstractmethod
    def _prime(self, endpoints: Sequence[Endpoint]) -> None:
        """Have endpoints primed that have joined."""

    def add(self, endpoint: Endpoint | str) -> Endpoint:
        """Add an endpoint and return it.

        Raises:
            ConfigurationError: Its id or URL is there already, or it cannot work.
        """
        made = endpoint if isinstance(endpoint, Endpoint) else Endpoint(endpoint)
        self.set_endpoints(lambda present: [*present, made])
        return made

    def remove(self, endpoint: Endpoint | str) -> None:
        """Take an endpoint out at once; its requests in flight go on to their end.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
            ConfigurationError: It is the last one.
        """
        with self._change:
            gone = self._find(endpoint)
            self.set_endpoints([e for e in self.endpoints if e.id != gone.endpoint.id])

    def _find(self, endpoint: Endpoint | str) -> EndpointState:
        return self._members.find(endpoint.id if isinstance(endpoint, Endpoint) else endpoint)

    def _ids(self, names: Iterable[Endpoint | str]) -> frozenset[str]:
        """Return the ids of those endpoints that are known under these names."""
        found = set()
        for name in (names,) if isinstance(names, str | Endpoint) else names:
            try:
                found.add(self._find(name).endpoint.id)
            except UnknownEndpointError:
                continue
        return frozenset(found)

    def start_drain(self, endpoint: Endpoint | str) -> None:
        """Send an endpoint no new requests; ``readmit`` takes that back.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
        """
        state = self._find(endpoint)
        with self._locked():
            state.health.draining = True

    def in_flight(self, endpoint: Endpoint | str) -> int:
        """Return how many requests this router holds open at an endpoint.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
        """
        state = self._find(endpoint)
        with self._locked():
            return state.in_flight

    def eject(self, endpoint: Endpoint | str) -> None:
        """Take an endpoint out until it is readmitted; its keys are kept for it.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
        """
        state = self._find(endpoint)
        with self._locked() as (ledger, now):
            ledger.judge.eject(state, now)

    def readmit(self, endpoint: Endpoint | str) -> None:
        """Take an endpoint in again that was ejected, cooling or draining.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
        """
        state = self._find(endpoint)
        with self._locked() as (ledger, now):
            ledger.judge.readmit(state, now)

    def probed(self, endpoint: Endpoint, status: int | None) -> None:
        """Take the answer to a probe of the router's own; it counts as no request.

        Args:
            endpoint: Who was asked.
            status: The answer's; ``None``: there was none.
        """
        try:
            state = self._find(endpoint)
        except UnknownEndpointError:
            return  # removed meanwhile
        with self._locked() as (ledger, now):
            ledger.judge.probed(state, status, now)

    # -- what is known ---------------------------------------------------------

    def report_load(self, loads: Mapping[str, EngineLoad]) -> None:
        """Take what engines report of themselves, by endpoint id or URL.

        Reports of endpoints that are not (or no longer) here are ignored.

        Raises:
            ConfigurationError: It is no mapping of ids or URLs to :class:`EngineLoad`.
        """
        if not isinstance(loads, Mapping):
            raise ConfigurationError(
                f"report_load() was given a {type(loads).__name__}; it needs a mapping: "
                "{id: EngineLoad(waiting=2)}"
            )
        found = []
        for name, load in loads.items():
            if not isinstance(load, EngineLoad):
                raise ConfigurationError(
                    f"report_load({{{name!r}: {load!r}}}) needs an EngineLoad for each endpoint"
                )
            try:
                found.append((self._find(name), load))
            except UnknownEndpointError:
                continue
        with self._locked() as (ledger, now):
            for state, load in found:
                ledger.report(state, load, now)

    @abstractmethod
    def stats(self) -> Stats:
        """Return what was counted so far."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of all that decides a placement: equal ones agree."""
        ring = sorted(
            (e.id, e.weight, e.tier, sorted(e.models) if e.models is not None else None)
            for e in self.endpoints
        )
        text = repr((PLACEMENT_VERSION, self._seed, self._placement, ring))
        return f"{digest64(text.encode('utf-8', 'surrogatepass')):016x}"

    def _after_fork(self) -> None:
        """Start afresh in a child: a lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()
        self._holder = 0
        self._change = threading.RLock()
        self.dropped.clear()
        if not self._seeded:
            self._random.seed()  # else all children would break ties alike
        self._ledger.forked()
        if self._trials is not None:
            self._trials.forked()


class _Locked:
    """The lock of a roster for the length of a ``with``; it gives its ledger and the time.

    A class, for every request takes it several times, and a generator costs twice as much.
    """

    __slots__ = ("_granted", "_lock", "_now", "_roster")

    def __init__(self, roster: Roster) -> None:
        self._roster, self._lock = roster, roster._lock
        self._granted: Sequence[Callable[[], object]] = ()

    def __enter__(self) -> tuple[Ledger, float]:
        roster = self._roster
        self._lock.acquire()
        try:
            roster._holder = threading.get_ident()
            ledger, self._now = roster._ledger, roster._now()
            while roster.dropped:
                roster._end(ledger, roster.dropped.popleft(), self._now, neutral=True)
            if ledger.waiting:  # they go first, before this call and after what it has freed
                self._granted = roster._grant(ledger, self._now)
        except BaseException:
            self._give_back()
            raise
        return ledger, self._now

    def __exit__(self, *_: object) -> None:
        roster, ledger = self._roster, self._roster._ledger
        events: Sequence[Event] = ()
        try:
            granted = self._granted
            if ledger.waiting:
                granted = [*granted, *roster._grant(ledger, self._now)]
            if ledger.events:
                events = ledger.take_events()
                if roster._trials is not None:
                    roster._trials.heard(events, roster._members.states)
            for notify in granted:
                notify()
        finally:
            self._give_back()
            if events:
                roster._tell(events)

    def _give_back(self) -> None:
        self._roster._holder = 0
        self._lock.release()


_rosters: weakref.WeakSet[Roster] = weakref.WeakSet()
"""Every router of the process, for the child of a fork."""


def _after_fork() -> None:
    for roster in list(_rosters):
        roster._after_fork()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
