"""The prefix cache of a simulated engine: whole blocks, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

__all__ = ["BlockCache", "extend_chain"]

_DIGEST_BYTES = 8


class BlockCache:
    """A bounded set of blocks, each named by a hash of itself and of all that precedes it.

    A block is never kept without the blocks before it, because a chain is touched from its end to
    its start: what starts it is always the more recent. So whatever is found is a prefix, and what
    is evicted first is the far end of the chain that was used least recently.
    """

    __slots__ = ("_capacity_blocks", "_owners")

    def __init__(self, capacity_blocks: int) -> None:
        """Make an empty cache.

        Args:
            capacity_blocks: How many blocks it holds; 0 holds nothing.
        """
        self._capacity_blocks = capacity_blocks
        self._owners: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def match(self, chain: Sequence[bytes]) -> int:
        """Count the blocks of the longest prefix of a chain that is held; nothing is touched."""
        for position, block in enumerate(chain):
            if block not in self._owners:
                return position
        return len(chain)

    def touch(self, chain: Sequence[bytes], owner: int) -> None:
        """Make a chain the most recently used, insert what is missing and evict what is over.

        Args:
            chain: Block hashes from the start of the prompt. Of a chain longer than the whole
                cache only the start is kept.
            owner: Who used it; `discard` takes back only what nobody else has used since.
        """
        owners = self._owners
        for block in reversed(chain[: self._capacity_blocks]):
            owners[block] = owner
            owners.move_to_end(block)
        while len(owners) > self._capacity_blocks:
            owners.popitem(last=False)

    def discard(self, blocks: Sequence[bytes], owner: int) -> None:
        """Forget those of the blocks that `owner` was the last to use."""
        for block in blocks:
            if self._owners.get(block) == owner:
                del self._owners[block]

    def clear(self) -> None:
        """Forget everything."""
        self._owners.clear()


def extend_chain(parent: bytes, data: bytes, block_bytes: int) -> list[bytes]:
    """Hash the whole blocks of `data`, each chained to the one before it.

    Args:
        parent: The hash that the first block is chained to; any bytes for the start of a prompt.
        data: What to cut into blocks; a last partial block is left out.
        block_bytes: Size of a block.

    Returns:
        One hash for each whole block.
    """
    chain: list[bytes] = []
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        block = data[start : start + block_bytes]
        parent = blake2b(parent + block, digest_size=_DIGEST_BYTES).digest()
        chain.append(parent)
    return chain
