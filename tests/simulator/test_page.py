from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from prefixroute.simulator import (
    Change,
    PolicyFactory,
    Simulation,
    chats,
    policy_names,
    simulate,
    svg,
)
from prefixroute.simulator.plots import seconds

from .support import model, scripted, trace

TRAFFIC = chats(requests_per_s=10.0, duration_s=10.0, seed=1)
CHANGES = (Change(at_s=5.0, replica=1, joins=False), Change(at_s=8.0, replica=1, joins=True))
VOID = {"input", "meta", "br"}


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    policies = ["nested", "fixed", "least-loaded", "random", "prefix-tree"]
    return simulate(
        replace(TRAFFIC, changes=CHANGES), policies=policies, replicas=3, routers=[1, 4]
    )


class Checker(HTMLParser):
    """Counts tags, and fails where they are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(html: str) -> list[str]:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker.seen


def test_a_page_has_the_table_the_plots_and_what_repeats_it(simulation: Simulation) -> None:
    page = simulation.to_html(command="prefixroute simulate x < y")
    tags = checked(page)
    assert tags.count("svg") == 2 + 1 + 4  # times with 1 and 4 routers, hit rates, four loads
    assert "prefixroute simulate x &lt; y" in page
    for result in simulation.results:
        assert f">{result.hit_rate:.1%}<" in page
        assert seconds(result.ttft_p99_s) in page
    assert f"<td>{simulation.pooled_hit_rate:.1%}</td>" in page
    assert "sgl-router/src/policies/cache_aware.rs" in page
    assert "replica 1 leaves at 5 s; replica 1 joins at 8 s" in page
    assert "keys moved" in page
    assert "cache_blocks=4000" in page


def test_a_page_needs_nothing_from_elsewhere(simulation: Simulation) -> None:
    page = simulation.to_html()
    assert not {"script", "link", "img", "iframe"} & set(checked(page))
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "Again" not in page
    assert "prefers-color-scheme: dark" in page


def test_each_rule_has_a_switch_and_a_colour(simulation: Simulation) -> None:
    page = simulation.to_html()
    for at, name in enumerate(simulation.policies):
        assert f'<input type="checkbox" class="t{at}" checked>{name}' in page
        assert f".pr-sim:has(.t{at}:not(:checked)) svg .c{at}{{display:none}}" in page
        assert f".pr-sim .c{at}{{--c:var(--p{at})}}" in page


def test_a_notebook_shows_the_same_table_and_plots(simulation: Simulation) -> None:
    tags = checked(simulation._repr_html_())
    assert tags.count("svg") == 7
    assert "body" not in tags


def test_one_number_of_routers_has_no_plot_against_it() -> None:
    made = simulate(TRAFFIC, policies=["random"], replicas=2)
    assert checked(made.to_html()).count("svg") == 2
    assert "keys moved" not in made.to_html()


def test_an_empty_trace_has_a_page() -> None:
    made = simulate(trace(), policies=["nested", "random"], replicas=2, routers=[1, 2])
    assert checked(made.to_html()).count("svg") == 3


def test_names_are_escaped() -> None:
    factory, _ = scripted(0)
    risky = PolicyFactory(name="<script>", start=factory.start, source="<b>")
    made = simulate(replace(TRAFFIC, name="<i>"), policies=[risky], replicas=[model()])
    assert not {"script", "i"} & set(checked(made.to_html()))
    assert "&lt;b&gt;" in made.to_html()


def test_more_rules_than_colours_can_be_shown() -> None:
    factory, _ = scripted(0)
    many = [replace(factory, name=f"rule {n}") for n in range(12)]
    page = simulate(TRAFFIC, policies=many, replicas=[model()]).to_html()
    assert ".pr-sim .c11{--c:var(--p1)}" in page


def test_every_rule_of_others_names_its_source_as_its_docstring_does() -> None:
    from prefixroute.simulator import peers, trees

    rules = [
        peers.PowerOfTwo, peers.FirstBlock, trees.PrefixTree, trees.PrefixQueueScores,
        trees.OverlapCost,
    ]  # fmt: skip
    for rule in rules:
        said = " ".join((rule.__doc__ or "").replace("``", "").split())
        assert rule.SOURCE.removeprefix("rule ") in said  # type: ignore[attr-defined]
    made = simulate(TRAFFIC, replicas=2)
    assert all(result.source for result in made.results)
    assert len(made.results) == len(policy_names())


# -- axes --------------------------------------------------------------------------------


@pytest.mark.parametrize("high", [0.0, 0.034, 0.34, 1.0, 7.0, 15.0, 3540.0, 1e6])
def test_a_linear_axis_has_a_few_round_ticks(high: float) -> None:
    axis = svg.linear_axis("x", high, str)
    assert axis.high >= high
    assert 3 <= len(axis.ticks) <= 6
    assert axis.place(axis.high) == 1.0
    assert axis.place(0.0) == 0.0


@pytest.mark.parametrize("values", [[], [1.0], [0.02, 300.0], [3.0, 4.0], [0.0, 5.0], [0.1, 1.0]])
def test_a_logarithmic_axis_has_the_values_and_two_ticks(values: list[float]) -> None:
    axis = svg.log_axis("x", values, str)
    assert len(axis.ticks) >= 2
    for value in values:
        assert value == 0.0 or axis.low < value < axis.high
    places = [axis.place(value) for value, _ in axis.ticks]
    assert places == sorted(places)
    assert 0.0 <= places[0] < places[-1] <= 1.0


def test_a_line_goes_through_its_points() -> None:
    axis = svg.linear_axis("x", 10.0, str)
    line = svg.Line(css="c0", points=[(0.0, 0.0), (10.0, 10.0)], title="up", dots=True)
    picture = svg.chart("a & b", axis, axis, [line])
    assert 'aria-label="a &amp; b"' in picture
    assert '<path d="M66.0 272.0L494.0 12.0"/>' in picture
    assert picture.count("<circle") == 2
