"""When a call may be tried again: the ``Failover`` settings and the retry budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prefixroute.errors import ConfigurationError

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = ["Failover", "RetryBudget"]

DEFAULT_STATUSES: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """What is done when an endpoint cannot be reached or answers that it cannot serve now.

    Args:
        max_attempts: The most distinct endpoints that one call tries.
        statuses: Statuses that send a call to the next candidate.
        replay_sent: Also try elsewhere what may have reached an endpoint already: a generation may
            then run, and be paid for, twice.
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
    stop: Callable[[RetryCallState], bool] | None = None
    wait: Callable[[RetryCallState], float] | None = None
    queue_timeout_s: float = 60.0
    budget_share: float = 0.2
    budget_per_minute: float = 10.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigurationError(
                f"Failover(max_attempts={self.max_attempts!r}) must be an int, 1 or greater; "
                "1 never tries elsewhere"
            )
        object.__setattr__(self, "statuses", frozenset(self.statuses))
        for status in self.statuses:
            if type(status) is not int or not 400 <= status <= 599:
                raise ConfigurationError(
                    f"Failover(statuses=...{status!r}...) must hold HTTP error statuses, 400-599"
                )
        for name in ("queue_timeout_s", "budget_share", "budget_per_minute"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(
                    f"Failover({name}={value!r}) must be a finite number, 0 or greater"
                )


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
