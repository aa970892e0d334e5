"""What each endpoint is believed to hold: block hash -> the endpoints it was sent to.

One bounded table. Endpoints are bits of an int, so that walking a chain is a few ``&`` and an
endpoint that leaves is forgotten by dropping its bit from the mask of the living.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import or_
from typing import Final

from prefixroute.core.bounded import BoundedDict

__all__ = ["PrefixMap"]

_SWEEP_AFTER: Final = 64
"""Dead bits that are let stand before one sweep takes them all out."""


class PrefixMap:
    """Believed contents of the endpoints' caches.

    Args:
        max_prefixes: The most block hashes that are remembered.
    """

    __slots__ = ("_alive", "_dead", "_free", "_masks", "_next")

    def __init__(self, max_prefixes: int) -> None:
        self._masks: BoundedDict[int, int] = BoundedDict(max_prefixes)
        self._alive = self._dead = self._next = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._masks)

    def join(self) -> int:
        """Return a bit for an endpoint that holds nothing yet."""
        if self._free:
            bit = self._free.pop()
        else:
            bit = 1 << self._next
            self._next += 1
        self._alive |= bit
        return bit

    def leave(self, bit: int) -> None:
        """Forget all that the endpoint with this bit held; the bit is not to be used again."""
        self._alive &= ~bit
        self._dead |= bit
        if self._dead.bit_count() > _SWEEP_AFTER:
            self._sweep()

    def _sweep(self) -> None:
        living = ~self._dead
        self._masks.transform(lambda mask: mask & living or None)
        self._free += [1 << i for i in range(self._next) if self._dead >> i & 1]
        self._dead = 0

    def add(self, chain: Sequence[int], bit: int) -> None:
        """Note that these blocks were sent to the endpoint."""
        self._masks.merge(chain, bit, or_)

    def discard(self, chain: Sequence[int], bit: int) -> None:
        """Note that the endpoint does not hold these blocks."""
        for prefix in chain:
            mask = self._masks.peek(prefix)
            if mask is not None and mask & bit:
                rest = mask & ~bit
                if rest:
                    self._masks.put(prefix, rest)
                else:
                    self._masks.pop(prefix)

    def holders(self, chain: Sequence[int], bits: int) -> list[tuple[int, int]]:
        """Return ``(blocks, bits)``: who holds how many leading blocks, most blocks last.

        Args:
            chain: The prompt's block hashes.
            bits: The endpoints asked about; those that hold nothing are not returned.
        """
        alive = self._alive & bits
        found: list[tuple[int, int]] = []
        masks = self._masks.leading(chain)
        for blocks, mask in enumerate(masks):
            still = alive & mask
            if still != alive:
                if blocks and alive & ~still:
                    found.append((blocks, alive & ~still))
                alive = still
                if not alive:
                    return found
        if masks and alive:
            found.append((len(masks), alive))
        return found
