"""``Warming``: a roster that lets endpoints which join come in with a warm cache."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from prefixroute.core.bodies import Bodies, Remembered, hottest
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import EndpointPrimed
from prefixroute.core.health import HealthPolicy
from prefixroute.core.ledger import Ledger
from prefixroute.core.load import EndpointState
from prefixroute.core.placement import Ask, Choice
from prefixroute.core.prompt import Prompt
from prefixroute.core.roster import Roster
from prefixroute.errors import UnknownEndpointError

__all__ = ["HOLD_S", "Warming"]

HOLD_S: Final = 10.0
"""An endpoint that is primed waits for its share of the requests no longer than this, seconds."""

_MOST: Final = 32
"""Prefixes that one router primes at one endpoint."""

_LOOKED_AT: Final = 1024
"""Of the hottest, who is to own them."""


class Warming(Roster):
    """Holds an endpoint that joins back while it is primed, and knows with what.

    Who sends the requests is another matter: see :mod:`prefixroute.transports.priming`.
    """

    health: HealthPolicy
    _bodies: Bodies | None = None

    @property
    def remembers(self) -> bool:
        """Whether bodies are remembered at all."""
        return self._bodies is not None

    def remember(self, prompt: Prompt, body: bytes, path: str) -> None:
        """Remember a request that was answered with 200, if the user allows it."""
        if self._bodies is None or self.in_lock:
            return
        with self._locked() as (_, now):
            self._bodies.note(prompt, body, path, now)

    def forget_bodies(self) -> None:
        """Forget every body that is remembered."""
        if self._bodies is not None:
            with self._locked():
                self._bodies.clear()

    def _can_prime(self) -> bool:
        """Return whether somebody can send requests."""
        return False

    def _prime(self, endpoints: Sequence[Endpoint]) -> None:
        """Do nothing: whoever can send requests does."""

    def _joining(self, joined: Sequence[EndpointState], now: float) -> bool:
        """Hold back who joins and can be waited for; return whether there is anything to prime."""
        if self._bodies is None or not self._can_prime() or not self._bodies.hot():
            return False
        well = {state for state in self._members.states if state.health.takes(now)}
        old = well.difference(joined)
        for state in joined:
            if not self._others_serve(state, old):
                continue
            state.health.cool(now + HOLD_S)
            if self.health.warm_up_s:
                state.health.warm_up(now + HOLD_S, self.health)
        return bool(joined)

    def _others_serve(self, state: EndpointState, others: AbstractSet[EndpointState]) -> bool:
        """Return whether all that an endpoint is asked for can wait for it elsewhere."""
        for model in state.endpoint.models or (None,):
            for group in self._members.groups(model):
                if state in group.states and others.isdisjoint(group.states):
                    return False
        return True

    def to_prime(self, endpoint: Endpoint) -> list[Remembered]:
        """Return what an endpoint should be primed with: the hottest prefixes that it will own."""
        found: list[Remembered] = []
        state = self._state(endpoint)
        if state is None or self._bodies is None:
            return found
        with self._locked() as (_, now):
            known = self._bodies.hot()
        for one in hottest(known, now)[:_LOOKED_AT]:
            with self._locked() as (ledger, now):  # anew for each: requests go first
                owned = self._owned(ledger, one, state, now)
            if owned is not None:
                found.append(one)
                if len(found) == _MOST:
                    break
        return found

    def primed(self, endpoint: Endpoint, one: Remembered) -> None:
        """Note that an endpoint has computed a prefix; it counts as no request."""
        state = self._state(endpoint)
        if state is None:
            return
        with self._locked() as (ledger, now):
            state.primed += 1
            owned = self._owned(ledger, one, state, now)
            if owned is not None:
                ask, choice = owned
                ledger.policy.sent(ask, choice, counted=False)

    def end_priming(self, endpoint: Endpoint, *, prefixes: int, took_s: float) -> None:
        """Let an endpoint have its share of the requests, from little to all of it."""
        state = self._state(endpoint)
        if state is None:
            return
        with self._locked() as (ledger, now):
            health = state.health
            health.cooling_until = min(health.cooling_until, now)
            if self.health.warm_up_s:
                health.warm_up(now, self.health)
            ledger.events.append(
                EndpointPrimed(endpoint_id=state.endpoint.id, prefixes=prefixes, took_s=took_s)
            )

    def _state(self, endpoint: Endpoint) -> EndpointState | None:
        try:
            return self._find(endpoint)
        except UnknownEndpointError:
            return None  # removed meanwhile

    def _owned(
        self, ledger: Ledger, one: Remembered, state: EndpointState, now: float
    ) -> tuple[Ask, Choice] | None:
        """Return the placement of a prefix at an endpoint; ``None``: it belongs elsewhere."""
        prompt = one.prefix()
        for group in self._members.groups(prompt.model):
            if state not in group.states:
                continue
            index = group.states.index(state)
            ask = Ask(
                prompt=prompt,
                per_unit=ledger.ratios.of(prompt),
                group=group,
                available=range(len(group.states)),
                now=now,
                queues=ledger.queues,
            )
            choice = ledger.policy.choose(ask)
            owners = list(choice.candidates)[: choice.spread]
            if choice.home is None or index == choice.home or index in owners:
                return ask, replace(choice, index=index)
        return None
