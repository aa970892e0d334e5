"""``prefixroute analyze``: what the traffic of a log has to gain, and what spoils its prefixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from prefixroute.simulator.analysis import Analysis, analyze
from prefixroute.simulator.analysis.text import Section, report

__all__ = ["run_analyze"]

_STYLES: Final = {True: "bold green", False: "bold yellow", None: "bold"}


def run_analyze(
    log: Path,
    *,
    replicas: int,
    routers: int,
    cache_tokens: int,
    prefill_tokens_per_s: float,
    max_requests: int,
    show_text: bool,
    as_json: bool,
) -> None:
    """Analyse a log and print what was found, the verdict first.

    Raises:
        ConfigurationError: A line that cannot be read, or a setting out of its range.
        OSError: The file cannot be read.
    """
    status = Console(stderr=True, highlight=False)
    with status.status("reading", spinner="line") as shown:
        analysis = analyze(
            log,
            replicas=replicas,
            routers=routers,
            cache_tokens=cache_tokens,
            prefill_tokens_per_s=prefill_tokens_per_s,
            max_requests=max_requests,
            show_text=show_text,
            progress=shown.update,
        )
    if as_json:
        print(json.dumps(analysis.to_dict()))
    else:
        _print(analysis)


def _print(analysis: Analysis) -> None:
    console = Console(highlight=False)
    verdict = analysis.verdict
    console.print(verdict.text, style=_STYLES[verdict.worth_it], markup=False)
    for section in report(analysis):
        console.print()
        console.print(section.title, style="bold underline")
        for line in section.lines:
            console.print(line, markup=False)
        if section.rows:
            console.print(_table(section))
        for line in section.after:
            console.print(line, markup=False)


def _table(section: Section) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(section.columns):
        text = index == 0 or section.rows[0][index].strip("0123456789.,% s") != ""
        table.add_column(name, justify="left" if text or not name else "right")
    for row in section.rows:
        table.add_row(*row)
    return table
