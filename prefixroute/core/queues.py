"""How long a request would wait at an endpoint, in seconds of prefill.

Own requests are known. Those of other routers show in the engine's reports or, without any, in the
time that own first tokens took beyond what own requests explain. A guess of others' queue relaxes
to the mean like the waiting time of an M/M/1 queue does after one observation, and is raised where
an own request is overdue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from prefixroute.core.load import EndpointState, EngineLoad, Loan

__all__ = ["Queues"]

_FIRST_RATE: Final = 8000.0
"""Tokens/s until a reply has told: a 7B model on one current GPU."""

_SURE_REPLIES: Final = 16
"""Replies after which an endpoint's own rate is believed, also where it is a low one."""

_FIRST_UNCACHED: Final = 4000.0
"""Mean uncached tokens of a request until replies have told."""

_RATE_FADE: Final = 0.9995
"""Per reply: the envelope of the prefill rate sinks slowly, to follow an engine that got slower."""

_RESCALE_AFTER: Final = 256.0
"""Half-lives after which the weight of work starts at 1 again, so that it stays finite."""

_STALE_INTERVALS: Final = 3.0
"""A report is believed for this many of its intervals."""

_RELAX: Final = 0.5
"""A wait just seen relaxes to the mean with this many mean waits as its time constant."""


class Queues:
    """Learns prefill rates and others' waits; answers how loaded endpoints are.

    Args:
        half_life_s: Own work counts for half after this time, seconds.
        foreign: Whether there may be other routers in front of the endpoints.
    """

    __slots__ = (
        "_half_life_s", "_members", "_normal", "_now", "_replies", "_start", "_total_weight",
        "_total_work", "_weight", "foreign", "mean_service_s", "mean_uncached", "mean_wait_s",
    )  # fmt: skip

    def __init__(self, *, half_life_s: float, foreign: bool) -> None:
        self.foreign = foreign
        self._half_life_s = half_life_s
        self._members: tuple[EndpointState, ...] = ()
        self._start: float | None = None
        self._now = -math.inf
        self._normal = 0.0  # see _mean_surplus; 0: to be worked out
        self._weight = 1.0  # of work that comes now, against that at the start
        self._total_work = 0.0
        self._total_weight = 1.0
        self._replies = 0
        self.mean_wait_s = self.mean_service_s = 0.0
        self.mean_uncached = _FIRST_UNCACHED

    def set_members(self, states: Iterable[EndpointState]) -> None:
        """Work is compared among these from now on."""
        self._members = tuple(states)
        self._total_work = sum(state.work for state in self._members)
        self._total_weight = sum(state.endpoint.weight for state in self._members) or 1.0
        self._normal = 0.0

    def rate(self, state: EndpointState, others: Sequence[EndpointState]) -> float:
        """Return an endpoint's prefill rate, tokens/s; until learned at least the best other's.

        A first reply that waited for others, or was cached, makes an endpoint look slow; it would
        get no further requests to show that it is not. With the mean of the others in place of the
        best, 32 routers scatter a trace whose prefixes one router would keep together.
        """
        if state.replies >= _SURE_REPLIES:
            return state.rate
        known = [other.rate for other in others if other.rate > 0.0 and other is not state]
        if not known:
            return state.rate or _FIRST_RATE
        return max(state.rate, *known)

    # -- what is asked ---------------------------------------------------------

    def fresh(self, state: EndpointState, now: float) -> bool:
        """Return whether the endpoint's last report may still be believed."""
        return now - state.reported_at <= _STALE_INTERVALS * state.interval_s

    def own_s(self, state: EndpointState, rate: float, now: float) -> float:
        """Return the time until own unanswered prefill is over, seconds."""
        backlog = state.backlog
        if backlog > 0.0:
            backlog = max(0.0, backlog - rate * max(0.0, now - state.backlog_at))
        return (state.queued + backlog) / rate

    def foreign_s(self, state: EndpointState, now: float) -> float:
        """Return how long others' requests would keep one waiting, seconds."""
        if self.fresh(state, now):
            return max(0.0, state.foreign_s - max(0.0, now - state.reported_at))
        mean = self.mean_wait_s
        if not self.foreign or mean <= 0.0:
            return 0.0
        wait = mean * self._surplus(state) / self._mean_surplus()
        if state.wait_at > -math.inf:
            age = max(0.0, now - state.wait_at)
            wait += (state.wait_s - wait) * math.exp(-age / (_RELAX * mean))
        if state.open:
            loan = next(iter(state.open.values()))
            if now > loan.due_at + wait:  # overdue: others queue there
                wait = max(wait, self._busy * (now - loan.sent_at) + mean)
        return wait

    def _surplus(self, state: EndpointState) -> float:
        """Return how many times its share an endpoint has of own work, if that is clearly more."""
        share = self._total_work * state.endpoint.weight / self._total_weight
        if share <= 0.0:
            return 1.0
        noise = math.sqrt(state.work2 * self._weight)  # of sums that are all times _weight
        return max(1.0, (state.work - noise) / share)

    def _mean_surplus(self) -> float:
        """Return the mean of :meth:`_surplus` over own work: where the mean wait was met.

        All of a lone conversation's waits were met at one endpoint: they say nothing about how much
        shorter the others' queues are.
        """
        if self._normal <= 0.0:
            work = sum(state.work for state in self._members)
            met = sum(state.work * self._surplus(state) for state in self._members)
            self._normal = met / work if work > 0.0 else 1.0
        return self._normal

    @property
    def _busy(self) -> float:
        """Share of a first token's time that is waiting for others, F / (F + T)."""
        mean = self.mean_wait_s
        return mean / (mean + self.mean_service_s) if mean > 0.0 else 0.0

    @property
    def wait_over_service(self) -> float:
        """F / T: how long others keep one waiting, in own mean service times."""
        if not self.foreign or self.mean_service_s <= 0.0:
            return 0.0
        return self.mean_wait_s / self.mean_service_s

    # -- what happens ----------------------------------------------------------

    def advance(self, now: float) -> None:
        """Let recorded work decay up to ``now``; a clock that steps back changes nothing."""
        if self._start is None:
            self._start = self._now = now
        if now <= self._now:
            return
        self._now = now
        half_lives = (now - self._start) / self._half_life_s
        if half_lives < _RESCALE_AFTER:
            self._weight = 2.0**half_lives
        else:
            self._rescale(2.0 ** -min(half_lives, 1074.0))

    def _rescale(self, scale: float) -> None:
        """Count work from now on; what was counted before weighs ``scale``."""
        for state in self._members:
            state.work *= scale
            state.work2 *= scale
        self._total_work *= scale
        self._weight, self._start = 1.0, self._now

    def sent(self, loan: Loan, rate: float, now: float) -> None:
        """Count a request that is being sent."""
        state = loan.state
        loan.own_wait_s = self.own_s(state, rate, now)
        loan.sent_at = now
        seconds = loan.uncached_tokens / rate
        loan.due_at = now + loan.own_wait_s + seconds
        if loan.prompt.stream:
            state.queued += loan.uncached_tokens
            state.open[loan.serial] = loan
        else:
            state.backlog = max(0.0, state.backlog - rate * max(0.0, now - state.backlog_at))
            state.backlog += loan.uncached_tokens
            state.backlog_at = now
            state.silent[loan.serial] = loan
        state.work += seconds * self._weight
        state.work2 += seconds * seconds * self._weight
        self._total_work += seconds * self._weight
        self._normal = 0.0

    def answered(self, loan: Loan) -> None:
        """Take an answered, failed or released request out of the queue; safe to repeat."""
        state = loan.state
        if state.open.pop(loan.serial, None) is not None:
            state.queued = max(0.0, state.queued - loan.uncached_tokens) if state.open else 0.0
        elif state.silent.pop(loan.serial, None) is not None and not state.silent:
            state.backlog = 0.0

    def learn(self, loan: Loan, others: Sequence[EndpointState]) -> None:
        """Learn from a first token and the cached tokens that came with its reply."""
        if loan.learned or loan.first_at is None:
            return
        loan.learned = True
        state = loan.state
        took = loan.first_at - loan.sent_at
        tokens = loan.tokens if loan.prompt_tokens is None else float(loan.prompt_tokens)
        if loan.cached_tokens is None:
            uncached = max(1.0, tokens - loan.expected_tokens)
        else:
            uncached = max(1.0, tokens - loan.cached_tokens)
            self.mean_uncached += 0.02 * (uncached - self.mean_uncached)
        if took <= 0.0:
            return
        if loan.cached_tokens is not None or state.rate == 0.0:
            state.rate = max(state.rate * _RATE_FADE, uncached / took)
            state.replies += 1
        service = uncached / self.rate(state, others)
        felt = max(0.0, took - loan.own_wait_s)
        self._replies += 1
        step = max(0.03, 1.0 / self._replies)
        self.mean_wait_s += step * (max(0.0, felt - service) - self.mean_wait_s)
        self.mean_service_s += step * (service - self.mean_service_s)
        state.wait_s, state.wait_at = self._busy * felt, loan.first_at

    def report(self, state: EndpointState, load: EngineLoad, now: float, rate: float) -> None:
        """Take an engine's report; what exceeds own requests is other routers'."""
        since = now - state.reported_at
        if state.reported is None or not 0.0 < since < math.inf:
            state.interval_s = state.interval_s or 1.0
        else:
            state.interval_s += 0.3 * (min(60.0, max(0.05, since)) - state.interval_s)
        unanswered = len(state.open) + sum(now < loan.due_at for loan in state.silent.values())
        waiting = max(0, load.waiting - unanswered)
        state.foreign_s = waiting * self.mean_uncached / rate
        state.foreign_requests = max(0, load.running + load.waiting - state.in_flight)
        state.reported, state.reported_at = load, now
