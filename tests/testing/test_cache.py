"""The prefix cache: what is found is a prefix, what is kept is bounded and most recent."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prefixroute.testing.cache import BlockCache, extend_chain

texts = st.text(alphabet="ab", max_size=12).map(str.encode)


def chain_of(text: bytes) -> list[bytes]:
    return extend_chain(b"salt", text, block_bytes=2)


def test_a_chain_names_each_block_by_all_before_it() -> None:
    assert chain_of(b"aabb")[0] == chain_of(b"aacc")[0]
    assert chain_of(b"aabb")[1] != chain_of(b"ccbb")[1]
    assert extend_chain(b"one", b"aa", 2) != extend_chain(b"two", b"aa", 2)


def test_a_partial_block_is_left_out() -> None:
    assert chain_of(b"a") == []
    assert len(chain_of(b"aab")) == 1


def test_a_chain_can_be_extended() -> None:
    start = chain_of(b"aabb")
    assert start + extend_chain(start[-1], b"ccdd", 2) == chain_of(b"aabbccdd")


@settings(deadline=None)
@given(st.lists(texts, max_size=30), texts, st.integers(0, 10))
def test_it_keeps_the_most_recent_blocks_and_the_starts_of_chains_longest(
    touched: list[bytes], asked: bytes, capacity: int
) -> None:
    cache = BlockCache(capacity)
    recency: dict[bytes, tuple[int, int]] = {}
    for turn, text in enumerate(touched):
        cache.touch(chain_of(text), owner=turn)
        for depth, block in enumerate(chain_of(text)):
            recency[block] = (turn, -depth)
    kept = set(sorted(recency, key=recency.__getitem__, reverse=True)[:capacity])

    chain = chain_of(asked)
    hit = cache.match(chain)

    assert len(cache) == len(kept) <= capacity
    assert set(chain[:hit]) <= kept
    assert hit == len(chain) or chain[hit] not in kept
    inserted = [chain_of(text) for text in touched]
    assert hit == 0 or any(one[:hit] == chain[:hit] for one in inserted)


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=30), st.integers(1, 10))
def test_no_block_is_kept_without_its_parent(touched: list[bytes], capacity: int) -> None:
    cache = BlockCache(capacity)
    for turn, text in enumerate(touched):
        cache.touch(chain_of(text), owner=turn)
    for text in touched:
        held = [cache.match([block]) == 1 for block in chain_of(text)]
        assert held == sorted(held, reverse=True)


def test_matching_touches_nothing() -> None:
    cache = BlockCache(2)
    cache.touch(chain_of(b"aa"), owner=1)
    cache.touch(chain_of(b"bb"), owner=2)
    assert cache.match(chain_of(b"aa")) == 1
    cache.touch(chain_of(b"cc"), owner=3)
    assert cache.match(chain_of(b"aa")) == 0
    assert cache.match(chain_of(b"bb")) == 1


def test_only_the_last_user_can_take_a_block_back() -> None:
    cache = BlockCache(8)
    cache.touch(chain_of(b"aabb"), owner=1)
    cache.touch(chain_of(b"aa"), owner=2)
    cache.discard(chain_of(b"aabb"), owner=1)
    assert cache.match(chain_of(b"aabb")) == 1


def test_no_capacity_keeps_nothing() -> None:
    cache = BlockCache(0)
    cache.touch(chain_of(b"aabb"), owner=1)
    assert len(cache) == 0
