"""A replica's prefix cache: blocks, least recently used ones evicted first."""

from __future__ import annotations

from collections import OrderedDict

from prefixroute.core.prompt import Prompt

__all__ = ["BlockCache"]


class BlockCache:
    """Blocks of prompts that were computed, up to a number of them.

    A block is held whole and only counts as a hit behind the blocks before it. Of one prompt the
    last block goes first, as in the engines, so that no block outlives what it continues.

    Args:
        max_blocks: Size of the cache, blocks.
        block_tokens: Size of a block, tokens; a longer stretch of a prompt counts as several.
    """

    __slots__ = ("_block_tokens", "_blocks", "_max_blocks", "_used")

    def __init__(self, max_blocks: int, block_tokens: int) -> None:
        self._max_blocks, self._block_tokens = max_blocks, block_tokens
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._used = 0

    def take(self, prompt: Prompt) -> int:
        """Return how many of the prompt's leading tokens are held, and hold all of them now."""
        chain, blocks = prompt.chain, self._blocks
        held = 0
        for block in chain:
            if block not in blocks:
                break
            held += 1
        self._hold(prompt, held)
        return round(prompt.ends[held - 1] * prompt.tokens_per_unit) if held else 0

    def _hold(self, prompt: Prompt, held: int) -> None:
        chain, blocks = prompt.chain, self._blocks
        whole = self._block_tokens / prompt.tokens_per_unit  # a block's size, in units
        for at in range(len(chain) - 1, -1, -1):
            block = chain[at]
            if at < held or block in blocks:
                blocks.move_to_end(block)
                continue
            units = prompt.ends[at] - (prompt.ends[at - 1] if at else 0)
            size = 1 if units <= whole else -int(-units // whole)
            blocks[block] = size
            self._used += size
        while self._used > self._max_blocks:
            _, size = blocks.popitem(last=False)
            self._used -= size
