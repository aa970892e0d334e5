"""How hot is a prefix? Its decayed share of the requests that this router has seen.

Counts decay exponentially. They are kept as forward decay does it (Cormode et al., "Forward Decay",
ICDE 2009): a request weighs 2^(t / half-life) when it comes, and a count divided by the weight of
now is the decayed one, so nothing has to be touched while time passes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from operator import add
from typing import Final

import msgspec
from msgspec import field

from prefixroute.core.bounded import BoundedDict

__all__ = ["Hot", "Traffic", "share"]

_RESCALE_AT: Final = 2.0**512

_ROUNDING: Final = 1.0 + 1e-9
"""Sums of the same weights in another order."""

_GROUPS: Final = 4096
"""Groups whose totals are remembered: models and tiers come and go with the endpoints."""


_LOOKED_AT: Final = 2048
"""Prefixes among which the hottest are looked for, so that this never takes long."""

_REPEATED: Final = 1.5
"""Decayed requests: a prefix seen once is not worth telling."""


class Hot(msgspec.Struct, frozen=True, kw_only=True):
    """What a router has counted of the prefixes that are hot; names of groups and numbers alone.

    Args:
        half_life_s: After this time a request counts for half, seconds.
        totals: Decayed requests of each group.
        prefixes: ``(prefix, decayed requests with it, endpoints it was given)``.
        tokens: Sizes of those of them that have been given several endpoints, tokens.
    """

    half_life_s: float = 0.0
    totals: Mapping[Hashable, float] = field(default_factory=dict)
    prefixes: Sequence[tuple[int, float, int]] = ()
    tokens: Mapping[int, int] = field(default_factory=dict)


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

    __slots__ = (
        "_counts", "_ends", "_half_life_s", "_now", "_others", "_others_spreads", "_others_totals",
        "_sizes", "_spreads", "_start", "_totals", "_weight",
    )  # fmt: skip

    def __init__(self, *, half_life_s: float, max_prefixes: int) -> None:
        self._half_life_s = half_life_s
        self._counts: BoundedDict[int, float] = BoundedDict(max_prefixes)
        self._ends: BoundedDict[int, float] = BoundedDict(max(2, max_prefixes // 8))
        self._spreads: BoundedDict[int, int] = BoundedDict(max(2, max_prefixes // 8))
        self._sizes: BoundedDict[int, int] = BoundedDict(max(2, max_prefixes // 8))
        self._totals: BoundedDict[Hashable, float] = BoundedDict(_GROUPS)
        self._others: dict[int, float] = {}  # of other routers, where they tell
        self._others_spreads: dict[int, int] = {}
        self._others_totals: dict[Hashable, float] = {}
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
        self._ends.transform(lambda count: count / weight)
        self._totals.transform(lambda total: total / weight)
        self._others = {prefix: count / weight for prefix, count in self._others.items()}
        self._others_totals = {group: n / weight for group, n in self._others_totals.items()}

    def count(self, prefix: int) -> float:
        """Return the decayed count of requests with this prefix."""
        stored = self._counts.peek(prefix) or 0.0
        if self._others:
            stored += self._others.get(prefix, 0.0)
        return stored / self._weight

    def told(self, prefix: int) -> float:
        """Return the decayed count of those of other routers, as far as they tell."""
        return self._others.get(prefix, 0.0) / self._weight

    def branch(self, chain: Sequence[int], blocks: int) -> int | None:
        """Return after how many blocks a request left this chain; ``None``: none did.

        One that ended there has not: the next turn of a conversation goes on where the last ended.
        Nor has one that went on beyond all of this chain, as when a turn is asked for again.

        Args:
            chain: A prompt's prefixes, in order; it may have been counted or not.
            blocks: The least to be returned, 1 or more.
        """
        peek, ended = self._counts.peek, self._ends.peek
        count = peek(chain[blocks - 1])
        for at in range(blocks, len(chain)):
            if count is None:
                return None
            went_on = peek(chain[at])
            if count > ((went_on or 0.0) + (ended(chain[at - 1]) or 0.0)) * _ROUNDING:
                return at
            count = went_on
        return None

    def total(self, group: Hashable) -> float:
        """Return the decayed count of all requests of a group (those with one eligible set)."""
        own, others = self._totals.peek(group) or 0.0, self._others_totals.get(group, 0.0)
        return (own + others) / self._weight

    def record(self, chain: Sequence[int], group: Hashable, blocks: int | None = None) -> None:
        """Count one request of ``group`` with these prefixes, at the time last advanced to.

        Args:
            chain: Its prefixes.
            group: Of requests with one eligible set.
            blocks: How many of them a request that continues this one has too; ``None``: all.
        """
        weight = self._weight
        self._totals.put(group, (self._totals.get(group) or 0.0) + weight)
        self._counts.merge(chain, weight, add)
        self._ended(chain[-1:], weight)
        if blocks is not None and blocks < len(chain):  # the same again, or one that goes on
            self._ended(chain[blocks - 1 : blocks], weight)

    def _ended(self, last: Sequence[int], weight: float) -> None:
        for prefix in last:
            self._ends.put(prefix, (self._ends.peek(prefix) or 0.0) + weight)

    def spread(self, prefix: int) -> int:
        """Return how many endpoints the prefix was last given (1: it was not hot)."""
        return self._spreads.peek(prefix) or self._others_spreads.get(prefix, 1)

    def set_spread(self, prefix: int, spread: int) -> None:
        """Remember how many endpoints the prefix was given."""
        if spread > 1:
            self._spreads.put(prefix, spread)
        else:
            if self._spreads.peek(prefix) is not None:
                self._spreads.pop(prefix)
            self._others_spreads.pop(prefix, None)

    def sized(self, chain: Sequence[int]) -> int:
        """Return how many leading prefixes have a size already."""
        return len(self._sizes.leading(chain))

    def set_size(self, prefix: int, tokens: float) -> None:
        """Remember how long a prefix is, tokens: for people alone."""
        self._sizes.put(prefix, round(tokens))

    def hot(self) -> Hot:
        """Return own counts of prefixes that may be hot: given several endpoints, or seen twice.

        Looks at the newest few thousand alone, and does not sort them, so as to be quick.
        """
        weight, peek = self._weight, self._counts.peek
        spreads = dict(islice(self._spreads.items(), _LOOKED_AT))
        least = _REPEATED * weight
        newest = islice(self._counts.items(), _LOOKED_AT)
        found = {prefix: stored for prefix, stored in newest if stored >= least}
        for prefix in spreads:
            found[prefix] = peek(prefix) or 0.0
        sizes = ((prefix, self._sizes.peek(prefix)) for prefix in found)
        return Hot(
            half_life_s=self._half_life_s,
            totals={group: total / weight for group, total in self._totals.items()},
            prefixes=[(p, stored / weight, spreads.get(p, 1)) for p, stored in found.items()],
            tokens={prefix: size for prefix, size in sizes if size is not None},
        )

    def set_others(self, hot: Hot) -> None:
        """Count what other routers have seen beside what this one has, in place of the last time.

        It decays like own counts, from the time last advanced to.
        """
        weight = self._weight
        self._others = {prefix: count * weight for prefix, count, _ in hot.prefixes}
        self._others_spreads = {prefix: spread for prefix, _, spread in hot.prefixes if spread > 1}
        self._others_totals = {group: total * weight for group, total in hot.totals.items()}
