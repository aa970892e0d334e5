"""Draws what ``prefixroute watch`` has found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefixroute.cli.watch_view import EndpointView, View
from prefixroute.core.hottest import HotPrefix

__all__ = ["draw"]

_DASH: Final = "-"
_FAR_BELOW: Final = 0.1
"""Of an expected hit rate: caches lose what was sent there."""
_HEALTH: Final = {"healthy": "green", "cooling": "yellow", "draining": "yellow", "probing": "cyan"}
_AWAY: Final = "away from home"
_LEFT: Final = ("endpoint", "health", _AWAY)
_FIRST_TO_GO: Final = (
    "expected", "to compute", "P95", "ejected", "waiting", "failed", _AWAY, "req/s", "TTFT P50",
)  # fmt: skip
"""Columns, where there is no room for all."""
_END: Final = re.compile(r"\.(?=[A-Za-z])|[:/]")
"""Where what hosts have in common begins: a domain, a port or a path; no part of an address."""
_GAP: Final = 2
_FOLDED: Final = 20
"""Width at which what is away from home goes on in a further line."""


def draw(
    shown: str,
    view: View | None,
    *,
    age_s: float,
    error: str | None,
    width: int,
    most: int | None = None,
) -> RenderableType:
    """Return what is shown now.

    Args:
        shown: The source's URL, without its secrets.
        view: The last one; ``None``: there has been none.
        age_s: Since then, or since the beginning, seconds.
        error: Why there is no newer one; ``None``: there is nothing wrong.
        width: Of the screen, characters.
        most: Endpoints that have room; ``None``: all.
    """
    parts: list[RenderableType] = [_title(shown, view)]
    if error is not None:
        since = "nothing was read yet" if view is None else f"what is shown is {_age(age_s)} old"
        parts.append(Text(f"Cannot be read: {_plain(error)}; {since}", "bold red"))
    if view is not None:
        parts += [_sums(view), Text(), *_endpoints(view, width, most)]
        if most is not None and len(view.endpoints) > most:
            parts.append(Text(f"and {len(view.endpoints) - most} more", "dim"))
        if view.hottest:
            parts += [Text(), _prefixes(view.hottest)]
        if view.notes:
            parts += [Text(), *(Text(_plain(note), "dim") for note in view.notes)]
    return Group(*parts)


def _title(shown: str, view: View | None) -> Text:
    title = Text.assemble(("prefixroute watch ", "bold"), (_plain(shown), "cyan"))
    if view is not None and view.window_s is not None:
        title.append(f"   the last {_age(view.window_s)}", "dim")
    elif view is not None and view.total.failures is not None:
        title.append("   since its start", "dim")
    return title


def _sums(view: View) -> Text:
    total = view.total
    rate, failovers, waiting = total.requests_per_s, view.failovers, view.waiting_calls
    load = [
        _many(len(view.endpoints), "endpoint"),
        None if view.routers is None else _many(view.routers, "router"),
        f"{_count(total.in_flight)} in flight",
        None if waiting is None else f"{_many(waiting, 'call')} waiting for room",
        None if rate is None else f"{rate:.1f} requests/s",
        None if failovers is None else _many(failovers, "failover"),
    ]
    speed = [
        _hit_rates(total),
        None if total.ttft_p50_s is None else f"TTFT P50 {_seconds(total.ttft_p50_s)}",
        None if total.ttft_p95_s is None else f"P95 {_seconds(total.ttft_p95_s)}",
        None if view.decision_p99_s is None else f"decision P99 {_seconds(view.decision_p99_s)}",
    ]
    lines = (", ".join(one for one in line if one is not None) for line in (load, speed))
    return Text("\n".join(line for line in lines if line))


def _hit_rates(one: EndpointView) -> str | None:
    if one.hit_rate is None:
        return None
    return f"hit rate {_percent(one.hit_rate)} (expected {_percent(one.expected_hit_rate)})"


def _endpoints(view: View, width: int, most: int | None) -> Iterable[RenderableType]:
    """Return the table, with as many columns as there is room for."""
    if not view.endpoints:
        return
    names = _names([_plain(one.id) for one in view.endpoints])
    rows = [_cells(name, one) for name, one in zip(names, view.endpoints, strict=True)][:most]
    columns, left_out = list(rows[0]), 0
    for name in _FIRST_TO_GO:
        if sum(_width(column, rows) + _GAP for column in columns) - _GAP <= width:
            break
        columns.remove(name)
        left_out += 1
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        left, fold = name in _LEFT, name == _AWAY
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=not fold,
            min_width=None if name == "endpoint" else _width(name, rows),
            max_width=_width(name, rows) if fold else None,
            overflow="fold" if fold else "ellipsis",
        )
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    yield table
    if left_out:
        yield Text(f"{_many(left_out, 'column')} more in a wider terminal", "dim")


def _width(name: str, rows: Sequence[Mapping[str, Text]]) -> int:
    widest = max(len(name), *(row[name].cell_len for row in rows))
    return min(widest, max(_FOLDED, len(name))) if name == _AWAY else widest


def _names(ids: Sequence[str]) -> Sequence[str]:
    """Return ids without the scheme and the end that all of them have."""
    bare = [one.removeprefix("http://") for one in ids]
    end = commonprefix([one[::-1] for one in bare])[::-1]  # noqa: RUF071 - characters are meant
    begins = _END.search(end)
    if len(bare) == 1 or begins is None:
        return bare
    short = [one.removesuffix(end[begins.start() :]) for one in bare]
    return short if all(short) else bare


def _cells(name: str, one: EndpointView) -> dict[str, Text]:
    """Return a row by column."""
    health = _plain(one.health or _DASH)
    rate = _DASH if one.requests_per_s is None else f"{one.requests_per_s:.1f}"
    return {
        "endpoint": Text(name),
        "health": Text(health, _HEALTH.get(health, "" if one.health is None else "bold red")),
        "in flight": Text(_count(one.in_flight)),
        "waiting": Text(_count(one.waiting)),
        "to compute": Text(_count(one.queued_tokens)),
        "req/s": Text(rate),
        "hit rate": Text(_percent(one.hit_rate), "yellow" if _loses(one) else ""),
        "expected": Text(_percent(one.expected_hit_rate)),
        "TTFT P50": Text(_seconds(one.ttft_p50_s)),
        "P95": Text(_seconds(one.ttft_p95_s)),
        _AWAY: Text(_spills(one.spills)),
        "failed": Text(_count(one.failures), "red" if one.failures else ""),
        "ejected": Text(_count(one.ejections)),
    }


def _loses(one: EndpointView) -> bool:
    """Whether replies report far fewer cached tokens than were expected."""
    if one.hit_rate is None or one.expected_hit_rate is None:
        return False
    return one.hit_rate < one.expected_hit_rate - _FAR_BELOW


def _prefixes(hottest: Iterable[HotPrefix]) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("hottest prefixes")
    for name in ("tokens", "requests", "of all", "endpoints"):
        table.add_column(name, justify="right")
    for one in hottest:
        table.add_row(
            Text(_plain(one.digest)),
            _count(one.tokens),
            f"{one.requests:,.0f}",
            _percent(one.share),
            str(one.endpoints),
        )
    return table


def _spills(spills: Mapping[str, int] | None) -> str:
    if spills is None:
        return _DASH
    return ", ".join(f"{_plain(reason)} {count}" for reason, count in spills.items()) or "0"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _count(value: int | None) -> str:
    return _DASH if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return _DASH if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return _DASH
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.1f} s"


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"


def _plain(text: str) -> str:
    """Return a text from elsewhere without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)
