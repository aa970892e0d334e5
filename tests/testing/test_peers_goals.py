"""The goals of ``benchmarks.peers`` say what they claim, on figures that are written down."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.peers.calls import ROUTED
from benchmarks.peers.goals import Found, hidden, rows
from benchmarks.peers.report import Figure, Report, figures, tables

GATEWAY = "gateway"


def call(p50: float, cpu: float, gateway: float = 0.0) -> Mapping[str, float]:
    return {"p50_us": p50, "cpu_us": cpu, "gateway_us": gateway}


def test_what_a_gateway_adds_is_beyond_the_same_client_without_it() -> None:
    found: Found = {
        ("gateway", "httpx", "direct"): [call(1000, 400), call(2000, 400)],
        ("gateway", "httpx", ROUTED): [call(1050, 500), call(2100, 500)],
        ("gateway", "httpx", GATEWAY): [call(2000, 450, 550), call(3000, 450, 550)],
    }
    added, cpu = rows(found, [GATEWAY], ROUTED)
    assert (added.low, added.high, added.goal) == (0.05, 0.1, 0.1)
    assert added.reached == pytest.approx(0.075)
    assert added.met
    assert "75 us against 1000 us" in added.note
    assert cpu.reached == 0.5
    assert cpu.met
    assert "500 us against 450 + 550 us; no routing at all 0.40 x" in cpu.note


def test_a_missed_goal_says_why_and_what_was_not_measured_has_no_row() -> None:
    found: Found = {
        ("decide", "bytes", ROUTED): [{"first_us": 100.0, "next_us": 100.0}],
        ("decide", "simple-shuffle", "LiteLLM"): [{"first_us": 200.0, "next_us": 1600.0}],
    }
    first, following = rows(found, [GATEWAY], ROUTED)
    assert (first.reached, first.met, following.reached, following.met) == (2, False, 16, True)
    assert "reads no prompt" in first.note
    assert "reads no prompt" not in following.note


def test_a_call_beside_litellm_says_what_no_routing_at_all_would_reach() -> None:
    found: Found = {
        ("litellm", "openai-post", "direct"): [call(0, 2000), call(0, 2000)],
        ("litellm", "openai-post", ROUTED): [call(0, 2500), call(0, 4000)],
        ("litellm", "sync", "LiteLLM"): [call(0, 10_000), call(0, 10_000)],
    }
    (row,) = rows(found, [], ROUTED)
    assert (row.reached, row.low, row.high, row.met) == (3.25, 2.5, 4.0, True)
    assert "no routing at all 5 x" in row.note


@pytest.mark.parametrize(("mine", "theirs"), [(1100, 990), (900, 1500)])
def test_what_noise_hides_is_no_row_but_named(mine: float, theirs: float) -> None:
    found: Found = {
        ("gateway", "openai", "direct"): [call(900, 400), call(1000, 400), call(1100, 400)],
        ("gateway", "openai", ROUTED): [call(mine, 500)] * 3,
        ("gateway", "openai", GATEWAY): [call(theirs, 450, 550)] * 3,
    }
    (cpu,) = rows(found, [GATEWAY], ROUTED)
    assert cpu.what.startswith("CPU")
    ((name, why),) = hidden(found, [GATEWAY], ROUTED).items()
    assert name == "added P50, OpenAI create(): against gateway's"
    assert "0.90 to 1.10 ms" in why


def test_noise_in_one_repeat_makes_no_infinite_ratio() -> None:
    found: Found = {
        ("gateway", "openai", "direct"): [call(1000, 400)] * 3,
        ("gateway", "openai", ROUTED): [call(1100, 500)] * 3,
        ("gateway", "openai", GATEWAY): [call(990, 1, 1), call(1200, 1, 1), call(1200, 1, 1)],
    }
    added, _ = rows(found, [GATEWAY], ROUTED)
    assert (added.reached, added.high) == (0.5, 100)
    assert hidden(found, [GATEWAY], ROUTED) == {}


def test_tables_have_what_was_left_out_and_its_reason() -> None:
    shown = "\n".join(
        tables(
            Report(
                rows=[],
                figures=[Figure.of("a thing", "us", [3.0, 1.0, 2.0])],
                left_out={"a peer": "it is not published"},
            )
        )
    )
    assert "| a thing | 2 us | 1 to 3 |" in shown
    assert "| a peer | it is not published |" in shown


def test_parts_and_latencies_are_shown_without_a_goal() -> None:
    found: Found = {
        ("ring", "8", ROUTED): [{"us": 1.0}],
        ("tree", "", "a tree"): [{"first_us": 2.0, "next_us": 3.0}],
        ("memory", "100", "a tree"): [{"mb": 4.0}],
        ("litellm", "openai-async", ROUTED): [call(5.0, 1.0)],
    }
    assert [(figure.what, figure.reached) for figure in figures(found)] == [
        (f"P50 beside LiteLLM, openai-async, {ROUTED}", 5.0),
        (f"look-up on a ring of 8 members, {ROUTED}", 1.0),
        ("match and note a chat, first sight, a tree", 2.0),
        ("match and note a chat, next turn, a tree", 3.0),
        ("memory for 100 prompts, a tree", 4.0),
    ]
