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


def values(page: Page, name: str) -> list[str]:
    """The values of an attribute, in the page's order."""
    return [value for found, value in page.attributes if found == name and value is not None]


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
    assert math.isclose(sum(member.share for member in view.members), 1.0, rel_tol=1e-12)
    assert sum(share for _, share in view.pieces) < 1.0
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
        assert f"{member.share / member.fair_share - 1.0:+.1%}" in page.text
    assert f"{sum(share for _, share in view.pieces):.1%} of the ring" in page.text
    drawn = "".join(values(page, "d"))
    pieces = sorted(
        (float(at), float(width)) for at, width in re.findall(r"M([\d.]+) 0h([\d.]+)v20", drawn)
    )
    assert len(pieces) == len(view.pieces) == 160
    ends = list(accumulate((width for _, width in pieces), initial=0.0))
    assert [at for at, _ in pieces] == pytest.approx(ends[:-1], abs=160 * 0.05)
    assert ends[-1] == pytest.approx(1000.0, abs=160 * 0.05)


def test_endpoints_have_a_colour_each_and_a_bar_beside_what_is_fair() -> None:
    view = make_router([Endpoint(f"http://gpu-{n}", weight=1.0 + n % 3) for n in range(24)]).ring()
    page = Page(view._repr_html_())
    chips = [value[11:] for value in values(page, "style") if value.startswith("background:")]
    assert len(set(chips)) == len(chips) == 24
    assert values(page, "fill") == chips
    bars = [
        [float(figure) for figure in re.findall(r"--[wf]:([\d.]+)%", value)]
        for value in values(page, "style")
        if "--f:" in value
    ]
    assert 94.0 < max(max(bar) for bar in bars) <= 100.0
    for (share, fair), member in zip(bars, view.members, strict=True):
        assert share / fair == pytest.approx(member.share / member.fair_share, rel=0.01)


def test_one_endpoint_has_all() -> None:
    view = make_router([Endpoint("http://a", tier=3)]).ring()
    assert (view.members[0].share, view.max_over_fair) == (1.0, 1.0)
    assert "Ring of 1 endpoint, 1,024 virtual nodes , tier 3" in Page(view._repr_html_()).text
    assert "tier" not in Page(make_router(1).ring()._repr_html_()).text


def test_views_are_values() -> None:
    view = make_router(2).ring()
    assert view == make_router(2).ring()
    assert "pieces" not in repr(view)
    with pytest.raises(AttributeError):
        view.tier = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        view.members[0].weight = 2.0  # type: ignore[misc]
    assert not hasattr(view, "__dict__")
    assert not hasattr(view.members[0], "__dict__")


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
