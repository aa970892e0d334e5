from __future__ import annotations

import random
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core import prefix_map as module
from prefixroute.core.prefix_map import PrefixMap
from prefixroute.core.traffic import Traffic


def held(table: PrefixMap, chain: list[int], bits: list[int]) -> dict[int, int]:
    """Blocks by bit."""
    found: dict[int, int] = {}
    for blocks, mask in table.holders(chain, sum(bits)):
        for bit in bits:
            if mask & bit:
                assert bit not in found
                found[bit] = blocks
    return found


def test_who_was_sent_a_chain_holds_it_and_what_extends_from_it() -> None:
    table = PrefixMap(100)
    a, b, c = (table.join() for _ in range(3))
    table.add([1, 2, 3], a)
    table.add([1, 2], b)
    assert held(table, [1, 2, 3, 4], [a, b, c]) == {a: 3, b: 2}
    assert held(table, [1, 9], [a, b, c]) == {a: 1, b: 1}
    assert held(table, [9, 2, 3], [a, b, c]) == {}  # an inner block alone is no prefix
    assert held(table, [], [a, b, c]) == {}
    assert held(table, [1, 2, 3], [b, c]) == {b: 2}


def test_case_07_blocks_count_only_after_what_they_follow() -> None:
    table = PrefixMap(100)
    a, b = table.join(), table.join()
    table.add([11], a)
    table.add([22], b)
    assert held(table, [22, 2211], [a, b]) == {b: 1}


def test_holders_come_with_most_blocks_last() -> None:
    table = PrefixMap(100)
    bits = [table.join() for _ in range(5)]
    for blocks, bit in enumerate(bits):
        table.add(list(range(blocks)), bit)
    found = table.holders(list(range(5)), sum(bits))
    assert [blocks for blocks, _ in found] == [1, 2, 3, 4]


def test_discard_takes_one_endpoint_out() -> None:
    table = PrefixMap(100)
    a, b = table.join(), table.join()
    table.add([1, 2, 3], a)
    table.add([1, 2, 3], b)
    table.discard([2, 3], a)
    assert held(table, [1, 2, 3], [a, b]) == {a: 1, b: 3}
    table.discard([1, 2, 3, 4], b)
    assert held(table, [1, 2, 3], [a, b]) == {a: 1}
    assert len(table) == 1  # what nobody holds takes no room


def test_who_left_holds_nothing_and_its_bit_is_not_the_next_ones() -> None:
    table = PrefixMap(100)
    a, b = table.join(), table.join()
    table.add([1, 2], a)
    table.leave(a)
    new = table.join()
    assert held(table, [1, 2], [a, b, new]) == {}


def test_bits_are_used_again_after_a_sweep_with_nothing_left_of_them() -> None:
    table = PrefixMap(10_000)
    stays = table.join()
    table.add([1, 2], stays)
    seen = set()
    for number in range(1000):
        bit = table.join()
        table.add([1, 2, 100 + number], bit)
        seen.add(bit)
        table.leave(bit)
        assert held(table, [1, 2, 100 + number], [stays]) == {stays: 2}
    assert len(seen) < 2 * module._SWEEP_AFTER + 5  # bits stay few: masks stay small
    fresh = table.join()
    assert held(table, [1, 2], [fresh]) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "discard", "leave", "ask"]),
            st.integers(0, 3),
            st.integers(1, 5),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_it_agrees_with_a_table_of_sets(actions: list[tuple[str, int, int, bool]]) -> None:
    table = PrefixMap(1000)
    bits = [table.join() for _ in range(4)]
    model: list[set[int]] = [set() for _ in bits]
    for action, who, length, other in actions:
        chain = [100 * other + depth for depth in range(length)]
        match action:
            case "add":
                table.add(chain, bits[who])
                model[who].update(chain)
            case "discard":
                table.discard(chain[1:], bits[who])
                model[who].difference_update(chain[1:])
            case "leave":
                table.leave(bits[who])
                bits[who] = table.join()
                model[who] = set()
            case _:
                pass
        for chain in ([0, 1, 2, 3, 4], [100, 101, 102, 103, 104]):
            expected = {}
            for bit, blocks in zip(bits, model, strict=True):
                known = next((i for i, block in enumerate(chain) if block not in blocks), 5)
                if known:
                    expected[bit] = known
            assert held(table, chain, bits) == expected


@pytest.mark.parametrize("bound", [16, 4096])
def test_the_map_is_bounded_and_keeps_what_is_used(bound: int) -> None:
    table = PrefixMap(bound)
    bit = table.join()
    for number in range(20 * bound):
        table.add([-1, number], bit)
        assert len(table) <= bound
    assert held(table, [-1, 20 * bound - 1], [bit]) == {bit: 2}


def test_case_41_a_million_distinct_prefixes_stay_in_bounds() -> None:
    bound = 65_536
    table, counts = PrefixMap(bound), Traffic(half_life_s=600.0, max_prefixes=bound)
    bits = [table.join() for _ in range(8)]
    rng = random.Random(0)
    counts.advance(0.0)
    began = perf_counter()
    for request in range(100_000):
        chain = [-1, -2, *(rng.getrandbits(64) for _ in range(10))]
        table.add(chain, bits[request % 8])
        counts.record(chain, "g")
        if request % 1000 == 0:
            assert len(table) <= bound
            assert len(counts) <= bound
            assert held(table, [-1, -2], bits) == dict.fromkeys(bits[: request + 1], 2)
    assert counts.count(-1) == counts.total("g") == 100_000.0
    assert perf_counter() - began < 20.0
