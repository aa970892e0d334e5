"""What the benchmarks of speed share: repeats in turn, ratios with their spread, goals, tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

__all__ = [
    "Row",
    "by_turns",
    "cpu_us",
    "machine",
    "options",
    "packages",
    "parser",
    "peak_mb",
    "ratio_row",
    "show",
    "table",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One goal and what was reached: a median over repeats, with the least and the largest.

    Args:
        what: What was measured.
        unit: Of the figures: what a ratio is against, or a unit of measure.
        goal: The most that is wanted; the least where ``at_least``.
        reached: Median over the repeats.
        low: The least of them.
        high: The largest.
        at_least: The goal is a lower bound.
        note: The absolute figures behind it, for scale; why a goal is missed.
    """

    what: str
    unit: str
    goal: float
    reached: float
    low: float
    high: float
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the median reaches the goal."""
        return self.reached >= self.goal if self.at_least else self.reached <= self.goal


def cpu_us(run: Callable[[T], object], args: Sequence[T]) -> float:
    """Return the CPU time of this thread for one call, microseconds: a mean over the arguments."""
    began = time.thread_time_ns()
    for arg in args:
        run(arg)
    return (time.thread_time_ns() - began) / len(args) / 1000


def peak_mb() -> float:
    """Return the most memory that was ever resident in this process, MB (10^6 bytes).

    Not ``ru_maxrss``: a process inherits that from the one that started it.
    """
    told = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in told.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def by_turns(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Return the figures of each run; one of each per repeat, so that noise meets all alike."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeats):
        names = list(runs) if number % 2 == 0 else list(runs)[::-1]
        for name in names:
            found[name].append(runs[name]())
    return found


def ratio_row(
    what: str,
    figures: Sequence[float],
    against: Sequence[float],
    *,
    unit: str,
    goal: float,
    at_least: bool = False,
    note: str = "",
) -> Row:
    """Return a row of the ratios within each repeat."""
    ratios = [figure / base for figure, base in zip(figures, against, strict=True)]
    return Row(
        what=what,
        unit=unit,
        goal=goal,
        reached=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        at_least=at_least,
        note=note,
    )


def packages(*names: str) -> Mapping[str, str]:
    """Return the versions of packages in this environment."""
    return {name: importlib.metadata.version(name) for name in names}


def machine() -> Mapping[str, object]:
    """Return what the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def parser(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """Return a parser with what all of these benchmarks take."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--repeats", type=int, default=repeats, help="of each measurement, in turn")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def options(description: str | None, *, repeats: int) -> argparse.Namespace:
    """Return the arguments of a benchmark that takes no others."""
    return parser(description, repeats=repeats).parse_args()


def show(rows: Iterable[Row], versions: Mapping[str, str], *, as_json: bool) -> None:
    """Print the rows as a table in Markdown, or with the machine and versions as JSON."""
    rows = list(rows)
    if as_json:
        shown = [{**asdict(row), "met": row.met} for row in rows]
        print(json.dumps({"machine": machine(), "packages": versions, "rows": shown}))
        return
    print("\n".join(table(rows)))
    sys.stdout.flush()


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield "| what | goal | reached | over the repeats | |\n|---|---|---|---|---|"
    for row in rows:
        sign = ">=" if row.at_least else "<="
        mark = "met" if row.met else "**missed**"
        note = f": {row.note}" if row.note else ""
        yield (
            f"| {row.what} | {sign} {row.goal:g} {row.unit} | {row.reached:.3g} "
            f"| {row.low:.3g} to {row.high:.3g} | {mark}{note} |"
        )
