"""What ``benchmarks.peers`` tells of a run: goals, figures without one, what was left out."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measuring import Row, machine, table
from benchmarks.peers.goals import CLIENTS, Found, values

__all__ = ["Figure", "Report", "figures", "show", "tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Something that was measured, without a goal: a median, with the least and the largest.

    Args:
        what: What was measured.
        unit: Of the figures.
        reached: Median over the repeats.
        low: The least of them.
        high: The largest.
        note: What it is seen beside.
    """

    what: str
    unit: str
    reached: float
    low: float
    high: float
    note: str = ""

    @classmethod
    def of(cls, what: str, unit: str, values: Sequence[float], note: str = "") -> Figure:
        """Return the figure of these repeats."""
        middle = statistics.median(values)
        return cls(
            what=what, unit=unit, reached=middle, low=min(values), high=max(values), note=note
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that is told of a run.

    Args:
        rows: What has a goal.
        figures: What has none.
        left_out: Why something was not measured, by its name.
        packages: Versions, by name.
        settings: How it was measured.
    """

    rows: Sequence[Row]
    figures: Sequence[Figure]
    left_out: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


# -- what has none ---------------------------------------------------------------------------------


def figures(found: Found) -> list[Figure]:
    """Return what else was measured."""
    return [*_more_decisions(found), *_latencies(found), *_parts(found)]


def _more_decisions(found: Found) -> Iterator[Figure]:
    for arm, batches in found.items():
        if arm[:2] == ("decide", "mapping"):
            yield Figure.of(
                "our decision, first sight, from a mapping", "us", values(batches, "first_us")
            )


def _latencies(found: Found) -> Iterator[Figure]:
    for (section, how, through), batches in found.items():
        if section == "litellm":
            what = f"P50 beside LiteLLM, {how}, {through}"
            yield Figure.of(what, "us", values(batches, "p50_us"))
        elif section == "gateway":
            yield Figure.of(f"P50, {CLIENTS[how]}, {through}", "us", values(batches, "p50_us"))


def _parts(found: Found) -> Iterator[Figure]:
    for (section, how, through), batches in found.items():
        if section == "ring":
            what = f"look-up on a ring of {how} members, {through}"
            yield Figure.of(what, "us", values(batches, "us"))
        elif section == "tree":
            for key, sight in (("first_us", "first sight"), ("next_us", "next turn")):
                what = f"match and note a chat, {sight}, {through}"
                yield Figure.of(what, "us", values(batches, key))
        elif section == "memory":
            yield Figure.of(f"memory for {how} prompts, {through}", "MB", values(batches, "mb"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# -- showing ---------------------------------------------------------------------------------------


def show(report: Report, *, as_json: bool) -> None:
    """Print tables in Markdown, or one JSON object."""
    if as_json:
        told = {
            "machine": machine(),
            "packages": report.packages,
            "settings": report.settings,
            "rows": [{**asdict(row), "met": row.met} for row in report.rows],
            "figures": [asdict(figure) for figure in report.figures],
            "left_out": report.left_out,
        }
        print(json.dumps(told))
        return
    print("\n".join(tables(report)))
    sys.stdout.flush()


def tables(report: Report) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield from table(report.rows)
    yield "\n| without a goal | reached | over the repeats |\n|---|---|---|"
    for one in report.figures:
        spread = f"{_short(one.low)} to {_short(one.high)}"
        yield f"| {one.what} | {_short(one.reached)} {one.unit} | {spread} |"
    if report.left_out:
        yield "\n| not measured | why |\n|---|---|"
        yield from (f"| {name} | {why} |" for name, why in report.left_out.items())
