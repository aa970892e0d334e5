"""How hot is a prefix? Its decayed share of the requests that this router has seen.

Counts decay exponentially. They are kept as forward decay does it (Cormode et al., "Forward Decay",
ICDE 2009): a request weighs 2^(t / half-life) when it comes, and a count divided by the weight of
now is the decayed one, so nothing has to be touched while time passes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Final

from prefixroute.core.bounded import BoundedDict

__all__ = ["Traffic", "share"]

_RESCALE_AT: Final = 2.0**512

_GROUPS: Final = 4096
"""Groups whose totals are remembered: models and tiers come and go with the endpoints."""


def share(count: float, total: float) -> float:
    """Return a prefix's share of the traffic, as a lower confidence bound.

    One standard error of a binomial count is taken off and one request is added to the total, so
    one sighting among others proves nothing, while "in every request so far" is hot at once.

    Args:
        count: Decayed requests with the prefix.
        total: Decayed requests in all.
    """
    if total <= 0.0:
        return 0.0
    count = min(count, total)  # a prefix may have been counted before its group was
    frequency = count / total
    return max(0.0, count - math.sqrt(count * (1.0 - frequency))) / (total + 1.0)


class Traffic:
    """Decayed counts of prefixes, bounded in size.

    Args:
        half_life_s: After this time a request counts for half, seconds.
        max_prefixes: The most prefixes that are counted.
    """

    __slots__ = ("_counts", "_half_life_s", "_now", "_spreads", "_start", "_totals", "_weight")

    def __init__(self, *, half_life_s: float, max_prefixes: int) -> None:
        self._half_life_s = half_life_s
        self._counts: BoundedDict[int, float] = BoundedDict(max_prefixes)
        self._spreads: BoundedDict[int, int] = BoundedDict(max(2, max_prefixes // 8))
        self._totals: BoundedDict[Hashable, float] = BoundedDict(_GROUPS)
        self._start: float | None = None
        self._now = -math.inf
        self._weight = 1.0

    def __len__(self) -> int:
        return len(self._counts)

    def advance(self, now: float) -> None:
        """Let counts decay up to ``now``, seconds; a clock that steps back changes nothing."""
        if self._start is None:
            self._start = self._now = now
        if now <= self._now:
            return
        self._now = now
        self._weight = 2.0 ** min(1023.0, (now - self._start) / self._half_life_s)
        if self._weight > _RESCALE_AT:
            self._rescale()

    def _rescale(self) -> None:
        """Start anew with a weight of 1: once in some 500 half-lives."""
        weight, self._weight, self._start = self._weight, 1.0, self._now
        self._counts.transform(lambda count: count / weight)
        self._totals.transform(lambda total: total / weight)

    def count(self, prefix: int) -> float:
        """Return the decayed count of requests with this prefix."""
        stored = self._counts.peek(prefix)
        return stored / self._weight if stored is not None else 0.0

    def total(self, group: Hashable) -> float:
        """Return the decayed count of all requests of a group (those with one eligible set)."""
        return (self._totals.peek(group) or 0.0) / self._weight

    def record(self, chain: Iterable[int], group: Hashable) -> None:
        """Count one request of ``group`` with these prefixes, at the time last advanced to."""
        weight, counts = self._weight, self._counts
        self._totals.put(group, (self._totals.get(group) or 0.0) + weight)
        for prefix in chain:
            stored = counts.get(prefix)
            counts.put(prefix, weight if stored is None else stored + weight)

    def spread(self, prefix: int) -> int:
        """Return how many endpoints the prefix was last given (1: it was not hot)."""
        return self._spreads.peek(prefix) or 1

    def set_spread(self, prefix: int, spread: int) -> None:
        """Remember how many endpoints the prefix was given."""
        if spread > 1:
            self._spreads.put(prefix, spread)
        elif self._spreads.peek(prefix) is not None:
            self._spreads.pop(prefix)
