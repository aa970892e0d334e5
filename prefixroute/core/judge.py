"""``Judge``: what becomes of endpoints by how they answer, and the events that tell of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from prefixroute.core.bounded import BoundedDict
from prefixroute.core.events import EndpointCooling, EndpointEjected, EndpointReadmitted, Event
from prefixroute.core.health import HealthPolicy
from prefixroute.core.load import EndpointState, Loan
from prefixroute.core.placement import Policy

__all__ = ["Judge", "says_something"]

_POISON: Final = 1024
"""Requests answered with 500 whose digest is remembered, to count them once over all endpoints."""

_SUSPECTED_S: Final = 60.0
"""For so long after such an answer it is worth the look whether the same request is served."""

_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_NOT_IMPLEMENTED: Final = 501
"""What an engine answers to a kind of request that it was not started for, such as embeddings."""


def says_something(status: int | None) -> bool:
    """Return whether a failure says something about the endpoint, by what it answered.

    Args:
        status: That; ``None``: nothing. One below 400 is that of a reply that failed later.
    """
    if status is None or status in (_TOO_MANY, _UNAVAILABLE):
        return True
    return status != _NOT_IMPLEMENTED and not _CLIENT_ERROR <= status < _SERVER_ERROR


class Judge:
    """Blames, cools, ejects, readmits and warms up endpoints.

    Args:
        policy: When.
        random: Source of jitter.
        events: Where events are noted.
        placement: Forgets what an endpoint held that is ejected: it may come back empty.

    Attributes:
        members: All endpoints of the router.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        random: Random,
        *,
        events: list[Event],
        placement: Policy,
    ) -> None:
        self.members: Sequence[EndpointState] = ()
        self._policy, self._random = policy, random
        self._events, self._placement = events, placement
        self._warming: set[EndpointState] = set()
        self._poison: BoundedDict[int, EndpointState] = BoundedDict(_POISON)
        self._suspected_at = -math.inf

    # -- what requests tell ------------------------------------------------------

    def succeeded(self, loan: Loan, now: float) -> None:
        """Note a good reply."""
        if loan.state.health.succeeded(probe=loan.probe):
            self._readmitted(loan.state, now)

    def failed(
        self,
        loan: Loan,
        status: int | None,
        retry_after_s: float | None,
        digest: int | None,
        now: float,
        *,
        silent: bool,
    ) -> None:
        """Note a failure that says something about its endpoint.

        Args:
            loan: The request's.
            status: What the endpoint answered; ``None``: nothing.
            retry_after_s: What its Retry-After said, seconds.
            digest: Of the request, if its failures count once over all endpoints.
            now: Seconds.
            silent: Nobody answered, as if nobody were there.
        """
        state, policy = loan.state, self._policy
        if status in (_TOO_MANY, _UNAVAILABLE):
            wait = policy.cool_for_s if retry_after_s is None else retry_after_s
            wait = min(max(0.0, wait), policy.max_cool_for_s)
            state.health.cool(now + wait)
            state.health.neutral(probe=loan.probe)
            self._events.append(EndpointCooling(endpoint_id=state.endpoint.id, for_s=wait))
            return
        if digest is not None:
            poison = self._poison.get(digest) is not None
            self._poison.put(digest, state)
            self._suspected_at = now
            if poison:  # the request fails everywhere: that says nothing about this endpoint
                return
        self._blame(state, now, probe=loan.probe, silent=silent)

    def suspects(self, now: float) -> bool:
        """Return whether some request may be one that fails everywhere."""
        return now - self._suspected_at <= _SUSPECTED_S

    def served(self, digest: int) -> None:
        """Note that a request was served: it is not one that fails everywhere."""
        self._poison.pop(digest)

    def _blame(
        self, state: EndpointState, now: float, *, probe: int, silent: bool, own: bool = False
    ) -> None:
        state.failures += 1
        may = self._may_eject()
        if state.health.failed(
            now, self._policy, self._random, probe=probe, silent=silent, own=own, may_eject=may
        ):
            self._ejected(state, now)

    # -- what the router's own probes tell -----------------------------------------

    def probed(self, state: EndpointState, status: int | None, now: float) -> None:
        """Take the answer to a probe that was no request of a caller's.

        Args:
            state: Who was asked.
            status: The answer's; ``None``: there was none.
            now: Seconds.
        """
        health, every_s = state.health, self._policy.probe_every_s or 0.0
        if not state.member:
            return
        if status is not None and status < _SERVER_ERROR:
            if health.heard():
                self._readmitted(state, now)
        elif status == _UNAVAILABLE:  # it loads its model
            health.cool(now + 2.0 * every_s)
        else:
            self._blame(state, now, probe=0, silent=True, own=True)

    # -- out and in ------------------------------------------------------------------

    def eject(self, state: EndpointState, now: float) -> None:
        """Take an endpoint out until it is readmitted."""
        state.health.eject(math.inf)
        self._ejected(state, now)

    def suspect(self, state: EndpointState, now: float) -> bool:
        """Eject an endpoint on others' word, for as long as own failures would at first.

        Returns:
            Whether that was done: it may be ejected already, or too many may be.
        """
        policy = self._policy
        known = not state.member or state.health.ejected_until is not None
        if known or not self._may_eject():
            return False
        state.health.eject(now + policy.ejection_s(1, self._random))
        state.health.hearsay = state.health.silent = True
        self._ejected(state, now)
        return True

    def _may_eject(self) -> bool:
        ejected = sum(other.health.ejected_until is not None for other in self.members)
        return self._policy.may_eject(ejected, len(self.members))

    def _ejected(self, state: EndpointState, now: float) -> None:
        if not state.member:
            return  # a late failure of one that was removed: nothing is kept of it
        self._placement.left(state)
        self._placement.joined(state)
        until = state.health.ejected_until
        until = math.inf if until is None else until
        self._events.append(
            EndpointEjected(endpoint_id=state.endpoint.id, until=until, for_s=until - now)
        )

    def readmit(self, state: EndpointState, now: float) -> None:
        """Take an endpoint in again, whatever kept it out."""
        ejected = state.health.ejected_until is not None
        state.health.readmit()
        if ejected:
            self.warm_up(state, now)
        self._events.append(EndpointReadmitted(endpoint_id=state.endpoint.id))

    def _readmitted(self, state: EndpointState, now: float) -> None:
        self.warm_up(state, now)
        self._events.append(EndpointReadmitted(endpoint_id=state.endpoint.id))

    # -- up to the full share ----------------------------------------------------------

    def warm_up(self, state: EndpointState, now: float) -> None:
        """Have an endpoint begin with a small share of the requests."""
        if state.member and self._policy.warm_up_s:
            state.health.warm_up(now, self._policy)
            self._warming.add(state)

    def left(self, state: EndpointState) -> None:
        """Forget an endpoint that is no longer a member."""
        self._warming.discard(state)

    def warming(self, now: float) -> set[EndpointState]:
        """Return those that are coming to their full share."""
        for state in [state for state in self._warming if state.health.warmth(now) == 1.0]:
            self._warming.discard(state)
        return self._warming
