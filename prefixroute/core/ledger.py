"""``Ledger``: all that one router knows, as one single-threaded state.

``RouterCore`` puts one lock around it. Every method is quick, is told the time, does no I/O, and
notes events for others in :attr:`Ledger.events`, to be told once the lock is released.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from prefixroute.core.bounded import BoundedDict
from prefixroute.core.decision import Decision, Reason
from prefixroute.core.events import (
    EndpointCooling,
    EndpointEjected,
    EndpointReadmitted,
    Event,
    FirstToken,
    RequestDone,
)
from prefixroute.core.failed_calls import FailedCalls
from prefixroute.core.health import HealthPolicy
from prefixroute.core.load import EndpointState, EngineLoad, Loan
from prefixroute.core.membership import Group, Members
from prefixroute.core.placement import Ask, Choice, Placement
from prefixroute.core.prompt import Prompt
from prefixroute.core.queues import Queues
from prefixroute.core.ratios import Ratios
from prefixroute.core.stats import Stats, endpoint_stats
from prefixroute.core.waiters import Waiter

__all__ = ["Ledger", "Placed"]

_HALF_LIFE_S: Final = 600.0
"""Own work counts for half after ten minutes."""

_PINNED: Final = 65_536
"""Responses whose endpoint is remembered for ``previous_response_id``."""

_POISON: Final = 1024
"""Requests answered with 500 whose digest is remembered, to count them once over all endpoints."""

_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_NOT_IMPLEMENTED: Final = 501
"""What an engine answers to a kind of request that it was not started for, such as embeddings."""


@dataclass(slots=True)
class Placed:
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


class Ledger:
    """The state of one router.

    Args:
        placement: How prompts are placed.
        health: When endpoints are ejected.
        peers: Routers in front of the endpoints, this one included, if known.
        random: Source of ties and jitter.
    """

    def __init__(
        self, placement: Placement, health: HealthPolicy, peers: int | None, random: Random
    ) -> None:
        self.events: list[Event] = []
        self.waiting: deque[Waiter] = deque()
        self.members: Members | None = None
        self.epoch = 0  # leases of earlier ones (before a fork) are no longer counted here
        self.policy = placement.start(random)
        self.queues = Queues(half_life_s=_HALF_LIFE_S, foreign=peers != 1)
        self.ratios = Ratios()
        self.failed_calls = FailedCalls()
        self._warming: set[EndpointState] = set()
        self._health = health
        self._random = random
        self._serial = 0
        self._pins: BoundedDict[str, EndpointState] = BoundedDict(_PINNED)
        self._poison: BoundedDict[int, EndpointState] = BoundedDict(_POISON)

    # -- placing ---------------------------------------------------------------

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
        self.queues.advance(now)
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
        for group in groups:
            available = [
                index
                for index, state in enumerate(group.states)
                if (panic or state.health.takes(now))
                and not state.full
                and state.endpoint.id not in exclude
            ]
            if panic:
                available = _last_resort(group, available)
            elif self._warming:
                available = self._warm_enough(group, available, now)
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
        choice = self.policy.choose(ask)
        home = choice.home
        if home is None or home == choice.index or home not in available or panic:
            return Placed(ask, choice)
        if group.states[home].health.ejected_until is not None:
            ask = self._ask(prompt, group, (home,), now, panic=False)
            choice = self.policy.choose(ask)
        return Placed(ask, choice)

    def _waits(self, group: Group, now: float, exclude: frozenset[str]) -> bool:
        return any(
            state.full and state.health.takes(now) and state.endpoint.id not in exclude
            for state in group.states
        )

    def _warm_enough(self, group: Group, available: list[int], now: float) -> list[int]:
        """Leave out who is warming up and has his part of the requests; if others are left."""
        for state in [state for state in self._warming if state.health.warmth(now) == 1.0]:
            self._warming.discard(state)
        states = group.states
        mean = (sum([state.in_flight for state in states]) + 1) / len(states)
        enough = [
            index
            for index in available
            if (state := states[index]) not in self._warming
            or state.in_flight < max(1.0, mean * state.health.warmth(now))
        ]
        return enough or available

    def _ask(
        self, prompt: Prompt, group: Group, available: Sequence[int], now: float, *, panic: bool
    ) -> Ask:
        return Ask(
            prompt=prompt,
            per_unit=self.ratios.of(prompt),
            group=group,
            available=available,
            now=now,
            queues=self.queues,
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

    def lend(self, placed: Placed, *, counted: bool) -> Loan:
        """Carry out a placement: count the request as in flight there."""
        ask, choice, state = placed.ask, placed.choice, placed.state
        self._serial += 1
        loan = Loan(self._serial, self.epoch, state, ask.prompt)
        loan.tokens = ask.tokens
        loan.uncached_tokens = choice.uncached_tokens
        loan.expected_tokens = max(0.0, ask.tokens - choice.uncached_tokens)
        loan.held_tokens, loan.blocks = choice.held_tokens, choice.held_blocks
        loan.credit_level = choice.credit_level
        loan.probe = state.health.sent(ask.now, panic=ask.panic)
        state.in_flight += 1
        state.requests += 1
        state.spills += choice.reason.is_spill
        loan.shared_tokens = choice.shared_tokens
        self.queues.sent(loan, ask.now)
        self.policy.sent(ask, choice, counted=counted)
        return loan

    # -- what happens to a loan ------------------------------------------------

    def _counts(self, loan: Loan) -> bool:
        return not loan.released and loan.epoch == self.epoch

    def first_token(self, loan: Loan, cached_tokens: int | None, now: float) -> None:
        """Note the first token of a streamed reply."""
        if loan.first_at is not None or not self._counts(loan):
            return
        loan.first_at = max(now, loan.sent_at)
        self.queues.answered(loan)
        self.events.append(
            FirstToken(endpoint_id=loan.state.endpoint.id, ttft_s=loan.first_at - loan.sent_at)
        )
        if cached_tokens is not None:
            self.usage(loan, None, cached_tokens)

    def usage(self, loan: Loan, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Note what a reply reports of its prompt; only the first report counts."""
        if not self._counts(loan):
            return
        if prompt_tokens is not None and loan.prompt_tokens is None:
            loan.prompt_tokens = prompt_tokens
            self.ratios.learn(loan.prompt, prompt_tokens)
        if cached_tokens is None or loan.cached_tokens is not None:
            return
        cached_tokens = max(0, cached_tokens)
        loan.cached_tokens = cached_tokens
        total = loan.prompt_tokens if loan.prompt_tokens is not None else round(loan.tokens)
        state = loan.state
        state.reports += 1
        state.prompt_tokens += max(total, cached_tokens)
        state.cached_tokens += cached_tokens
        state.expected_tokens += loan.expected_tokens
        self.policy.learned(loan)
        self.queues.learn(loan)

    def pin(self, loan: Loan, response_id: str) -> None:
        """Remember who answered, for requests that continue this response."""
        if self._counts(loan):
            self._pins.put(response_id, loan.state)

    def failed(
        self,
        loan: Loan,
        status: int | None,
        retry_after_s: float | None,
        digest: int | None,
        now: float,
    ) -> None:
        """Note that the endpoint failed a request."""
        if not self._counts(loan) or loan.failed:
            return
        state, policy = loan.state, self._health
        load = status in (_TOO_MANY, _UNAVAILABLE)
        refused = status is not None and _CLIENT_ERROR <= status < _SERVER_ERROR and not load
        if refused or status == _NOT_IMPLEMENTED:
            return  # a status below is that of a reply that failed later
        loan.failed = True
        self.queues.answered(loan)
        if loan.first_at is None:
            self.policy.unsent(loan)
        if load:
            wait = policy.cool_for_s if retry_after_s is None else retry_after_s
            wait = min(max(0.0, wait), policy.max_cool_for_s)
            state.health.cool(now + wait)
            state.health.neutral(probe=loan.probe)
            self.events.append(EndpointCooling(endpoint_id=state.endpoint.id, for_s=wait))
            return
        if digest is not None:
            poison = self._poison.get(digest) is not None
            self._poison.put(digest, state)
            if poison:  # the request fails everywhere: that says nothing about this endpoint
                return
        self._failed(state, now, probe=loan.probe, silent=status is None)

    def _failed(self, state: EndpointState, now: float, *, probe: int, silent: bool) -> None:
        state.failures += 1
        policy, members = self._health, self.members.states if self.members is not None else ()
        ejected = sum(other.health.ejected_until is not None for other in members)
        may = policy.may_eject(ejected, len(members))
        if state.health.failed(now, policy, self._random, probe=probe, may_eject=may):
            state.health.silent = silent
            self._ejected(state, now)

    def release(self, loan: Loan, now: float, *, neutral: bool) -> None:
        """End a loan; safe to repeat."""
        if loan.released:
            return
        counts, loan.released = self._counts(loan), True
        if counts:
            state = loan.state
            state.in_flight -= 1
            self.queues.answered(loan)
            self.queues.learn(loan)
            if loan.failed or neutral:
                state.health.neutral(probe=loan.probe)
            else:
                self._succeeded(loan, now)
            self.events.append(
                RequestDone(
                    endpoint_id=state.endpoint.id,
                    duration_s=max(0.0, now - loan.sent_at),
                    failed=loan.failed,
                    prompt_tokens=loan.prompt_tokens,
                    cached_tokens=loan.cached_tokens,
                    expected_cached_tokens=loan.expected_tokens,
                )
            )

    def _succeeded(self, loan: Loan, now: float) -> None:
        state = loan.state
        if state.health.succeeded(probe=loan.probe):
            self._readmitted(state, now)
        if loan.prompt.chain and loan.cached_tokens is None:  # what has a prompt has a usage
            state.unreported_cached += loan.prompt_tokens is not None
            state.unreported += loan.prompt_tokens is None

    # -- endpoints -------------------------------------------------------------

    def _ejected(self, state: EndpointState, now: float) -> None:
        """Forget what an ejected endpoint held: it may come back empty."""
        if not state.member:
            return  # a late failure of one that was removed: nothing is kept of it
        self.policy.left(state)
        self.policy.joined(state)
        until = state.health.ejected_until
        until = math.inf if until is None else until
        self.events.append(
            EndpointEjected(endpoint_id=state.endpoint.id, until=until, for_s=until - now)
        )

    def eject(self, state: EndpointState, now: float) -> None:
        """Take an endpoint out until it is readmitted."""
        state.health.eject(math.inf)
        self._ejected(state, now)

    def readmit(self, state: EndpointState, now: float) -> None:
        """Take an endpoint in again, whatever kept it out."""
        ejected = state.health.ejected_until is not None
        state.health.readmit()
        if ejected:
            self._warm_up(state, now)
        self.events.append(EndpointReadmitted(endpoint_id=state.endpoint.id))

    def _readmitted(self, state: EndpointState, now: float) -> None:
        self._warm_up(state, now)
        self.events.append(EndpointReadmitted(endpoint_id=state.endpoint.id))

    def _warm_up(self, state: EndpointState, now: float) -> None:
        if state.member and self._health.warm_up_s:
            state.health.warm_up(now, self._health)
            self._warming.add(state)

    def probed(self, state: EndpointState, status: int | None, now: float) -> None:
        """Take the answer to a probe that was no request of a caller's.

        Args:
            state: Who was asked.
            status: The answer's; ``None``: there was none.
            now: Seconds.
        """
        health, every_s = state.health, self._health.probe_every_s or 0.0
        if not state.member:
            return
        if status is not None and status < _SERVER_ERROR:
            until = health.ejected_until
            if until is not None and until < math.inf and health.silent:
                health.answered()
                self._readmitted(state, now)
        elif status == _UNAVAILABLE:  # it loads its model
            health.cool(now + 2.0 * every_s)
        else:
            self._failed(state, now, probe=0, silent=True)

    def report(self, state: EndpointState, load: EngineLoad, now: float) -> None:
        """Take an engine's report of its load."""
        self.queues.report(state, load, now)

    def swap(self, members: Members, now: float) -> tuple[list[EndpointState], list[EndpointState]]:
        """Put a new membership in place; return who joined and who left."""
        before = self.members.states if self.members is not None else ()
        staying = set(members.states)
        joined = [state for state in members.states if not state.member]
        left = [state for state in before if state not in staying]
        for state in joined:
            state.member = True
            self.policy.joined(state)
            if before:
                self._warm_up(state, now)
        for state in left:
            state.member = False
            self._warming.discard(state)
            self.policy.left(state)
        for state, endpoint in zip(members.states, members.endpoints, strict=True):
            state.endpoint = endpoint
        self.members = members
        self.queues.set_members(members.states)
        return joined, left

    def forked(self) -> None:
        """Drop the leases of the parent process: it will release them, not this one."""
        self.epoch += 1
        self.events.clear()
        self.waiting.clear()
        self.policy.forked()
        for state in self.members.states if self.members is not None else ():
            state.in_flight = 0
            state.queued = state.backlog = 0.0
            state.open.clear()
            state.silent.clear()
            state.health.neutral(probe=state.health.probing)

    def stats(self, now: float) -> Stats:
        """Return the counts so far."""
        states = self.members.states if self.members is not None else ()
        fresh = self.queues.fresh
        return Stats(endpoints=tuple([endpoint_stats(s, now, fresh=fresh(s, now)) for s in states]))


def _last_resort(group: Group, available: Iterable[int]) -> list[int]:
    """Of those that nobody wants: rather an ejected endpoint than one that is leaving."""
    every = list(available)
    staying = [index for index in every if not group.states[index].health.draining]
    return staying or every
