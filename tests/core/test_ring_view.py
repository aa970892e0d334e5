"""What a ring gives to whom, as values and as a page."""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute import ConfigurationError, Endpoint, RoundRobin
from prefixroute.core.ring import Ring

from .pages import Page
from .support import make_router

KEYS = 2**64
members = st.lists(
    st.tuples(st.text(min_size=1, max_size=6), st.floats(0.1, 20.0)),
    min_size=1,
    max_size=8,
    unique_by=lambda member: member[0],
)


@given(members, st.integers(1, 40), st.integers(0, 2**32))
def test_arcs_tell_whose_every_key_is(some: list[tuple[str, float]], nodes: int, seed: int) -> None:
    ring = Ring(some, virtual_nodes=nodes)
    arcs = list(ring.arcs())
    assert len(arcs) == len(ring)
    assert sum(count for _, count in arcs) == KEYS
    ends = list(accumulate((count for _, count in arcs), initial=ring._circle.keys[-1] - KEYS))[1:]
    rng = random.Random(seed)
    for key in [0, KEYS - 1, *(rng.randrange(KEYS) for _ in range(20))]:
        at = bisect_right(ends, key)
        owner = arcs[at % len(arcs)][0]
        assert owner == next(ring.walk(key))


def test_a_ring_without_members_has_no_arcs() -> None:
    assert not list(Ring([("a", 0.0)]).arcs())


def test_shares_follow_the_weights() -> None:
    router = make_router([Endpoint(f"http://gpu-{n}", weight=1.0 + n) for n in range(4)])
    view = router.ring()
    assert [member.id for member in view.members] == sorted(e.id for e in router.endpoints)
    assert math.isclose(sum(member.share for member in view.members), 1.0)
    assert [member.fair_share for member in view.members] == [0.1, 0.2, 0.3, 0.4]
    assert [member.virtual_nodes for member in view.members] == [1024, 2048, 3072, 4096]
    assert view.virtual_nodes == 10 * 1024
    for member in view.members:
        assert member.share == pytest.approx(member.fair_share, rel=0.1)
    assert 1.0 < view.max_over_fair < 1.1


def test_shares_are_those_of_the_homes() -> None:
    router = make_router(3)
    counts = dict.fromkeys((e.id for e in router.endpoints), 0)
    for number in range(3000):
        home = router.route(f"prompt {number}").home
        assert home is not None
        counts[home.id] += 1
    for member in router.ring().members:
        assert counts[member.id] / 3000 == pytest.approx(member.share, abs=0.035)  # 4 sigma


def test_each_tier_and_model_has_its_ring() -> None:
    router = make_router(
        [
            Endpoint("http://a", id="a"),
            Endpoint("http://b", id="b", tier=1),
            Endpoint("http://c", id="c", models={"m"}),
            Endpoint("http://d", id="d", weight=0.0),
        ]
    )

    def of(model: str | None = None, *, tier: int | None = None) -> tuple[int, list[str]]:
        view = router.ring(model, tier=tier)
        return view.tier, [member.id for member in view.members]

    assert of() == (0, ["a"])
    assert of("m") == (0, ["a", "c"])
    assert of(tier=1) == (1, ["b"])
    with pytest.raises(ConfigurationError, match=r"Router\.ring\(tier=7\) must be .*: 0, 1"):
        router.ring(tier=7)


def test_membership_is_followed() -> None:
    router = make_router(2)
    before = router.ring()
    router.add("http://gpu-9:8000/v1")
    assert len(router.ring().members) == 3
    router.remove("http://gpu-9:8000/v1")
    assert router.ring() == before


def test_a_page_shows_a_piece_of_the_ring_and_all_shares() -> None:
    view = make_router(3).ring()
    page = Page(view._repr_html_())
    assert "Ring of 3 endpoints, 3,072 virtual nodes" in page.text
    for member in view.members:
        assert member.id in page.text
        assert f"{member.share:.2%}" in page.text
    assert page.tags.count("path") == 3
    drawn = "".join(value or "" for name, value in page.attributes if name == "d")
    assert drawn.count("M") == len(view.pieces) == 160
    widths = [float(width) for width in re.findall(r"0h([\d.]+)", drawn)]
    assert sum(widths) == pytest.approx(1000.0, abs=160 * 0.05)


def test_a_whole_small_ring_is_shown() -> None:
    view = make_router(2, placement=RoundRobin()).ring()
    assert view.virtual_nodes == 2
    assert "The whole ring" in Page(view._repr_html_()).text


def test_a_page_is_escaped_and_loads_nothing() -> None:
    evil = "<script>alert(1)</script>\"'&"
    view = make_router([Endpoint("http://a", id=evil), Endpoint("http://b")]).ring()
    page = Page(view._repr_html_())
    assert evil in page.text
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import|javascript:|href", view._repr_html_())


def test_a_long_table_is_cut() -> None:
    page = Page(make_router(100).ring()._repr_html_())
    assert page.tags.count("tr") == 1 + 64
    assert "... and 36 more" in page.text
