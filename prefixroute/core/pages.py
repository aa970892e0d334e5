"""Decisions, explanations and counts as HTML, for notebooks; see :mod:`page_parts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from prefixroute.core.page_parts import SHOWN, bar, card, more, percent, row, table

if TYPE_CHECKING:
    from prefixroute.core.decision import Decision
    from prefixroute.core.explain import Boundary, Explanation
    from prefixroute.core.stats import EndpointStats, Stats

__all__ = ["decision_html", "explanation_html", "router_html", "stats_html"]


def decision_html(decision: Decision) -> str:
    """Return where a request goes, and why."""
    return card(_verdict(decision), _candidates(decision))


def explanation_html(explanation: Explanation) -> str:
    """Return the prompt as it is cut, how hot its beginnings are, and the endpoints weighed."""
    seen = explanation.requests_seen
    traffic = (
        "This router has seen no traffic yet: nothing is known to be hot."
        if seen < 1.0
        else f"{seen:,.0f} requests seen; older ones fade."
    )
    return card(
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
        f"hit rate {percent(stats.hit_rate)}"
    )
    advice = "".join(f'<p class="soft">{escape(line)}</p>' for line in stats.advice)
    return card(f"<p><b>{total}</b></p>", _endpoints(stats.endpoints), advice)


def router_html(title: str, fingerprint: str, stats: Stats) -> str:
    """Return a router: what it is, and the counts of its endpoints.

    Args:
        title: Its ``repr``.
        fingerprint: Of all that decides a placement.
        stats: Its counts.
    """
    head = f"<p><b>{escape(title)}</b> <span class='soft'>fingerprint "
    return card(f"{head}<code>{escape(fingerprint)}</code></span></p>", _endpoints(stats.endpoints))


# -- parts -------------------------------------------------------------------------------


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
    for at, boundary in enumerate(boundaries[:SHOWN]):
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
        row(
            [
                f"<code>{escape(boundary.key)}</code>"
                + (' <span class="soft">key</span>' if at == depth else ""),
                f"{boundary.tokens:,.0f}",
                *([] if boundary.share is None else [bar(boundary.share, f"{boundary.share:.1%}")]),
                *([] if boundary.spread is None else [f"{boundary.spread:,}"]),
                *([] if boundary.holders is None else [f"{boundary.holders:,}"]),
            ],
            marked=at == depth,
        )
        for at, boundary in enumerate(boundaries[:SHOWN])
    ]
    if not rows:
        return ""
    first = boundaries[0]
    told = (
        ("share of the traffic", first.share),
        ("spread", first.spread),
        ("held by", first.holders),
    )
    names = ["prompt up to", "tokens", *(name for name, value in told if value is not None)]
    return table(names, rows) + more(boundaries)


def _candidates(decision: Decision) -> str:
    most = max(decision.loads, default=0.0)
    rows = []
    for at, endpoint in enumerate(decision.candidates[:SHOWN]):
        load = decision.loads[at] if decision.loads else None
        marks = [
            *(["chosen"] if endpoint is decision.endpoint else []),
            *(["home"] if endpoint is decision.home else []),
        ]
        rows.append(
            row(
                [
                    f'{escape(endpoint.id)} <span class="soft">{", ".join(marks)}</span>',
                    f"{decision.in_flight[at]:,}",
                    "" if load is None else bar(load / most if most else 0.0, f"{load:.3f} s"),
                ],
                marked=endpoint is decision.endpoint,
            )
        )
    bound = "" if decision.bound is None else f" (bound {decision.bound:,})"
    names = ("candidates, in order", f"in flight{bound}", "load, seconds of prefill")
    return table(names, rows) + more(decision.candidates)


def _endpoints(endpoints: Sequence[EndpointStats]) -> str:
    """Return a table without the columns that nobody has anything for."""
    most = max((one.requests for one in endpoints), default=0)
    columns: dict[str, list[str]] = {}
    for one in endpoints[:SHOWN]:
        for name, cell in _facts(one, most):
            columns.setdefault(name, []).append(cell)
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    rows = [row(cells, marked=False) for cells in zip(*kept.values(), strict=True)]
    return table(kept, rows) + more(endpoints)


def _facts(one: EndpointStats, most: int) -> Iterable[tuple[str, str]]:
    warm = "" if one.warmth >= 1.0 else f", {one.warmth:.0%} warm"
    rate, load = one.prefill_tokens_per_s, one.load
    yield "endpoint", escape(one.id)
    yield "state", f"{one.state.value}{warm}"
    yield "requests", bar(one.requests / most if most else 0.0, f"{one.requests:,}")
    yield "in flight", f"{one.in_flight:,}"
    yield "failures", f"{one.failures:,}"
    yield "spills", f"{one.spills:,}"
    yield "hit rate", "" if one.hit_rate is None else bar(one.hit_rate, percent(one.hit_rate))
    yield "prefill, tokens/s", "" if rate is None else f"{rate:,.0f}"
    yield "engine runs / waits", "" if load is None else f"{load.running:,} / {load.waiting:,}"
