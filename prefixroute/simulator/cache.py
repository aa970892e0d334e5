"""A replica's prefix cache: blocks of prompts, least recently used ones evicted first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from prefixroute.core.prompt import Prompt
from prefixroute.simulator.traces import Trace

__all__ = ["BlockCache", "Cache", "hit_rate", "pooled_hit_rate"]


class Cache(Protocol):
    """What a replica remembers of prompts."""

    def take(self, prompt: Prompt, tokens: int, reply_tokens: int) -> int:
        """Return how many leading tokens of a prompt are held, and hold it from now on."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class BlockCache:
    """Blocks that were computed, up to a number of them.

    A block counts as a hit only behind the blocks before it. Of one prompt the last block is
    evicted first, as in the engines, so that no block outlives what it continues. Replies are not
    held: a trace of blocks does not say which of the next prompt's blocks they became.

    Args:
        max_blocks: Size of the cache, blocks.
        block_tokens: Size of a block, tokens; a longer stretch of a prompt counts as several.
    """

    __slots__ = ("_block_tokens", "_blocks", "_max_blocks", "_used")

    def __init__(self, max_blocks: int, block_tokens: int) -> None:
        self._max_blocks, self._block_tokens = max_blocks, block_tokens
        self._blocks: OrderedDict[int, int] = OrderedDict()  # block hash -> blocks that it fills
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._used = 0

    def take(self, prompt: Prompt, tokens: int, reply_tokens: int = 0) -> int:  # noqa: ARG002
        """Return how many leading tokens of a prompt are held, and hold all of it from now on.

        Args:
            prompt: The prompt.
            tokens: Its length; the last token is always computed.
            reply_tokens: Length of the reply, which is not held.
        """
        blocks, held = self._blocks, 0
        for block in prompt.chain:
            if block not in blocks:
                break
            held += 1
        self._hold(prompt, held)
        if not held:
            return 0
        cached = prompt.ends[held - 1]
        if prompt.tokens_per_unit != 1.0:
            cached = int(cached * prompt.tokens_per_unit)
        return max(0, min(cached, tokens - 1))

    def _hold(self, prompt: Prompt, held: int) -> None:
        chain, ends, blocks = prompt.chain, prompt.ends, self._blocks
        whole = self._block_tokens / prompt.tokens_per_unit  # a block's size in units
        for at in range(len(chain) - 1, held - 1, -1):
            block = chain[at]
            if block in blocks:
                blocks.move_to_end(block)
                continue
            units = ends[at] - (ends[at - 1] if at else 0)
            blocks[block] = size = 1 if units <= whole else -int(-units // whole)
            self._used += size
        for at in range(held - 1, -1, -1):
            blocks.move_to_end(chain[at])
        while self._used > self._max_blocks:
            _, size = blocks.popitem(last=False)
            self._used -= size


def pooled_hit_rate(trace: Trace, cache_blocks: int) -> float:
    """Return the token hit rate of one cache of this size that every request goes through.

    No placement on replicas that have as many blocks together can be expected to find more.
    """
    return hit_rate(trace, BlockCache(cache_blocks, trace.block_tokens))


def hit_rate(trace: Trace, cache: Cache) -> float:
    """Return the share of prompt tokens found in one cache that every request goes through."""
    cached = total = 0
    for request in trace.requests:
        prompt, tokens = request.content, request.tokens
        cached += cache.take(prompt, tokens, request.output_tokens)
        total += tokens
    return cached / total if total else 0.0
