"""A simulation as one page: table, plots and settings, with nothing to load from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Final, TypeAlias

from prefixroute.simulator.plots import plots, routers_text, seconds
from prefixroute.simulator.replica import ReplicaModel
from prefixroute.simulator.report import PolicyResult, Simulation
from prefixroute.simulator.traces import Change

__all__ = ["notebook", "page"]

_COLOURS: Final = 10
"""Of the style sheet; after that many rules they come again."""

Column: TypeAlias = tuple[str, Callable[[PolicyResult], str]]


def page(simulation: Simulation, *, command: str | None = None) -> str:
    """Return the page; see :meth:`Simulation.to_html`."""
    title = f"Simulation of {simulation.trace}"
    body = "".join(
        [
            f"<h1>{escape(title)}</h1>",
            f'<p class="soft">{escape(_facts(simulation))}</p>',
            _best(simulation),
            "<h2>Results</h2>",
            f'<div class="scroll">{_table(simulation)}</div>',
            _reading(simulation),
            "<h2>Plots</h2>",
            _chips(simulation),
            f'<div class="plots">{"".join(plots(simulation))}</div>',
            "<h2>Settings</h2>",
            _list(_settings(simulation)),
            "" if command is None else f"<h2>Again</h2><pre>{escape(command)}</pre>",
            "<h2>Rules</h2>",
            _list(_sources(simulation)),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{_style(simulation)}</head>"
        f'<body class="pr-sim page"><main>{body}</main></body></html>\n'
    )


def notebook(simulation: Simulation) -> str:
    """Return table and plots, for an output cell."""
    return (
        f'<div class="pr-sim">{_style(simulation)}<p>{escape(_facts(simulation))}</p>'
        f'<div class="scroll">{_table(simulation)}</div>{_chips(simulation)}'
        f'<div class="plots">{"".join(plots(simulation))}</div></div>'
    )


# -- text ------------------------------------------------------------------------------


def _change(change: Change) -> str:
    return (
        f"replica {change.replica} {'joins' if change.joins else 'leaves'} at {change.at_s:,.0f} s"
    )


def _facts(simulation: Simulation) -> str:
    return (
        f"{simulation.trace}: {simulation.requests:,} requests with "
        f"{simulation.prompt_tokens:,} prompt tokens in {simulation.duration_s:,.0f} s, on "
        f"{simulation.replicas} simulated replicas."
    )


def _reading(simulation: Simulation) -> str:
    moved = ""
    if simulation.keys_moved:
        moved = (
            " Keys moved: of the last 500 requests before a change, how many had their home "
            "elsewhere after it; mean over the changes."
        )
    return (
        '<p class="soft">Hit rate: share of the prompt tokens that were found in a cache. Bound: '
        "what one cache as large as all together would find. TTFT: time to first token. Max/mean: "
        f"the busiest replica against the mean.{moved} Decisions/s: per second of CPU time. "
        "Bold: the lowest mean TTFT.</p>"
    )


def _best(simulation: Simulation) -> str:
    """Return who has the lowest mean time to first token, for each number of routers."""
    items = []
    for count in simulation.routers:
        ranked = sorted(simulation.with_routers(count), key=lambda result: result.ttft_mean_s)
        first = ranked[0]
        then = ""
        if len(ranked) > 1:
            then = f"; next {escape(ranked[1].policy)}, {seconds(ranked[1].ttft_mean_s)}&nbsp;s"
        items.append(
            f'<li><span class="soft">{routers_text(count)}</span><b>{escape(first.policy)}</b>'
            f"lowest mean TTFT, {seconds(first.ttft_mean_s)}&nbsp;s{then}</li>"
        )
    return f'<ul class="best">{"".join(items)}</ul>'


# -- the table -------------------------------------------------------------------------


def _columns(simulation: Simulation) -> list[Column]:
    pooled = simulation.pooled_hit_rate
    columns: list[Column] = [
        ("hit rate", lambda r: _bar(r.hit_rate, pooled)),
        ("of bound", lambda r: f"{simulation.of_bound(r):.0%}"),
        ("TTFT mean, s", lambda r: seconds(r.ttft_mean_s)),
        ("P50", lambda r: seconds(r.ttft_p50_s)),
        ("P90", lambda r: seconds(r.ttft_p90_s)),
        ("P99", lambda r: seconds(r.ttft_p99_s)),
        ("requests<br>max/mean", lambda r: f"{r.requests_max_over_mean:.2f}"),
        ("work<br>max/mean", lambda r: f"{r.work_max_over_mean:.2f}"),
        ("decisions/s", lambda r: f"{r.decisions_per_s:,.0f}"),
    ]
    if simulation.keys_moved:
        at = len(columns) - 1
        columns.insert(
            at, ("keys moved", lambda r: "" if r.keys_moved is None else f"{r.keys_moved:.1%}")
        )
    return columns


def _bar(hit_rate: float, pooled: float) -> str:
    width = min(1.0, hit_rate / pooled) if pooled else 0.0
    bar = f'<span class="bar" style="--w:{width:.1%}"></span>'
    return f'{bar}<span class="figure">{hit_rate:.1%}</span>'


def _table(simulation: Simulation) -> str:
    columns = _columns(simulation)
    order = simulation.policies
    head = "".join(f"<th>{name}</th>" for name, _ in columns)
    blank = f'<td colspan="{len(columns) - 1}"></td>'
    groups = [
        f'<tbody><tr><th scope="row">one pooled cache: the bound</th>'
        f"<td>{simulation.pooled_hit_rate:.1%}</td>{blank}</tr></tbody>"
    ]
    for count in simulation.routers:
        results = simulation.with_routers(count)
        least = min(result.ttft_mean_s for result in results)
        rows = [
            f'<tr class="c{order.index(r.policy)}{" first" if r.ttft_mean_s == least else ""}">'
            f'<th scope="row"><span class="key"></span>{escape(r.policy)}</th>'
            + "".join(f"<td>{show(r)}</td>" for _, show in columns)
            + "</tr>"
            for r in results
        ]
        groups.append(
            f'<tbody><tr><th scope="rowgroup">{routers_text(count)}</th><td></td>{blank}</tr>'
            f"{''.join(rows)}</tbody>"
        )
    return f"<table><thead><tr><th scope='col'></th>{head}</tr></thead>{''.join(groups)}</table>"


# -- style ----------------------------------------------------------------------------


def _style(simulation: Simulation) -> str:
    """Return the style sheet, with a colour for each rule and the switches of the plots."""
    css = [files("prefixroute.simulator").joinpath("page.css").read_text("utf-8")]
    for at in range(len(simulation.policies)):
        css.append(f".pr-sim .c{at}{{--c:var(--p{at % _COLOURS})}}")
        css.append(f".pr-sim:has(.t{at}:not(:checked)) svg .c{at}{{display:none}}")
    return f"<style>{''.join(css)}</style>"


def _chips(simulation: Simulation) -> str:
    """Return a switch for each rule; it needs no script."""
    chips = [
        f'<label class="c{at}"><input type="checkbox" class="t{at}" checked>{escape(name)}</label>'
        for at, name in enumerate(simulation.policies)
    ]
    return f'<div class="chips">{"".join(chips)}</div>'


# -- lists -----------------------------------------------------------------------------


def _list(entries: Mapping[str, str]) -> str:
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in entries.items())
    return f"<dl>{''.join(rows)}</dl>"


def _settings(simulation: Simulation) -> dict[str, str]:
    setting = simulation.setting
    every, after = setting.report_every_s, setting.replace_after
    entries = {
        "routers": ", ".join(str(count) for count in simulation.routers),
        "routers replaced": "never" if after is None else f"after {after:,} requests",
        "load reports": "none" if every is None else f"every {every:g} s",
        "cached tokens reported": setting.cache_report.value,
        "replies streamed": "yes" if setting.stream else "no",
        "block": f"{simulation.block_tokens} tokens",
        "seed": str(simulation.seed),
    }
    kinds: list[ReplicaModel] = list(dict.fromkeys(simulation.models))
    for number, model in enumerate(kinds):
        name = "replica" if len(kinds) == 1 else f"replica, kind {number + 1}"
        entries[name] = ", ".join(
            f"{key}={value:g}" for key, value in asdict(model).items() if value is not None
        )
    if simulation.changes:
        entries["membership"] = "; ".join(_change(change) for change in simulation.changes)
    return entries


def _sources(simulation: Simulation) -> dict[str, str]:
    return {result.policy: result.source or "given by the caller" for result in simulation.results}
