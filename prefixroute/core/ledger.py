"""``Ledger``: all that one router knows, as one single-threaded state.

``RouterCore`` puts one lock around it. Every method is quick, is told the time, does no I/O, and
notes events for others in :attr:`Ledger.events`, to be told once the lock is released.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

from prefixroute.core.events import Event, FirstToken, RequestDone
from prefixroute.core.failed_calls import FailedCalls
from prefixroute.core.health import HealthPolicy
from prefixroute.core.judge import Judge, says_something
from prefixroute.core.load import EndpointState, EngineLoad, Loan
from prefixroute.core.membership import Members
from prefixroute.core.placement import Placement
from prefixroute.core.placer import Placed, Placer
from prefixroute.core.queues import Queues
from prefixroute.core.ratios import Ratios
from prefixroute.core.stats import Stats, endpoint_stats
from prefixroute.core.waiters import Waiter

__all__ = ["Ledger"]

_HALF_LIFE_S: Final = 600.0
"""Own work counts for half after ten minutes."""


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
        self.judge = Judge(health, random, events=self.events, placement=self.policy)
        self.placer = Placer(self.policy, self.queues, self.ratios, self.judge)
        self._serial = 0

    def take_events(self) -> list[Event]:
        """Return the events that were noted since this was last called."""
        events = self.events.copy()
        self.events.clear()
        return events

    # -- a request's life --------------------------------------------------------

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

    def _counts(self, loan: Loan) -> bool:
        return not loan.released and loan.epoch == self.epoch

    def first_token(self, loan: Loan, cached_tokens: int | None, now: float) -> None:
        """Note the first token of a streamed reply."""
        if loan.first_at is not None or not self._counts(loan):
            return
        loan.first_at = max(now, loan.sent_at)
        self.queues.answered(loan)
        self.events.append(
            FirstToken(
                endpoint_id=loan.state.endpoint.id,
                ttft_s=loan.first_at - loan.sent_at,
                serial=loan.serial,
            )
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
            self.placer.pin(response_id, loan.state)

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
        """Note that the endpoint failed a request."""
        if not self._counts(loan) or loan.failed or not says_something(status):
            return
        loan.failed = True
        self.queues.answered(loan)
        if loan.first_at is None:
            self.policy.unsent(loan)
        self.judge.failed(loan, status, retry_after_s, digest, now, silent=silent)

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
                    serial=loan.serial,
                )
            )

    def _succeeded(self, loan: Loan, now: float) -> None:
        state = loan.state
        self.judge.succeeded(loan, now)
        if loan.prompt.chain and loan.cached_tokens is None:  # what has a prompt has a usage
            state.unreported_cached += loan.prompt_tokens is not None
            state.unreported += loan.prompt_tokens is None

    # -- endpoints -------------------------------------------------------------

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
                self.judge.warm_up(state, now)
        for state in left:
            state.member = False
            self.judge.left(state)
            self.policy.left(state)
        for state, endpoint in zip(members.states, members.endpoints, strict=True):
            state.endpoint = endpoint
        self.members = members
        self.judge.members = members.states
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
        return Stats(
            endpoints=tuple([endpoint_stats(s, now, fresh=fresh(s, now)) for s in states]),
            waiting=len(self.waiting),
        )
