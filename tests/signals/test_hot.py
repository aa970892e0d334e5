"""What routers have counted, pooled."""

from __future__ import annotations

import msgspec
import pytest

from prefixroute.signals.hot import Snapshot, pooled, read_snapshot


def snapshot(owner: str, at_ms: int = 0, *, count: float = 4.0, spread: int = 2) -> Snapshot:
    return Snapshot(owner, at_ms, 100.0, {7: 10.0}, [(1, count, spread)])


def test_counts_of_several_add_up() -> None:
    hot = pooled([snapshot("a"), snapshot("b", count=2.0), snapshot("c", spread=5)], 0)
    assert hot.totals == {7: 30.0}
    assert hot.prefixes == [(1, 10.0, 2)]


def test_of_each_router_only_the_newest_counts() -> None:
    hot = pooled([snapshot("a", 2000, count=3.0), snapshot("a", 1000, count=9.0)], 2000)
    assert hot.prefixes == [(1, 3.0, 2)]


def test_counts_decay_from_their_time_on_and_vanish() -> None:
    assert pooled([snapshot("a")], 100_000).totals[7] == pytest.approx(5.0)
    assert pooled([snapshot("a")], 250_000).totals == {}
    assert pooled([snapshot("a", 5000)], 0).totals == {7: 10.0}  # a clock that was set back


def test_sizes_are_told_on_where_they_are_known() -> None:
    with_size = Snapshot("b", 0, 100.0, {7: 10.0}, [(1, 4.0, 2), (2, 3.0, 2)], {1: 700})
    assert pooled([snapshot("a"), with_size], 0).tokens == {1: 700}
    packed = msgspec.msgpack.encode(with_size)
    assert read_snapshot(packed) == with_size
    earlier = msgspec.msgpack.encode(["a", 0, 100.0, {7: 10.0}, [[1, 4.0, 2]]])
    assert read_snapshot(earlier) == snapshot("a")


def test_of_nothing_there_is_nothing() -> None:
    hot = pooled([], 0)
    assert (dict(hot.totals), list(hot.prefixes)) == ({}, [])
