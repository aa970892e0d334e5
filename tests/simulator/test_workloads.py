from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from prefixroute.errors import ConfigurationError
from prefixroute.simulator import (
    Trace,
    agents,
    chats,
    pooled_hit_rate,
    popular_prefixes,
    system_prompts,
)

MAKERS: list[Callable[..., Trace]] = [agents, chats, popular_prefixes, system_prompts]


@pytest.mark.parametrize("make", MAKERS)
def test_a_workload_follows_from_its_seed(make: Callable[..., Trace]) -> None:
    one = make(duration_s=20.0, seed=4)
    assert one == make(duration_s=20.0, seed=4)
    assert one != make(duration_s=20.0, seed=5)
    times = [request.at_s for request in one.requests]
    assert times == sorted(times)
    assert times[0] > 0.0
    assert one.block_tokens == 512
    assert all(request.prompt.stream for request in one.requests)


def test_system_prompts_are_shared_and_conversations_start_anew() -> None:
    one = system_prompts(prompts=10, duration_s=300.0, seed=1)
    assert 9 * 300 * 0.9 < len(one) < 9 * 300 * 1.1
    assert len({request.prompt.chain[11] for request in one.requests}) == 10
    sizes = Counter(len(request.prompt.chain) for request in one.requests)
    assert sorted(sizes) == [14, 16, 18, 20, 22]
    assert max(sizes.values()) < 1.3 * min(sizes.values())


def test_chats_extend_their_own_turns() -> None:
    one = chats(requests_per_s=12.0, duration_s=50.0, seed=1)
    assert len({request.prompt.chain[3] for request in one.requests}) == 1
    talks: dict[int, list[tuple[int, ...]]] = {}
    for request in one.requests:
        talks.setdefault(request.prompt.chain[4], []).append(request.prompt.chain)
    assert {len(talk) for talk in talks.values()} == {6}
    for talk in talks.values():
        assert all(after[: len(before)] == before for before, after in pairwise(talk))
    assert pooled_hit_rate(one, 100_000) > 0.8


def test_popularity_follows_zipfs_law() -> None:
    one = popular_prefixes(duration_s=100.0, exponent=1.0, prefixes=50, seed=1)
    counts = sorted(Counter(request.prompt.chain[7] for request in one.requests).values())[::-1]
    assert len(counts) == 50
    assert counts[0] / counts[9] == pytest.approx(10.0, rel=0.35)
    assert len({request.prompt.chain[8] for request in one.requests}) == len(one)


def test_agents_grow_on_top_of_what_they_share() -> None:
    one = agents(duration_s=300.0, seed=1)
    tasks: dict[int, list[tuple[int, ...]]] = {}
    for request in one.requests:
        tasks.setdefault(request.prompt.chain[16], []).append(request.prompt.chain)
    assert len({chain[15] for chains in tasks.values() for chain in chains}) == 1
    for chains in tasks.values():
        assert all(len(before) < len(after) for before, after in pairwise(chains))
    assert 12 < len(one) / len(tasks) < 30


@pytest.mark.parametrize("make", MAKERS)
def test_rates_that_cannot_be_are_refused(make: Callable[..., Trace]) -> None:
    name = "tasks_per_s" if make is agents else "requests_per_s"
    with pytest.raises(ConfigurationError, match="above 0"):
        make(**{name: 0.0})
