"""Decisions, explanations and counts as HTML: well formed, escaped, without script; and as JSON."""

from __future__ import annotations

import json
import re

import pytest

from prefixroute import Endpoint, EngineLoad, Fixed, Random, RoundRobin
from prefixroute.core.router import RouterCore

from .pages import Page
from .support import blocks, make_router


@pytest.fixture
def router() -> RouterCore:
    made = make_router(3)
    for number in range(40):
        with made.acquire(chat("system", number)) as lease:
            lease.usage(prompt_tokens=100, cached_tokens=60)
    return made


def chat(system: object, number: int) -> dict[str, object]:
    return {
        "messages": [
            {"role": "system", "content": f"{system} " * 400},
            {"role": "user", "content": f"question {number} " * 50},
        ]
    }


def test_an_explanation_shows_cut_traffic_and_candidates(router: RouterCore) -> None:
    explanation = router.explain(chat("system", 1))
    page = Page(explanation._repr_html_())
    decision = explanation.decision
    assert decision.reason.sentence in page.text
    for boundary in explanation.boundaries:
        assert boundary.key in page.text
    for endpoint in decision.candidates:
        assert endpoint.id in page.text
    assert page.text.count("chosen") == 1
    widths = [value or "" for name, value in page.attributes if name == "style"]
    assert sum("--n:" in width for width in widths) == len(explanation.boundaries)
    assert "40 requests seen" in page.text


def test_a_fresh_router_says_that_it_knows_nothing() -> None:
    assert "seen no traffic yet" in Page(make_router(2).explain("hello")._repr_html_()).text


def test_a_decision_and_counts_are_shown(router: RouterCore) -> None:
    decision = router.route(chat("system", 1))
    assert decision.endpoint.id in Page(decision._repr_html_()).text
    name = router.endpoints[1].id
    router.eject(name)
    router.report_load({name: EngineLoad(running=3, waiting=2)})
    for html in (router.stats()._repr_html_(), router._repr_html_()):
        page = Page(html)
        assert all(one.id in page.text for one in router.endpoints)
        assert "ejected" in page.text
        assert "60.0%" in page.text
        assert "3 / 2" in page.text
    page = Page(router._repr_html_())
    assert "<RouterCore 3 endpoints, 1 ejected, 0 in flight>" in page.text
    assert router.fingerprint in page.text
    assert "40 requests, 0 in flight, 0 failures" in Page(router.stats()._repr_html_()).text


def test_columns_that_nobody_has_anything_for_are_left_out() -> None:
    page = Page(make_router(2)._repr_html_())
    assert "requests" in page.text
    assert "hit rate" not in page.text
    assert "engine" not in page.text


def test_advice_is_shown() -> None:
    router = make_router(1)
    with router.acquire(blocks(1)) as lease:
        lease.usage(prompt_tokens=100)
    assert "--enable-prompt-tokens-details" in Page(router.stats()._repr_html_()).text


@pytest.mark.parametrize("placement", [None, Fixed(), Random(), RoundRobin()], ids=str)
@pytest.mark.parametrize("body", ["hello " * 900, "", {}, {"input": "x"}], ids=str)
def test_whatever_is_placed_has_a_page(placement: object, body: object) -> None:
    router = make_router(2, placement=placement)  # type: ignore[arg-type]
    explanation = router.explain(body)  # type: ignore[arg-type]
    Page(explanation._repr_html_())
    Page(explanation.decision._repr_html_())
    assert f"goes to   {explanation.decision.endpoint.id}" in str(explanation)
    said = explanation.to_dict()
    assert json.loads(json.dumps(said)) == said


def test_everything_is_escaped_and_nothing_runs_or_loads() -> None:
    evil = "<script>alert(1)</script>\"'&"
    router = make_router([Endpoint("http://a", id=evil), Endpoint("http://b")])
    body = chat(evil, 1)
    explanation = router.explain(body)
    for html in (
        explanation._repr_html_(),
        explanation.decision._repr_html_(),
        router.stats()._repr_html_(),
        router._repr_html_(),
    ):
        page = Page(html)
        assert evil in page.text
        assert set(page.tags) <= {
            "div", "style", "p", "b", "br", "span", "code", "table", "thead", "tbody", "tr", "th",
            "td",
        }  # fmt: skip
        assert {name for name, _ in page.attributes} <= {"class", "style", "title"}
        assert not re.search(r"url\(|@import|javascript:", html)


def test_nothing_secret_is_shown() -> None:
    secret = "sk-secret-4711"
    endpoint = Endpoint(f"http://user:{secret}@gpu-0?key={secret}", api_key=secret)
    router = make_router([endpoint, Endpoint("http://b")])
    explanation = router.explain({"messages": [{"role": "user", "content": secret * 100}]})
    shown = [explanation._repr_html_(), router._repr_html_(), json.dumps(explanation.to_dict())]
    assert all(secret not in one for one in shown)


def test_long_tables_are_cut() -> None:
    router = make_router(100)
    page = Page(router._repr_html_())
    assert page.tags.count("tr") == 1 + 64
    assert "... and 36 more" in page.text
    explanation = router.explain("hello " * 40_000)
    assert f"and {len(explanation.boundaries) - 64} more" in Page(explanation._repr_html_()).text


def test_an_explanation_as_data(router: RouterCore) -> None:
    explanation = router.explain(chat("system", 1))
    said, decision = explanation.to_dict(), explanation.decision
    assert said["endpoint"] == decision.endpoint.id
    assert said["reason"] == decision.reason.value
    assert said["sentence"] == decision.reason.sentence
    assert said["candidates"] == [one.id for one in decision.candidates]
    assert len(said["in_flight"]) == len(said["loads"]) == len(said["candidates"])
    first = explanation.boundaries[0]
    assert said["boundaries"][0] == {
        "key": first.key,
        "tokens": first.tokens,
        "share": first.share,
        "spread": first.spread,
        "holders": first.holders,
    }
    assert json.loads(json.dumps(said)) == said
