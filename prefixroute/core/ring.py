"""A consistent-hashing ring with weighted virtual nodes, immutable and replaced whole.

Source: Karger et al., "Consistent Hashing and Random Trees" (STOC 1997). A virtual node's place
depends on its member's id alone, so a ring does not know the order in which members were given,
and members that stay keep all their virtual nodes when others come or go.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from prefixroute.core.hashing import RING_SEED, digest64

__all__ = ["Ring"]

_FULL_WEIGHT: Final = 16.0
"""Largest weight whose virtual nodes are not thinned out, so that weights of 80 (GB) stay cheap."""

_MASK_32: Final = 0xFFFF_FFFF

_REMEMBERED_ORDERS: Final = 4096
_REMEMBERED_MEMBERS: Final = 64


class Ring:
    """Members on a circle of 64-bit keys.

    Args:
        members: ``(id, weight)`` of each; ids are unique. Weight 0 has no place on the ring.
        virtual_nodes: Virtual nodes for one unit of weight.
        seed: Rings of different seeds place differently.

    Members are named by their index in ``members`` from here on.
    """

    __slots__ = ("_keys", "_orders", "_owners", "members", "placed")

    def __init__(
        self, members: Sequence[tuple[str, float]], *, virtual_nodes: int = 1024, seed: int = 0
    ) -> None:
        self.members = tuple(members)
        unit = _unit(virtual_nodes, max((weight for _, weight in members), default=1.0))
        # Equal points are ordered by id, so that even a collision does not depend on the list.
        points = sorted(
            (point, member_id, index)
            for index, (member_id, weight) in enumerate(self.members)
            if weight > 0
            for point in _points(member_id, max(1, round(weight * unit)), seed)
        )
        self._keys = [point for point, _, _ in points]
        self._owners = [index for _, _, index in points]
        self.placed = sum(1 for _, weight in self.members if weight > 0)
        self._orders: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def walk(self, key: int) -> Iterator[int]:
        """Yield each member on the ring once, in the order met going up from ``key``."""
        owners, count = self._owners, len(self._owners)
        start = bisect_right(self._keys, key)
        seen: set[int] = set()
        for step in range(count):
            at = start + step
            owner = owners[at if at < count else at - count]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == self.placed:
                    return

    def order(self, key: int) -> tuple[int, ...]:
        """Return the whole of :meth:`walk`; remembered for small rings."""
        at = bisect_right(self._keys, key)
        found = self._orders.get(at)
        if found is None:
            found = tuple(self.walk(key))
            if len(self.members) <= _REMEMBERED_MEMBERS:
                if len(self._orders) >= _REMEMBERED_ORDERS:
                    self._orders = {}  # bounded; a racing thread at worst works one out again
                self._orders[at] = found
        return found


def _unit(virtual_nodes: int, largest_weight: float) -> float:
    """Virtual nodes per unit of weight: halved until the heaviest member has not too many."""
    if largest_weight <= _FULL_WEIGHT:
        return virtual_nodes
    return virtual_nodes / 2.0 ** math.ceil(math.log2(largest_weight / _FULL_WEIGHT))


@lru_cache(maxsize=512)
def _points(member_id: str, count: int, seed: int) -> array[int]:
    """Return a member's virtual nodes; remembered, for most members outlive a change."""
    prefix = member_id.encode("utf-8", "surrogatepass") + b"\x00"
    ring_seed = RING_SEED ^ _fold(seed)
    return array("Q", (digest64(prefix + i.to_bytes(4, "little"), ring_seed) for i in range(count)))


def _fold(seed: int) -> int:
    """Return a seed of any size as 32 bits; small ones stay themselves."""
    if 0 <= seed <= _MASK_32:
        return seed
    return digest64(seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)) & _MASK_32
