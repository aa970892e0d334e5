"""Decisions, explanations and counts as HTML, for notebooks: no script, nothing to load.

The text has the page's own colour and lines are half transparent, so that it is the same in light
and in dark. Whatever comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prefixroute.core.decision import Decision
    from prefixroute.core.explain import Boundary, Explanation
    from prefixroute.core.stats import EndpointStats, Stats

__all__ = ["decision_html", "explanation_html", "router_html", "stats_html"]

_STYLE: Final = """<style>
.prefixroute{font:13px/1.5 system-ui,sans-serif;max-width:60rem;overflow-x:auto}
.prefixroute table{border-collapse:collapse;margin:.6em 0}
.prefixroute th,.prefixroute td{padding:.15em .8em .15em 0;text-align:right;white-space:nowrap;
 border:0;border-bottom:1px solid rgba(128,128,128,.3);font-variant-numeric:tabular-nums;
 background:none}
.prefixroute th{font-weight:600;opacity:.75;vertical-align:bottom}
.prefixroute th:first-child,.prefixroute td:first-child{text-align:left}
.prefixroute .at td{font-weight:600}
.prefixroute .soft{opacity:.7}
.prefixroute .bar{display:inline-block;width:4em;height:.55em;margin-right:.5em;border-radius:2px;
 background:linear-gradient(#4c8dd6,#4c8dd6) no-repeat 0/var(--w) 100%,rgba(128,128,128,.25)}
.prefixroute .figure{display:inline-block;min-width:4em}
.prefixroute .cut{display:flex;height:1.5em;margin:.4em 0 .2em;border-radius:3px;overflow:hidden}
.prefixroute .cut span{flex:var(--n) 1 0;min-width:2px;box-sizing:border-box;
 border-right:1px solid rgba(128,128,128,.8);
 background:color-mix(in srgb,#d97a2b var(--s),rgba(128,128,128,.2))}
.prefixroute .cut .key{box-shadow:inset 0 -4px #4c8dd6}
.prefixroute code{font-size:.95em;background:none;color:inherit}
</style>"""
_SHOWN: Final = 64
"""Rows of a table, and parts of a prompt, that are shown."""


def decision_html(decision: Decision) -> str:
    """Return where a request goes, and why."""
    return _card(_verdict(decision), _candidates(decision))


def explanation_html(explanation: Explanation) -> str:
    """Return the prompt as it is cut, how hot its beginnings are, and the endpoints weighed."""
    seen = explanation.requests_seen
    traffic = (
        "This router has seen no traffic yet: nothing is known to be hot."
        if seen < 1.0
        else f"{seen:,.0f} requests seen; older ones fade."
    )
    return _card(
        _verdict(explanation.decision),
        _cut(explanation.boundaries, explanation.decision.depth),
        _boundaries(explanation.boundaries, explanation.decision.depth),
        _candidates(explanation.decision),
        f'<p class="soft">{traffic}</p>',
    )


def stats_html(stats: Stats) -> str:
    """Return the counts, a row for each endpoint."""
    total = (
        f"{stats.requests:,} requests, {stats.in_flight:,} in flight, {stats.failures:,} failures, "
        f"hit rate {_percent(stats.hit_rate)}"
    )
    advice = "".join(f'<p class="soft">{escape(line)}</p>' for line in stats.advice)
    return _card(f"<p><b>{total}</b></p>", _endpoints(stats.endpoints), advice)


def router_html(title: str, fingerprint: str, stats: Stats) -> str:
    """Return a router: what it is, and the counts of its endpoints.

    Args:
        title: Its ``repr``.
        fingerprint: Of all that decides a placement.
        stats: Its counts.
    """
    head = f"<p><b>{escape(title)}</b> <span class='soft'>fingerprint "
    return _card(
        f"{head}<code>{escape(fingerprint)}</code></span></p>", _endpoints(stats.endpoints)
    )


# -- parts -------------------------------------------------------------------------------


def _card(*parts: str) -> str:
    return f'<div class="prefixroute">{_STYLE}{"".join(parts)}</div>'


def _verdict(decision: Decision) -> str:
    home = decision.home
    facts = [
        f"home {escape(home.id) if home is not None else 'none'}",
        f"key <code>{escape(decision.key or '-')}</code>",
        f"spread {decision.spread}",
        f"about {decision.tokens:,.0f} tokens, {decision.expected_cached_tokens:,.0f} of them "
        "expected in the cache there",
    ]
    return (
        f"<p><b>{escape(decision.endpoint.id)}</b><br>{escape(decision.reason.sentence)}<br>"
        f'<span class="soft">{", ".join(facts)}</span></p>'
    )


def _cut(boundaries: Sequence[Boundary], depth: int) -> str:
    """Return the prompt as a bar: as long as its parts, as orange as their share of the traffic."""
    if not boundaries:
        return ""
    parts = []
    before = 0.0
    for at, boundary in enumerate(boundaries[:_SHOWN]):
        tokens = max(0.0, boundary.tokens - before)
        before = boundary.tokens
        said = f"{tokens:,.0f} tokens" + (
            "" if boundary.share is None else f", {boundary.share:.1%} of the traffic"
        )
        key = ' class="key"' if at == depth else ""
        parts.append(
            f'<span{key} title="{said}" style="--n:{tokens:.0f};--s:{boundary.share or 0.0:.0%}">'
            "</span>"
        )
    legend = "The prompt: as long as its parts, as orange as their traffic; the key is underlined."
    return f'<div class="cut">{"".join(parts)}</div><span class="soft">{legend}</span>'


def _boundaries(boundaries: Sequence[Boundary], depth: int) -> str:
    rows = [
        _row(
            [
                f"<code>{escape(boundary.key)}</code>"
                + (' <span class="soft">key</span>' if at == depth else ""),
                f"{boundary.tokens:,.0f}",
                "" if boundary.share is None else _bar(boundary.share, f"{boundary.share:.1%}"),
            ],
            marked=at == depth,
        )
        for at, boundary in enumerate(boundaries[:_SHOWN])
    ]
    names = ("prompt up to", "tokens", "share of the traffic")
    return _table(names, rows) + _more(boundaries) if rows else ""


def _candidates(decision: Decision) -> str:
    most = max(decision.loads, default=0.0)
    rows = []
    for at, endpoint in enumerate(decision.candidates[:_SHOWN]):
        load = decision.loads[at] if decision.loads else None
        marks = [
            *(["chosen"] if endpoint is decision.endpoint else []),
            *(["home"] if endpoint is decision.home else []),
        ]
        rows.append(
            _row(
                [
                    f'{escape(endpoint.id)} <span class="soft">{", ".join(marks)}</span>',
                    f"{decision.in_flight[at]:,}",
                    "" if load is None else _bar(load / most if most else 0.0, f"{load:.3f} s"),
                ],
                marked=endpoint is decision.endpoint,
            )
        )
    bound = "" if decision.bound is None else f" (bound {decision.bound:,})"
    names = ("candidates, in order", f"in flight{bound}", "load, seconds of prefill")
    return _table(names, rows) + _more(decision.candidates)


def _endpoints(endpoints: Sequence[EndpointStats]) -> str:
    """Return a table without the columns that nobody has anything for."""
    most = max((one.requests for one in endpoints), default=0)
    columns: dict[str, list[str]] = {}
    for one in endpoints[:_SHOWN]:
        for name, cell in _facts(one, most):
            columns.setdefault(name, []).append(cell)
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    rows = [_row(cells, marked=False) for cells in zip(*kept.values(), strict=True)]
    return _table(kept, rows) + _more(endpoints)


def _facts(one: EndpointStats, most: int) -> Iterable[tuple[str, str]]:
    warm = "" if one.warmth >= 1.0 else f", {one.warmth:.0%} warm"
    rate, load = one.prefill_tokens_per_s, one.load
    yield "endpoint", escape(one.id)
    yield "state", f"{one.state.value}{warm}"
    yield "requests", _bar(one.requests / most if most else 0.0, f"{one.requests:,}")
    yield "in flight", f"{one.in_flight:,}"
    yield "failures", f"{one.failures:,}"
    yield "spills", f"{one.spills:,}"
    yield "hit rate", "" if one.hit_rate is None else _bar(one.hit_rate, _percent(one.hit_rate))
    yield "prefill, tokens/s", "" if rate is None else f"{rate:,.0f}"
    yield "engine runs / waits", "" if load is None else f"{load.running:,} / {load.waiting:,}"


# -- pieces ------------------------------------------------------------------------------


def _table(names: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cells: Iterable[str], *, marked: bool) -> str:
    return (
        f"<tr{' class=at' if marked else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    )


def _bar(share: float, text: str) -> str:
    figure = f'<span class="figure">{text}</span>'
    return f'<span class="bar" style="--w:{min(1.0, max(0.0, share)):.0%}"></span>{figure}'


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _more(items: Sequence[object]) -> str:
    left = len(items) - _SHOWN
    return f'<p class="soft">... and {left:,} more</p>' if left > 0 else ""
