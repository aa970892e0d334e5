from __future__ import annotations

from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.bounded import BoundedDict

steps = st.lists(
    st.tuples(st.sampled_from(["put", "get", "peek", "pop"]), st.integers(0, 12)), max_size=80
)


@given(st.integers(2, 12), steps)
def test_it_never_holds_more_than_its_bound_and_never_a_wrong_value(
    bound: int, actions: list[tuple[str, int]]
) -> None:
    table: BoundedDict[int, int] = BoundedDict(bound)
    last: dict[int, int] = {}
    for at, (action, key) in enumerate(actions):
        match action:
            case "put":
                table.put(key, at)
                last[key] = at
                assert table.peek(key) == at
            case "pop":
                assert table.pop(key) in (None, last.get(key))
                last.pop(key, None)
                assert table.peek(key) is None
            case "peek":
                size = len(table)
                assert table.peek(key) in (None, last.get(key))
                assert len(table) == size
            case _:
                assert table.get(key) in (None, last.get(key))
        assert len(table) <= bound
        assert len(table) == len([key for key in range(13) if table.peek(key) is not None])


@pytest.mark.parametrize("bound", [2, 3, 10, 100, 101])
def test_what_was_used_last_stays(bound: int) -> None:
    table: BoundedDict[int, int] = BoundedDict(bound)
    for key in range(1000):
        table.put(key, key)
        for recent in range(max(0, key - bound // 2 + 1), key + 1):
            assert table.peek(recent) == recent


def test_what_is_used_again_and_again_stays() -> None:
    table: BoundedDict[str, int] = BoundedDict(10)
    table.put("hot", 1)
    for key in range(1000):
        table.put(str(key), key)
        assert table.get("hot") == 1


def test_a_look_that_is_no_use_keeps_nothing() -> None:
    table: BoundedDict[str, int] = BoundedDict(10)
    table.put("cold", 1)
    for key in range(10):
        table.put(str(key), key)
        table.peek("cold")
    assert table.peek("cold") is None


def test_values_that_are_false_are_kept() -> None:
    table: BoundedDict[str, float] = BoundedDict(4)
    table.put("zero", 0.0)
    assert table.peek("zero") == 0.0
    assert table.get("zero") == 0.0


def test_transform_replaces_and_removes() -> None:
    table: BoundedDict[int, int] = BoundedDict(10)
    for key in range(8):
        table.put(key, key)
    table.transform(lambda value: value * 10 if value % 2 else None)
    assert {key: table.peek(key) for key in range(8) if table.peek(key) is not None} == {
        key: key * 10 for key in range(8) if key % 2 and table.peek(key) is not None
    }
    assert table.peek(7) == 70
    table.clear()
    assert len(table) == 0


chains = st.lists(st.integers(0, 30), unique=True, max_size=12)


@given(st.integers(2, 60), st.lists(chains, max_size=12), chains)
def test_whole_chains_are_merged_and_read_as_one_key_after_another(
    bound: int, merged: list[list[int]], asked: list[int]
) -> None:
    table: BoundedDict[int, int] = BoundedDict(bound)
    one_by_one: BoundedDict[int, int] = BoundedDict(bound)
    for number, chain in enumerate(merged, 1):
        table.merge(chain, number, add)
        for key in chain:
            one_by_one.put(key, (one_by_one.get(key) or 0) + number)
        assert (table._young, table._old) == (one_by_one._young, one_by_one._old)
    values = [table.peek(key) for key in asked]
    known = values.index(None) if None in values else len(values)
    assert table.leading(asked) == values[:known]
