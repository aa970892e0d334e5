from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from prefixroute.core.prompt import Prompt
from prefixroute.simulator import block_prompt, simulate
from prefixroute.simulator.slots import SlotCache

from .support import model, request, trace


def prompt(*tokens: int) -> Prompt:
    return block_prompt(tokens, block_tokens=1)


def take(cache: SlotCache, tokens: Sequence[int], reply: int = 0) -> int:
    return cache.take(prompt(*tokens), len(tokens), reply)


def test_a_slot_holds_a_prompt_and_all_of_the_reply_but_its_last_token() -> None:
    cache = SlotCache(2)
    assert take(cache, range(10), reply=5) == 0
    assert take(cache, [*range(10), *range(50, 60)], reply=5) == 14
    assert take(cache, [*range(10), *range(50, 58), 7], reply=5) == 18  # of the prompt alone


def test_a_slot_keeps_only_what_its_next_prompt_shares() -> None:
    cache = SlotCache(4)
    take(cache, range(20))
    assert take(cache, [*range(10), *range(100, 110)]) == 10
    assert take(cache, range(20)) == 10
    assert len(cache) == 1


def test_a_prompt_that_shares_little_replaces_the_one_used_longest_ago() -> None:
    cache = SlotCache(2)
    take(cache, range(20))
    take(cache, range(100, 120))
    take(cache, range(19))  # used again
    assert take(cache, [100, *range(200, 230)]) == 1  # a thirtieth: too little to be looked for
    assert take(cache, range(19)) == 18
    assert take(cache, range(100, 120)) == 1


def test_a_cleared_cache_is_empty() -> None:
    cache = SlotCache(1)
    take(cache, range(9))
    cache.clear()
    assert take(cache, range(9)) == len(cache) - 1 == 0


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_it_agrees_with_lists_of_tokens(slots: int) -> None:
    rng, cache, held = random.Random(slots), SlotCache(slots), list[list[int]]()
    for _ in range(1000):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(5, 30))]
        shared = [common(tokens, one) for one in held]
        best = max(range(len(held)), key=shared.__getitem__, default=None)
        if best is None or shared[best] <= 0.1 * len(tokens):
            best = 0 if len(held) == slots else None
        expected = 0
        if best is not None:
            expected = shared[best]
            del held[best]
        held.append(tokens)
        assert take(cache, tokens) == min(expected, len(tokens) - 1)


def common(one: list[int], other: list[int]) -> int:
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)


def test_replicas_can_have_slots() -> None:
    talk = trace(*(request(float(n), [1, 2, 3][: n + 1]) for n in range(3)))
    made = simulate(talk, policies=["random"], replicas=[model(slots=1)])
    assert made.results[0].hit_rate == pytest.approx((109 + 209) / 600)
    assert made.pooled_hit_rate == made.results[0].hit_rate
