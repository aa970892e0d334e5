"""How long a request would wait at an endpoint, in seconds of prefill.

Own requests are known. Those of other routers show in the engine's reports or, without any, in the
time that own first tokens took beyond what own requests explain. A guess of others' queue relaxes
to the mean like the waiting time of an M/M/1 queue does after one observation, and is raised where
an own request is overdue.

One prefill rate serves for all endpoints. A router among many has a few replies of each, most of
which waited for somebody: rates of their own would differ by chance and send every request to the
luckiest. An endpoint that is slower shows as one that keeps requests waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from prefixroute.core.busy import Busy
from prefixroute.core.crowding import note_crowd
from prefixroute.core.load import EndpointState, EngineLoad, Loan
from prefixroute.core.waits import Waits

__all__ = ["Queues"]

_FIRST_RATE: Final = 8000.0
"""Tokens/s until a reply has told: a 7B model on one current GPU."""

_FIRST_UNCACHED: Final = 4000.0
"""Mean uncached tokens of a request until replies have told."""

_RATE_FADE: Final = 0.9995
"""Per reply: the envelope of the prefill rate sinks slowly, to follow engines that got slower."""

_RATE_QUANTILE: Final = 0.8
"""Of expected work over time taken, where replies do not say what was cached: a queue makes the
ratio too low, which is common, and content that others brought makes it too high, which is rare."""

_RATE_STEP: Final = 0.1
"""Of the rate, by which a reply moves the quantile at most."""

_RESCALE_AFTER: Final = 256.0
"""Half-lives after which the weight of work starts at 1 again, so that it stays finite."""

_STALE_INTERVALS: Final = 3.0
"""A report is believed for this many of its intervals."""

_OUTSIDE_STEP: Final = 0.1
"""Of a report, in the mean of what others than the routers of a fleet have: ten of them or so."""

_RELAX: Final = 4.0
"""A wait just seen relaxes to the mean with this many mean waits as its time constant. A queue
forgets slowly: the waits of an M/M/1 queue are correlated over (1 + rho) / (1 - rho)^2 services,
which is no less than 5.8 mean waits; part of what was seen was not the queue."""

_SHORTEST_WINDOW_S: Final = 30.0
"""Own load is not judged over less."""

_BUSIEST: Final = 0.9
"""Own load of an endpoint is taken for no more: sums of estimates can pass 1, its queue cannot
have been without end."""


class Queues:
    """Learns prefill rates and others' waits; answers how loaded endpoints are.

    Args:
        half_life_s: Own work counts for half after this time, seconds.
        foreign: Whether there may be other routers in front of the endpoints.
    """

    __slots__ = (
        "_began", "_half_life_s", "_members", "_now", "_quantile_replies", "_rate", "_start",
        "_told", "_weight", "busy", "foreign", "mean_uncached", "waits",
    )  # fmt: skip

    def __init__(self, *, half_life_s: float, foreign: bool) -> None:
        self.foreign = foreign
        self._half_life_s = half_life_s
        self._members: tuple[EndpointState, ...] = ()
        self._began: float | None = None
        self._start = 0.0
        self._now = -math.inf
        self._weight = 1.0  # of work that comes now, against that at the start
        self._rate = 0.0  # 0: nothing learned yet
        self._told = False  # replies say what was cached
        self._quantile_replies = 0
        self.waits = Waits()
        self.busy = Busy()
        self.mean_uncached = _FIRST_UNCACHED

    def set_members(self, states: Iterable[EndpointState]) -> None:
        """Waits are compared among these from now on."""
        self._members = tuple(states)

    @property
    def rate(self) -> float:
        """The prefill rate of the endpoints, tokens/s."""
        return self._rate or _FIRST_RATE

    # -- what is asked ---------------------------------------------------------

    def fresh(self, state: EndpointState, now: float) -> bool:
        """Return whether the endpoint's last report may still be believed."""
        return now - state.reported_at <= _STALE_INTERVALS * state.interval_s

    def told(self, state: EndpointState, now: float) -> bool:
        """Return whether others' requests are known, from the engine or from other routers."""
        others = state.others
        return (others is not None and others.fresh(now)) or self.fresh(state, now)

    def foreign_requests(self, state: EndpointState, now: float) -> int:
        """Return how many of others' requests are there as far as anybody has told, else 0."""
        others, reported = state.others, self.fresh(state, now)
        if others is not None and others.fresh(now):
            return others.requests + max(0, round(state.outside_requests)) * reported
        return state.foreign_requests if reported else 0

    def own_s(self, state: EndpointState, now: float) -> float:
        """Return the time until own unanswered prefill is over, seconds."""
        rate, backlog = self.rate, state.backlog
        if backlog > 0.0:
            backlog = max(0.0, backlog - rate * max(0.0, now - state.backlog_at))
        own = (state.queued + backlog) / rate
        if not state.open:
            return own
        first = next(iter(state.open.values()))
        whole = first.uncached_tokens / rate
        past = now - max(first.sent_at + first.foreign_s, state.answered_at)
        if past <= 0.0:
            return own
        # The one that is being computed has so much less to go; if it is overdue, the expectation
        # was wrong, and the longer it is, the less can be said for the endpoint.
        return max(0.0, own - (past if past <= whole else max(0.0, 2.0 * whole - past)))

    def foreign_s(self, state: EndpointState, now: float) -> float:
        """Return how long others' requests would keep one waiting, seconds.

        What other routers say counts before what the engine reports, which is older; of its report
        what is usually there beyond their requests and own ones counts then.
        """
        others = state.others
        if others is not None and others.fresh(now):
            outside_s = state.outside_s if self.fresh(state, now) else 0.0
            return others.tokens_left(self.rate, now) / self.rate + max(0.0, outside_s)
        if self.fresh(state, now):
            return max(0.0, state.foreign_s - max(0.0, now - state.reported_at))
        if not self.foreign or self.waits.mean_s <= 0.0:
            return 0.0
        return self._guessed_s(state, now, self.waits.at(state))

    def _guessed_s(self, state: EndpointState, now: float, mean_s: float) -> float:
        """Return the wait for others without a fresh report, given the mean one there."""
        waits, wait = self.waits, mean_s
        if state.wait_at > -math.inf:
            age = max(0.0, now - state.wait_at)
            wait += (state.wait_s - wait) * math.exp(-age / (_RELAX * waits.mean_s))
        if state.open:
            loan = next(iter(state.open.values()))
            if now > loan.due_at + wait:  # overdue: others queue there
                wait = max(wait, waits.busy * (now - loan.sent_at) + waits.mean_s)
        return wait

    def scale(self) -> float:
        """Return what own work, as it is recorded, is multiplied by to be per second; 0: none."""
        if self._began is None:
            return 0.0
        fade = math.exp(-math.log(2.0) * (self._now - self._began) / self._half_life_s)
        window = (1.0 - fade) * self._half_life_s / math.log(2.0)
        return 1.0 / (self._weight * max(_SHORTEST_WINDOW_S, window))

    def outlook(
        self, state: EndpointState, now: float, scale: float
    ) -> tuple[float, float, float | None, float]:
        """Return all that is asked of a candidate, at the cost of one call.

        Args:
            state: The candidate.
            now: Seconds.
            scale: From :meth:`scale`.

        Returns:
            :meth:`own_s`; :meth:`foreign_s`; F / T, how long others keep one waiting there, in own
            service times (``None``: their requests are told, see :meth:`told`); and own requests
            per second that it gets while it is busy once. The last is lambda / (1 - rho) of own
            requests: so many of them are delayed by whoever makes the endpoint's queue a second
            longer, per second that the queue is long already.
        """
        own = self.own_s(state, now) if state.open or state.queued or state.backlog else 0.0
        pressure = _pressure(state, scale) if state.sent > 0.0 else 0.0
        if (state.reported or state.others) and self.told(state, now):
            return own, self.foreign_s(state, now), None, pressure
        waits = self.waits
        if not self.foreign or waits.service_s <= 0.0:  # nothing learned yet
            return own, self.foreign_s(state, now), 0.0, pressure
        mean_s = waits.mean_s if state.wait_factor == 1.0 else waits.at(state)
        foreign = self._guessed_s(state, now, mean_s) if waits.mean_s > 0.0 else 0.0
        return own, foreign, mean_s / waits.service_s, pressure

    # -- what happens ----------------------------------------------------------

    def advance(self, now: float) -> None:
        """Let recorded work decay up to ``now``; a clock that steps back changes nothing."""
        if self._began is None:
            self._began = self._start = self._now = now
        if now <= self._now:
            return
        self._now = now
        half_lives = (now - self._start) / self._half_life_s
        if half_lives < _RESCALE_AFTER:
            self._weight = 2.0**half_lives
        else:
            self._rescale(2.0 ** -min(half_lives, 1074.0))

    def _rescale(self, scale: float) -> None:
        """Count from now on; what was counted before weighs ``scale``."""
        for state in self._members:
            state.sent *= scale
            state.work *= scale
            state.felt *= scale
            state.felt_sum *= scale
            state.felt_squares *= scale
        self._weight, self._start = 1.0, self._now

    def sent(self, loan: Loan, now: float) -> None:
        """Count a request that is being sent."""
        state, rate = loan.state, self.rate
        loan.own_wait_s = self.own_s(state, now)
        loan.foreign_s = self.foreign_s(state, now)
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
        state.sent += self._weight
        state.work += seconds * self._weight

    def answered(self, loan: Loan) -> None:
        """Take an answered, failed or released request out of the queue; safe to repeat."""
        state = loan.state
        if state.open.pop(loan.serial, None) is not None:
            state.queued = max(0.0, state.queued - loan.uncached_tokens) if state.open else 0.0
            if loan.first_at is not None:
                self._answered(loan, loan.first_at)
        elif state.silent.pop(loan.serial, None) is not None and not state.silent:
            state.backlog = 0.0

    def _answered(self, loan: Loan, now: float) -> None:
        """Note what a first token says of the queue, before it is known what was cached."""
        state = loan.state
        # In hindsight: until the own request before it was answered, it waited for that one.
        loan.own_wait_s = max(0.0, state.answered_at - loan.sent_at)
        state.answered_at = max(state.answered_at, now)
        if now >= state.wait_at:
            felt = max(0.0, now - loan.sent_at - loan.own_wait_s)
            state.wait_s, state.wait_at = self.waits.busy * felt, now

    def learn(self, loan: Loan) -> None:
        """Learn from a first token and, if there are any, the cached tokens of its reply."""
        if loan.learned or loan.first_at is None:
            return
        loan.learned = True
        took = loan.first_at - loan.sent_at
        tokens = loan.tokens if loan.prompt_tokens is None else float(loan.prompt_tokens)
        cached = loan.expected_tokens if loan.cached_tokens is None else loan.cached_tokens
        uncached = max(1.0, tokens - cached)
        self.mean_uncached += 0.02 * (uncached - self.mean_uncached)
        if took <= 0.0:
            return
        felt = max(0.0, took - loan.own_wait_s)
        if loan.cached_tokens is not None:
            self._learn_rate(loan.state, uncached / took)
        elif not self._told:
            self._guess_rate(uncached / max(felt, 1e-6))
        service = uncached / self.rate
        self.waits.learn(
            loan.state,
            self._members,
            wait_s=max(0.0, felt - service),
            service_s=service,
            weight=self._weight,
        )

    def _learn_rate(self, state: EndpointState, rate: float) -> None:
        """Follow the fastest reply: it had no queue."""
        self._rate = max(self._rate * _RATE_FADE, rate) if self._told else rate
        self._told = True
        state.rate = max(state.rate * _RATE_FADE, rate)

    def _guess_rate(self, rate: float) -> None:
        """Follow a quantile of what would be the rate if all that was expected was computed.

        Source: stochastic approximation, Robbins and Monro, Ann. Math. Stat. 22 (1951).
        """
        self._quantile_replies += 1
        if self._quantile_replies == 1:
            self._rate = rate
            return
        step = self._rate * max(_RATE_STEP, 1.0 / self._quantile_replies)
        up = rate > self._rate
        self._rate += step * (_RATE_QUANTILE if up else _RATE_QUANTILE - 1.0)

    def note_busy(self, *, waiting: bool, since_s: float) -> None:
        """Note whether requests wait at an endpoint, as it or other routers tell."""
        self.busy.note(waiting=waiting, since_s=max(0.0, since_s), endpoints=len(self._members))

    def report(self, state: EndpointState, load: EngineLoad, now: float) -> None:
        """Take an engine's report; what exceeds own requests is other routers'."""
        since = now - state.reported_at
        note_crowd(state, load, max(0.0, since))
        self.note_busy(waiting=load.waiting > 0, since_s=since)
        if state.reported is None or not 0.0 < since < math.inf:
            state.interval_s = state.interval_s or 1.0
        else:
            state.interval_s += 0.3 * (min(60.0, max(0.05, since)) - state.interval_s)
        unanswered = len(state.open) + sum(now < loan.due_at for loan in state.silent.values())
        waiting = load.waiting - unanswered
        foreign_s = waiting * self.mean_uncached / self.rate
        requests = load.running + load.waiting - state.in_flight
        state.foreign_s, state.foreign_requests = max(0.0, foreign_s), max(0, requests)
        state.reported, state.reported_at = load, now
        others = state.others
        if others is not None and others.fresh(now):
            # The two were counted at different times: only the mean of their difference tells.
            outside_s = foreign_s - others.tokens_left(self.rate, now) / self.rate
            state.outside_s += _OUTSIDE_STEP * (outside_s - state.outside_s)
            more = requests - others.requests - state.outside_requests
            state.outside_requests += _OUTSIDE_STEP * more


def _pressure(state: EndpointState, scale: float) -> float:
    if state.sent <= 0.0:
        return 0.0
    return state.sent * scale / (1.0 - min(_BUSIEST, state.work * scale))
