"""What an explanation tells of a prompt's beginnings: share, spread, and who holds them."""

from __future__ import annotations

import pytest

from prefixroute import Fixed, Nested, Random
from prefixroute.core.placement import Placement

from .pages import Page
from .support import blocks, chat, make_router, serve, text

SYSTEM = text("system", 3000)


def one_of_many(number: object) -> dict[str, object]:
    """A request of its own below the system prompt that all share."""
    return chat(text(("user", number), 3000), system=SYSTEM)


def test_a_fresh_router_gives_every_prefix_one_endpoint_that_holds_nothing() -> None:
    explanation = make_router(4).explain(one_of_many(0))
    assert [boundary.spread for boundary in explanation.boundaries] == [1] * 6
    assert [boundary.holders for boundary in explanation.boundaries] == [0] * 6
    assert [boundary.share for boundary in explanation.boundaries] == [0.0] * 6


def test_a_hot_prefix_is_given_many_and_what_follows_its_home() -> None:
    router = make_router(4)
    for number in range(60):
        serve(router, one_of_many(number))
    explanation = router.explain(one_of_many("new"))
    depth = explanation.decision.depth
    spreads = [boundary.spread for boundary in explanation.boundaries]
    holders = [boundary.holders for boundary in explanation.boundaries]
    assert depth == 3  # three blocks are the system prompt's
    assert spreads == [4, 4, 4, 1, 1, 1]
    assert holders[:depth] == [4] * depth
    assert holders[depth:] == [0] * (len(holders) - depth)
    assert explanation.decision.spread == 4


def test_who_was_sent_a_prompt_holds_it() -> None:
    router = make_router(4)
    serve(router, one_of_many(0))
    explanation = router.explain(one_of_many(0))
    assert {boundary.holders for boundary in explanation.boundaries} == {1}
    other = [boundary.holders or 0 for boundary in router.explain(one_of_many(1)).boundaries]
    assert other == sorted(other, reverse=True)  # who holds a prefix holds its beginnings
    assert other[0] == 1
    assert other[-1] == 0


@pytest.mark.parametrize("placement", [Fixed(), Random()], ids=str)
def test_a_placement_that_does_not_look_at_traffic_says_nothing(placement: Placement) -> None:
    router = make_router(4, placement=placement)
    serve(router, one_of_many(0))
    explanation = router.explain(one_of_many(0))
    for boundary in explanation.boundaries:
        assert (boundary.share, boundary.spread, boundary.holders) == (None, None, None)
    page = Page(explanation._repr_html_())
    for name in ("share of the traffic", "spread,", "endpoints that hold it"):
        assert name not in str(explanation)
    assert "held by" not in page.text


def test_a_pinned_request_has_no_spread() -> None:
    router = make_router(4)
    body = {"model": "m", "input": text("input", 5000)}
    with router.acquire(body, path="/v1/responses") as lease:
        lease.answered("response-7")
    explanation = router.explain(
        {**body, "previous_response_id": "response-7"}, path="/v1/responses"
    )
    assert explanation.decision.reason.value == "pinned"
    assert {boundary.spread for boundary in explanation.boundaries} == {None}


def test_text_and_page_tell_spread_and_holders() -> None:
    router = make_router(4)
    for number in range(60):
        serve(router, one_of_many(number))
    explanation = router.explain(one_of_many("new"))
    first, page = explanation.boundaries[0], Page(explanation._repr_html_())
    assert "tokens up to each, share of the traffic, spread, endpoints that hold it:" in str(
        explanation
    )
    line = next(line for line in str(explanation).splitlines() if first.key in line)
    figures = [f"{first.tokens:.0f}", f"{first.share:.1%}", "4", "4"]
    assert line.split() == [first.key, *figures]
    assert "spread" in page.text
    assert "held by" in page.text


def test_a_prompt_of_one_block_has_a_spread_too() -> None:
    explanation = make_router(4, placement=Nested()).explain(blocks(1))
    assert explanation.decision.depth == 0
    assert [boundary.spread for boundary in explanation.boundaries] == [1]


def test_traffic_is_told_from_the_first_request_on() -> None:
    router = make_router(4)
    assert "this router has seen none yet" in str(router.explain("hello"))
    serve(router, "hello")
    assert "1 requests seen" in str(router.explain("hello"))


@pytest.mark.parametrize(("count", "left"), [(10, None), (11, "... and 1 more")])
def test_long_lists_are_cut(count: int, left: str | None) -> None:
    explanation = make_router(4).explain(blocks(*range(count)))
    assert len(explanation.boundaries) == count
    assert ("more" in str(explanation)) == (left is not None)
    assert left is None or left in str(explanation)


def test_explaining_changes_nothing() -> None:
    one, other = make_router(4), make_router(4)
    for number in range(40):
        serve(one, one_of_many(number))
        other.explain(one_of_many(number))
        serve(other, one_of_many(number))
    assert one.explain(one_of_many("x")) == other.explain(one_of_many("x"))
