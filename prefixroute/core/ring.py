"""A consistent-hashing ring with weighted virtual nodes, immutable and replaced whole.

Source: Karger et al., "Consistent Hashing and Random Trees" (STOC 1997). A virtual node's place
depends on its member's id alone, so a ring does not know the order in which members were given,
and members that stay keep all their virtual nodes when others come or go.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from prefixroute.core.circle import Circle

__all__ = ["Ring"]

_FULL_WEIGHT: Final = 16.0
"""Largest weight whose virtual nodes are not thinned out, so that weights of 80 (GB) stay cheap."""

_KEYS: Final = 2**64

_REMEMBERED: Final = 262_144
"""Indices in remembered orders, over all of them."""

_MOST_ORDERS: Final = 4096


class Ring:
    """Members on a circle of 64-bit keys.

    Args:
        members: ``(id, weight)`` of each; ids are unique. Weight 0 has no place on the ring.
        virtual_nodes: Virtual nodes for one unit of weight.
        seed: Rings of different seeds place differently.
        before: A ring of the same seed and virtual nodes: where most of its members stay, the new
            one costs what has changed; it is the same as one made of nothing.

    Members are named by their index in ``members`` from here on.
    """

    __slots__ = ("_circle", "_indices", "_most_orders", "_orders", "members", "placed")

    def __init__(
        self,
        members: Sequence[tuple[str, float]],
        *,
        virtual_nodes: int = 1024,
        seed: int = 0,
        before: Ring | None = None,
    ) -> None:
        self.members = tuple(members)
        unit = _unit(virtual_nodes, max((weight for _, weight in members), default=1.0))
        counts = {i: max(1, round(weight * unit)) for i, weight in members if weight > 0}
        base = None if before is None else before._circle  # noqa: SLF001 - the same class
        self._circle: Circle = Circle(counts, seed, base)
        self.placed = len(counts)
        indices = {member_id: index for index, (member_id, _) in enumerate(self.members)}
        self._indices = {slot: indices[member_id] for member_id, slot in self._circle.slots.items()}
        self._most_orders = min(_MOST_ORDERS, _REMEMBERED // max(1, self.placed))
        self._orders: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._circle.keys)

    def arcs(self) -> Iterator[tuple[int, int]]:
        """Yield the member of each virtual node, and to how many keys it is the first met.

        Ascending from the first virtual node, whose keys begin behind the last one.
        """
        keys, indices = self._circle.keys, self._indices
        before = keys[-1] - _KEYS if keys else 0
        for key, slot in zip(keys, self._circle.owners, strict=True):
            yield indices[slot], key - before
            before = key

    def walk(self, key: int) -> Iterator[int]:
        """Yield each member on the ring once, in the order met going up from ``key``."""
        return iter(self._walked(bisect_right(self._circle.keys, key)))

    def order(self, key: int) -> tuple[int, ...]:
        """Return the whole of :meth:`walk`; those of the last keys are remembered."""
        at = bisect_right(self._circle.keys, key)
        found = self._orders.get(at)
        if found is None:
            found = self._walked(at)
            if len(self._orders) >= self._most_orders:
                self._orders = {}  # bounded; a racing thread at worst works one out again
            self._orders[at] = found
        return found

    def nearest(self, key: int, count: int) -> tuple[int, ...]:
        """Return the first ``count`` of :meth:`walk`; of a large ring faster than all of them."""
        if self.placed <= count:
            return self.order(key)
        return self._walked(bisect_right(self._circle.keys, key), count)[:count]

    def _walked(self, at: int, count: int | None = None) -> tuple[int, ...]:
        """Return the members in the order met from this virtual node on: all, or ``count``."""
        count = self.placed if count is None else count
        owners, step = self._circle.owners, 4 * count
        met: dict[int, None] = {}
        while len(met) < count:  # for all, ln(N) + 0.6 virtual nodes for each member on average
            met.update(dict.fromkeys(owners[at : at + step]))
            at = at + step if at + step < len(owners) else 0
        indices = self._indices
        return tuple([indices[slot] for slot in met])


def _unit(virtual_nodes: int, largest_weight: float) -> float:
    """Virtual nodes per unit of weight: halved until the heaviest member has not too many."""
    if largest_weight <= _FULL_WEIGHT:
        return virtual_nodes
    return virtual_nodes / 2.0 ** math.ceil(math.log2(largest_weight / _FULL_WEIGHT))
