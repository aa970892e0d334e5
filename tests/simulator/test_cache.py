from __future__ import annotations

import random

import pytest

from prefixroute.core.prompt import Prompt
from prefixroute.simulator import block_prompt, pooled_hit_rate
from prefixroute.simulator.cache import BlockCache

from .support import BLOCK, request, trace


def take(cache: BlockCache, *blocks: int, tokens: int | None = None) -> int:
    prompt = block_prompt(blocks, block_tokens=BLOCK, tokens=tokens)
    return cache.take(prompt, prompt.size)


def test_what_was_computed_is_found_as_far_as_it_is_a_prefix() -> None:
    cache = BlockCache(10, BLOCK)
    assert take(cache, 1, 2, 3) == 0
    assert take(cache, 1, 2, 4) == 200
    assert take(cache, 2, 3) == 0  # the same blocks elsewhere are others
    assert len(cache) == 6


def test_the_last_token_is_always_computed() -> None:
    cache = BlockCache(10, BLOCK)
    take(cache, 1, 2, tokens=150)
    assert take(cache, 1, 2, tokens=150) == 149


def test_the_least_recently_used_goes_and_of_a_prompt_the_last_block() -> None:
    cache = BlockCache(4, BLOCK)
    take(cache, 1, 2)
    take(cache, 5, 6)
    take(cache, 1)
    take(cache, 9)  # the end of the first prompt was not used for longest
    assert take(cache, 5, 6) == 199
    assert take(cache, 1, 2) == 100


def test_a_prompt_larger_than_the_cache_keeps_its_start() -> None:
    cache = BlockCache(3, BLOCK)
    take(cache, 1, 2, 3, 4, 5)
    assert len(cache) == 3
    assert take(cache, 1, 2, 3, 4, 5) == 300


def test_no_cache_finds_nothing() -> None:
    cache = BlockCache(0, BLOCK)
    assert take(cache, 1) == take(cache, 1) == len(cache) == 0


def test_a_cleared_cache_is_empty() -> None:
    cache = BlockCache(9, BLOCK)
    take(cache, 1, 2)
    cache.clear()
    assert take(cache, 1, 2) == 0


def test_long_stretches_of_a_text_fill_several_blocks() -> None:
    cache = BlockCache(10, BLOCK)
    text = Prompt(chain=(7, 8), ends=(400, 2000), size=2000, tokens_per_unit=0.25)
    assert cache.take(text, 500) == 0
    assert len(cache) == 1 + 4
    assert cache.take(text, 500) == 499


@pytest.mark.parametrize("size", [1, 7, 40])
def test_it_agrees_with_a_list_that_is_searched(size: int) -> None:
    rng, cache, held = random.Random(size), BlockCache(size, BLOCK), list[int]()
    for _ in range(2000):
        blocks = [rng.randrange(3) for _ in range(rng.randrange(1, 7))]
        prompt = block_prompt(blocks, block_tokens=BLOCK)
        expected = 0
        while expected < len(prompt.chain) and prompt.chain[expected] in held:
            expected += 1
        for block in reversed(prompt.chain):  # most recent last
            if block in held:
                held.remove(block)
            held.append(block)
        del held[: max(0, len(held) - size)]
        assert cache.take(prompt, prompt.size) == min(expected * BLOCK, prompt.size - 1)


def test_the_pooled_hit_rate_is_that_of_one_cache() -> None:
    requests = [request(float(n), [1, n % 2]) for n in range(10)]
    assert pooled_hit_rate(trace(*requests), 100) == pytest.approx((100 + 8 * 199) / 2000)
    assert pooled_hit_rate(trace(*requests), 0) == 0.0
    assert pooled_hit_rate(trace(), 5) == 0.0
