"""When a call may be tried again: the ``Failover`` settings and the retry budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prefixroute.core.checks import check_int, check_number, refusal

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = ["Failover", "RetryBudget", "Rounds"]

DEFAULT_STATUSES: Final = frozenset({429, 502, 503, 504})

_LONGEST_WAIT_S: Final = 60.0
"""Between rounds, whatever a Retry-After says; the strategies may wait longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """What is done when an endpoint cannot be reached or answers that it cannot serve now.

    Args:
        max_attempts: The most distinct endpoints that one call tries.
        statuses: Statuses that send a call to the next candidate.
        replay_sent: Also try elsewhere what may have reached an endpoint already: a generation may
            then run, and be paid for, twice.
        hedge_after_s: When the first byte of an answer is this late, seconds, another endpoint is
            asked too; the first to answer wins and the other is cancelled. Needs ``replay_sent``.
            ``None``: never.
        deadline_s: How long a call may take until the headers of its answer, seconds: its
            attempts, its waits and its time in the queue together. Attempts are cut to it, and
            none begins after it. ``None``: as long as its attempts take.
        stop: A tenacity stop strategy for further rounds over the candidates, asked after each
            round; ``None``: one round.
        wait: A tenacity wait strategy between rounds; ``None``: no wait beyond Retry-After.
        queue_timeout_s: How long a call waits when every endpoint is at its ``max_in_flight``,
            seconds.
        budget_share: Tries beyond the first that are allowed, as a share of all calls...
        budget_per_minute: ...and beside that, a minute. An outage must not multiply the traffic.

    Raises:
        ConfigurationError: A value out of its range.
    """

    max_attempts: int = 3
    statuses: Collection[int] = field(default=DEFAULT_STATUSES)
    replay_sent: bool = False
    hedge_after_s: float | None = None
    deadline_s: float | None = None
    stop: Callable[[RetryCallState], bool] | None = None
    wait: Callable[[RetryCallState], float] | None = None
    queue_timeout_s: float = 60.0
    budget_share: float = 0.2
    budget_per_minute: float = 10.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("Failover", "max_attempts", self.max_attempts, 1)
        object.__setattr__(self, "statuses", self._checked_statuses())
        for name in ("queue_timeout_s", "budget_share", "budget_per_minute"):
            value = check_number("Failover", name, getattr(self, name))
            object.__setattr__(self, name, value)
        for name in ("stop", "wait"):
            strategy = getattr(self, name)
            if strategy is not None and (not callable(strategy) or isinstance(strategy, type)):
                raise refusal(
                    "Failover", name, strategy, f"a strategy of tenacity's, {name}_..., or None"
                )
        if type(self.replay_sent) is not bool:
            raise refusal("Failover", "replay_sent", self.replay_sent, "True or False")
        for name in ("hedge_after_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None:
                hint = "seconds, or None for none"
                value = check_number("Failover", name, value, above=True, hint=hint)
                object.__setattr__(self, name, value)
        if self.hedge_after_s is not None and not self.replay_sent:
            rule = (
                "None while replay_sent=False: a hedge sends a request that may be running "
                "already once more; allow that with replay_sent=True"
            )
            raise refusal("Failover", "hedge_after_s", self.hedge_after_s, rule)

    def _checked_statuses(self) -> frozenset[int]:
        rule = "a collection of HTTP error statuses, 400-599, such as {429, 503}"
        given: object = self.statuses
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise refusal("Failover", "statuses", given, rule)
        statuses = list(given)
        if not all(isinstance(status, int) and 400 <= status <= 599 for status in statuses):
            raise refusal("Failover", "statuses", statuses, rule)
        return frozenset(int(status) for status in statuses)


class RetryBudget:
    """Tries beyond the first that all calls together may still make.

    A token bucket: each call brings ``share`` of a try, and time brings ``per_minute``; what is not
    used in a minute is lost. Not thread-safe; used under the router's lock.

    Args:
        share: Tries allowed per call.
        per_minute: Tries allowed beside that, a minute.
    """

    __slots__ = ("_at", "_brought", "_per_minute", "_share", "_tries")

    def __init__(self, share: float, per_minute: float) -> None:
        self._share, self._per_minute = share, per_minute
        self._tries = per_minute
        self._brought = 0.0  # by calls; decays within a minute, and caps what may be saved
        self._at: float | None = None

    def _advance(self, now: float) -> None:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._brought *= math.exp(-passed / 60.0)
        cap = self._per_minute + self._brought
        self._tries = min(cap, self._tries + self._per_minute * passed / 60.0)

    def call(self, now: float) -> None:
        """Note a call."""
        self._advance(now)
        self._brought += self._share
        self._tries += self._share

    def take(self, now: float) -> bool:
        """Take one try out of the budget; ``False``: it is spent."""
        self._advance(now)
        if self._tries < 1.0:
            return False
        self._tries -= 1.0
        return True


class Rounds:
    """The rounds over the candidates of one call, and the waits between them.

    Args:
        failover: Has the strategies.
        started: When the call began, seconds.
        once: There is one attempt, and so no further round.

    Attributes:
        count: Waits so far.
        may_follow: Whether a further round is possible at all.
    """

    __slots__ = ("_failover", "_started", "count", "may_follow")

    def __init__(self, failover: Failover, started: float, *, once: bool) -> None:
        self._failover, self._started = failover, started
        self.count = 0
        self.may_follow = not once and failover.stop is not None

    def next_in_s(
        self,
        now: float,
        error: Exception | None,
        asked_s: float | None,
        left_s: float | None = None,
    ) -> float | None:
        """Return how long to wait before the next round, seconds; ``None``: stop here.

        Args:
            now: Seconds.
            error: What the round ended with, for strategies that look at it.
            asked_s: What the last refusal's Retry-After asks for, seconds.
            left_s: What the call's deadline leaves, seconds: nothing could begin after a wait that
                takes it all, so that one is not begun. ``None``: no deadline.
        """
        from tenacity import RetryCallState  # noqa: PLC0415 - only who waits pays for it

        failover = self._failover
        if failover.stop is None:
            return None
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        if error is not None:
            state.set_exception((type(error), error, error.__traceback__))
        else:
            state.set_result(None)
        state.attempt_number = self.count + 1
        state.start_time, state.outcome_timestamp = self._started, now
        seconds = failover.wait(state) if failover.wait is not None else 0.0
        seconds = max(seconds, min(_LONGEST_WAIT_S, asked_s or 0.0))
        state.upcoming_sleep = seconds
        if failover.stop(state) or (left_s is not None and seconds >= left_s):
            return None
        self.count += 1
        return seconds
