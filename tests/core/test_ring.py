from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core import circle as circle_module
from prefixroute.core import ring as ring_module
from prefixroute.core.hashing import digest64
from prefixroute.core.ring import Ring

KEYS = [digest64(f"key {number}".encode()) for number in range(4000)]
TOP = 2**64 - 1

ids = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8, unique=True)
weights = st.floats(0.1, 20.0)
keys = st.integers(0, TOP)


def ring_of(names: Iterable[str], weight: float = 1.0, *, nodes: int = 128, seed: int = 0) -> Ring:
    return Ring([(name, weight) for name in names], virtual_nodes=nodes, seed=seed)


def owners(ring: Ring, among: Iterable[int] = tuple(KEYS)) -> list[str]:
    return [ring.members[next(ring.walk(key))][0] for key in among]


def names(count: int) -> list[str]:
    return [f"gpu-{number}" for number in range(count)]


@given(ids, keys, st.integers(1, 40))
def test_a_walk_meets_every_member_once(members: list[str], key: int, nodes: int) -> None:
    ring = ring_of(members, nodes=nodes)
    assert sorted(ring.walk(key)) == list(range(len(members)))
    assert ring.order(key) == tuple(ring.walk(key)) == ring.order(key)


@given(st.data(), ids, keys)
def test_the_order_of_the_list_is_irrelevant(
    data: st.DataObject, members: list[str], key: int
) -> None:
    shuffled = data.draw(st.permutations(members))
    one, other = ring_of(members, nodes=20), ring_of(shuffled, nodes=20)
    assert [members[i] for i in one.order(key)] == [shuffled[i] for i in other.order(key)]


@given(st.data(), ids, keys)
def test_who_leaves_leaves_the_order_of_the_others(
    data: st.DataObject, members: list[str], key: int
) -> None:
    gone = data.draw(st.sampled_from(members))
    left = [name for name in members if name != gone]
    before = [members[i] for i in ring_of(members, nodes=20).order(key)]
    after = [left[i] for i in ring_of(left, nodes=20).order(key)]
    assert after == [name for name in before if name != gone]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 101])
def test_an_added_member_takes_its_share_and_keys_move_only_to_it(count: int) -> None:
    before = owners(ring_of(names(count)))
    after = owners(ring_of([*names(count), "new"]))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"new"}
    share = len(moved) / len(KEYS)
    assert share == pytest.approx(1 / (count + 1), rel=0.35, abs=0.004)


def test_case_24_a_removed_members_keys_only_move_away_from_it() -> None:
    for gone in names(8):
        before = owners(ring_of(names(8)))
        after = owners(ring_of([name for name in names(8) if name != gone]))
        for old, new in zip(before, after, strict=True):
            assert old in (new, gone)
            assert new != gone


def test_case_24_removing_the_last_and_adding_one_moves_about_its_share() -> None:
    before = owners(ring_of(names(8)))
    after = owners(ring_of([*names(7), "other"]))
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {old for old, new in moved if new != "other"} == {"gpu-7"}
    assert 0.12 < len(moved) / len(KEYS) < 0.33


def test_case_21_add_remove_add_is_the_same_as_fresh() -> None:
    fresh = owners(ring_of(names(5)))
    ring_of([*names(5), "x"])
    ring_of(names(4))
    assert owners(ring_of(names(5))) == fresh


def test_case_21_colliding_virtual_nodes_stay_with_a_member_whatever_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    circle_module._points.cache_clear()
    monkeypatch.setattr(circle_module, "digest64", lambda data, seed: digest64(data, seed) % 256)
    try:
        some = names(12)  # 12 x 40 virtual nodes on 256 places
        before = owners(ring_of(some, nodes=40), range(256))
        for seed in range(5):
            shuffled = random.Random(seed).sample(some, len(some))
            assert owners(ring_of(shuffled, nodes=40), range(256)) == before
        rest = [name for name in some if name != "gpu-3"]
        for old, new in zip(before, owners(ring_of(rest, nodes=40), range(256)), strict=True):
            assert old in (new, "gpu-3")
        assert len(ring_of(rest, nodes=40)) == 11 * 40  # survivors keep all points
    finally:
        circle_module._points.cache_clear()


def test_case_22_a_key_above_the_last_virtual_node_wraps() -> None:
    ring = ring_of(names(4))
    last = max(ring._circle.keys)
    assert last < TOP
    assert ring.order(TOP) == ring.order(0) == ring.order(last)
    assert ring.order(last - 1)[0] == ring._circle.owners[-1]


def test_a_key_on_a_virtual_node_belongs_to_the_next_one() -> None:
    ring = ring_of(names(4))
    for at in range(20):
        assert ring.order(ring._circle.keys[at])[0] == ring._circle.owners[at + 1]


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0, 2.0, 4.0, 80.0])
def test_case_25_a_weight_scales_the_share_of_the_keys(weight: float) -> None:
    ring = Ring([("other", 1.0), ("a", 1.0), ("heavy", weight)], virtual_nodes=1024)
    share = Counter(owners(ring))["heavy"] / len(KEYS)
    assert share == pytest.approx(weight / (2 + weight), rel=0.2)


def test_case_25_weight_0_has_no_place() -> None:
    ring = Ring([("a", 1.0), ("b", 0.0), ("c", 1.0)], virtual_nodes=64)
    assert all(set(ring.order(key)) == {0, 2} for key in KEYS[:100])
    assert ring.placed == 2


@pytest.mark.parametrize("weight", [1e-9, 5e-324])
def test_case_25_the_smallest_weight_still_has_a_place(weight: float) -> None:
    ring = Ring([("a", 1.0), ("b", weight)], virtual_nodes=64)
    assert set(ring.order(0)) == {0, 1}


def test_case_25_large_weights_cost_no_more_virtual_nodes() -> None:
    gigabytes = Ring([(name, 80.0) for name in names(4)], virtual_nodes=1024)
    total_bytes = Ring([(name, 80e9) for name in names(4)], virtual_nodes=1024)
    assert len(gigabytes) <= 4 * 16 * 1024
    assert len(total_bytes) <= 4 * 16 * 1024


def test_members_of_equal_weight_get_even_shares() -> None:
    shares = Counter(owners(ring_of(names(101), nodes=1024)))
    assert len(shares) == 101
    shares = Counter(owners(ring_of(names(8), nodes=1024)))
    assert max(shares.values()) < 1.2 * len(KEYS) / 8
    assert min(shares.values()) > 0.8 * len(KEYS) / 8


def test_seeds_of_any_size_place_differently() -> None:
    seeds = (0, 1, 2**31, 2**32, 2**32 + 1, 2**64, -1, -2, -(2**40))
    placed = {tuple(owners(ring_of(names(8), seed=seed), KEYS[:64])) for seed in seeds}
    assert len(placed) == len(seeds)


def test_a_ring_without_members_has_no_order() -> None:
    assert Ring([]).order(5) == ()
    assert Ring([("a", 0.0)]).order(5) == ()


def test_remembered_orders_are_bounded() -> None:
    ring = ring_of(names(8), nodes=2048)
    rng = random.Random(0)
    for key in (rng.getrandbits(64) for _ in range(20_000)):
        assert ring.order(key) == tuple(ring.walk(key))
        assert len(ring._orders) <= ring_module._MOST_ORDERS
    assert len(ring._orders) > 1000


def test_a_large_ring_remembers_fewer_orders() -> None:
    ring = ring_of(names(512), nodes=8)
    rng = random.Random(0)
    for key in (rng.getrandbits(64) for _ in range(2000)):
        assert ring.order(key) == tuple(ring.walk(key))
        assert len(ring._orders) <= ring_module._REMEMBERED // 512


@given(st.data(), st.lists(st.text(max_size=3), min_size=1, max_size=16, unique=True))
def test_a_ring_made_of_another_is_the_same_as_one_made_of_nothing(
    data: st.DataObject, some: list[str]
) -> None:
    ring: Ring | None = None
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(some), unique=True))
        heavy = data.draw(st.sets(st.sampled_from(some)))
        members = [(i, 2.0 if i in heavy else 1.0) for i in chosen]
        ring = Ring(members, virtual_nodes=20, before=ring)
        fresh = Ring(members, virtual_nodes=20)
        assert ring._circle.keys == fresh._circle.keys
        assert [ring.order(key) for key in KEYS[:20]] == [fresh.order(key) for key in KEYS[:20]]


def test_a_ring_made_of_another_hashes_only_who_has_come_or_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    points = circle_module._points

    def counted(member_id: str, count: int, seed: int) -> object:
        asked.append(member_id)
        return points(member_id, count, seed)

    before = ring_of(names(40))
    monkeypatch.setattr(circle_module, "_points", counted)
    after = Ring(
        [(name, 1.0) for name in [*names(40)[1:], "new"]], virtual_nodes=128, before=before
    )
    assert asked == ["gpu-0", "new"]
    assert owners(after) == owners(ring_of([*names(40)[1:], "new"]))


@pytest.mark.parametrize("places", [1, 7, 64])
def test_a_ring_made_of_another_orders_equal_virtual_nodes_alike(
    monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    circle_module._points.cache_clear()
    monkeypatch.setattr(circle_module, "digest64", lambda data, seed: digest64(data, seed) % places)
    try:
        some = names(12)
        for without in (some[1:], some[:-1], [*some[:5], *some[6:]]):
            smaller = ring_of(without, nodes=20)
            larger = Ring([(i, 1.0) for i in some], virtual_nodes=20, before=smaller)
            assert owners(larger, range(places)) == owners(ring_of(some, nodes=20), range(places))
            again = Ring([(i, 1.0) for i in without], virtual_nodes=20, before=larger)
            assert owners(again, range(places)) == owners(smaller, range(places))
    finally:
        circle_module._points.cache_clear()


def test_golden_orders() -> None:
    """Change these only with ``PLACEMENT_VERSION``: a change of them moves every user's keys."""
    ring = ring_of(names(5), nodes=1024)
    found = [ring.order(digest64(str(number).encode())) for number in range(6)]
    assert found == GOLDEN
    thinned = Ring([("a", 20.0), ("b", 10.0), ("c", 0.5)], virtual_nodes=1024, seed=7)
    assert thinned.order(digest64(b"0")) == GOLDEN_WEIGHTED


GOLDEN = [
    (3, 4, 1, 0, 2),
    (3, 0, 4, 2, 1),
    (4, 3, 0, 2, 1),
    (3, 0, 2, 4, 1),
    (2, 3, 1, 0, 4),
    (2, 0, 3, 4, 1),
]
GOLDEN_WEIGHTED = (0, 1, 2)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, TOP))
def test_the_nearest_are_the_first_of_the_order(members: int, count: int, key: int) -> None:
    ring = Ring([(f"gpu-{i}", 1.0 + i % 3) for i in range(members)], virtual_nodes=3)
    assert ring.nearest(key, count) == ring.order(key)[:count]
    assert ring.nearest(key, count) == ring.order(key)[:count]  # which is remembered by now
