"""``Placer``: whom a prompt may be given, and whom of these the policy chooses.

Nothing changes here: what was chosen is carried out by the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from prefixroute.core.bounded import BoundedDict
from prefixroute.core.decision import Decision, Reason
from prefixroute.core.judge import Judge
from prefixroute.core.load import EndpointState
from prefixroute.core.membership import Group
from prefixroute.core.placement import Ask, Choice, Policy
from prefixroute.core.prompt import Prompt
from prefixroute.core.queues import Queues
from prefixroute.core.ratios import Ratios

__all__ = ["Placed", "Placer"]

_PINNED: Final = 65_536
"""Responses whose endpoint is remembered for ``previous_response_id``."""


class Placed(msgspec.Struct):
    """A question to the policy with its answer."""

    ask: Ask
    choice: Choice

    @property
    def state(self) -> EndpointState:
        """The chosen endpoint's accounting."""
        return self.ask.group.states[self.choice.index]

    def decision(self) -> Decision:
        """Return the answer as the public sees it."""
        ask, choice = self.ask, self.choice
        states, prompt = ask.group.states, ask.prompt
        return Decision(
            endpoint=states[choice.index].endpoint,
            home=states[choice.home].endpoint if choice.home is not None else None,
            key=f"{prompt.chain[choice.depth]:016x}" if choice.depth >= 0 else None,
            key_source=prompt.source,
            depth=choice.depth,
            reason=choice.reason,
            tokens=ask.tokens,
            expected_cached_tokens=max(0.0, ask.tokens - choice.uncached_tokens),
            spread=choice.spread,
            candidates=tuple([states[index].endpoint for index in choice.candidates]),
            loads=tuple(choice.loads),
            in_flight=tuple([states[index].in_flight for index in choice.candidates]),
            bound=choice.bound,
        )


class Placer:
    """Places prompts.

    Args:
        policy: Chooses among those that are available.
        queues: How long a request would wait where.
        ratios: What a unit of a prompt is in tokens.
        judge: Knows who is still coming to the full share of the requests.
    """

    def __init__(self, policy: Policy, queues: Queues, ratios: Ratios, judge: Judge) -> None:
        self._policy, self._queues, self._ratios, self._judge = policy, queues, ratios, judge
        self._pins: BoundedDict[str, EndpointState] = BoundedDict(_PINNED)

    def pin(self, response_id: str, state: EndpointState) -> None:
        """Remember who answered, for requests that continue this response."""
        self._pins.put(response_id, state)

    def place(
        self,
        prompt: Prompt,
        groups: Sequence[Group],
        now: float,
        exclude: frozenset[str],
        avoid: frozenset[str] = frozenset(),
    ) -> Placed | None:
        """Return where the prompt should go; changes nothing.

        Args:
            prompt: What is to be placed.
            groups: Those that may serve its model, lowest tier first.
            now: Seconds.
            exclude: Ids of endpoints that must not be chosen.
            avoid: Ids of those that are chosen only if nobody else is well and has room; who holds
                what the request continues is not avoided.

        Returns:
            ``None`` if all that are not excluded are at their ``max_in_flight``.
        """
        self._queues.advance(now)
        pinned = self._pinned(prompt, groups, now, exclude)
        if pinned is not None:
            return pinned
        if avoid:
            elsewhere = self._placed(prompt, groups, now, exclude | avoid, panic=False)
            if elsewhere is not None:
                return elsewhere
        placed = self._placed(prompt, groups, now, exclude, panic=False)
        if placed is not None or any(self._waits(group, now, exclude) for group in groups):
            return placed  # well but full: wait for these rather than hurry to an ejected one
        return self._placed(prompt, groups, now, exclude, panic=True)

    def _placed(
        self,
        prompt: Prompt,
        groups: Sequence[Group],
        now: float,
        exclude: frozenset[str],
        *,
        panic: bool,
    ) -> Placed | None:
        available: Sequence[int]
        for group in groups:
            states, available = group.states, group.everyone
            taking = [True] * len(group) if panic else [takes(now) for takes in group.takes]
            if exclude or group.limited or not all(taking):
                available = [
                    index
                    for index, takes in enumerate(taking)
                    if takes and not states[index].full and states[index].endpoint.id not in exclude
                ]
            if panic:
                available = _last_resort(group, available)
            elif warming := self._judge.warming(now):
                available = _warm_enough(group, available, warming, now)
            if available:
                return self._chosen(prompt, group, available, now, panic=panic)
        return None

    def _chosen(
        self, prompt: Prompt, group: Group, available: Sequence[int], now: float, *, panic: bool
    ) -> Placed:
        """Return what the policy chooses; a home that is due a probe gets it.

        What it held is held elsewhere by now, so that nothing else would bring it back for long.
        """
        ask = self._ask(prompt, group, available, now, panic=panic)
        choice = self._policy.choose(ask)
        home = choice.home
        if home is None or home == choice.index or home not in available or panic:
            return Placed(ask, choice)
        if group.states[home].health.ejected_until is not None:
            ask = self._ask(prompt, group, (home,), now, panic=False)
            choice = self._policy.choose(ask)
        return Placed(ask, choice)

    def _waits(self, group: Group, now: float, exclude: frozenset[str]) -> bool:
        return any(
            state.full and state.health.takes(now) and state.endpoint.id not in exclude
            for state in group.states
        )

    def _ask(
        self, prompt: Prompt, group: Group, available: Sequence[int], now: float, *, panic: bool
    ) -> Ask:
        return Ask(
            prompt=prompt,
            per_unit=self._ratios.of(prompt),
            group=group,
            available=available,
            now=now,
            queues=self._queues,
            panic=panic,
        )

    def _pinned(
        self, prompt: Prompt, groups: Sequence[Group], now: float, exclude: frozenset[str]
    ) -> Placed | None:
        """Return the endpoint that answered what this request continues, if it can be asked.

        It is looked for in every tier: it has what the others lack.
        """
        state = self._pins.peek(prompt.pin) if prompt.pin is not None else None
        if state is None or state.full or not state.health.takes(now):
            return None
        if state.endpoint.id in exclude:
            return None
        for group in groups:
            if state in group.states:
                index = group.states.index(state)
                ask = self._ask(prompt, group, (index,), now, panic=False)
                choice = Choice(
                    index=index,
                    reason=Reason.PINNED,
                    home=index,
                    candidates=(index,),
                    uncached_tokens=ask.tokens,
                )
                return Placed(ask, choice)
        return None


def _last_resort(group: Group, available: Iterable[int]) -> list[int]:
    """Of those that nobody wants: rather an ejected endpoint than one that is leaving."""
    every = list(available)
    staying = [index for index in every if not group.states[index].health.draining]
    return staying or every


def _warm_enough(
    group: Group, available: Sequence[int], warming: Collection[EndpointState], now: float
) -> Sequence[int]:
    """Leave out who is warming up and has his part of the requests; if others are left."""
    states = group.states
    mean = (sum([state.in_flight for state in states]) + 1) / len(states)
    enough = [
        index
        for index in available
        if (state := states[index]) not in warming
        or state.in_flight < max(1.0, mean * state.health.warmth(now))
    ]
    return enough or available
