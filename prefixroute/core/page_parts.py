"""What is shown in notebooks is made of these: no script, nothing to load.

The text has the page's own colour and lines are half transparent, so that it is the same in light
and in dark. Whatever comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

__all__ = ["SHOWN", "bar", "card", "more", "percent", "row", "table"]

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
.prefixroute .fair{width:9em;
 background:linear-gradient(currentColor,currentColor) no-repeat var(--f) 0/2px 100%,
 linear-gradient(#4c8dd6,#4c8dd6) no-repeat 0/var(--w) 100%,rgba(128,128,128,.25)}
.prefixroute .chip{display:inline-block;width:.7em;height:.7em;margin-right:.5em;border-radius:2px}
.prefixroute svg{display:block;width:100%;height:1.8em;margin:.4em 0 .2em;border-radius:3px}
.prefixroute .figure{display:inline-block;min-width:4em}
.prefixroute .cut{display:flex;height:1.5em;margin:.4em 0 .2em;border-radius:3px;overflow:hidden}
.prefixroute .cut span{flex:var(--n) 1 0;min-width:2px;box-sizing:border-box;
 border-right:1px solid rgba(128,128,128,.8);
 background:color-mix(in srgb,#d97a2b var(--s),rgba(128,128,128,.2))}
.prefixroute .cut .key{box-shadow:inset 0 -4px #4c8dd6}
.prefixroute code{font-size:.95em;background:none;color:inherit}
</style>"""

SHOWN: Final = 64
"""Rows of a table, and parts of a prompt, that are shown."""


def card(*parts: str) -> str:
    """Return parts, which are HTML, as one piece with its style."""
    return f'<div class="prefixroute">{_STYLE}{"".join(parts)}</div>'


def table(names: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table; rows are HTML, names are not."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def row(cells: Iterable[str], *, marked: bool) -> str:
    """Return a row of cells, which are HTML."""
    return (
        f"<tr{' class=at' if marked else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    )


def bar(share: float, text: str) -> str:
    """Return a bar, as long as a share of 0 to 1, with a figure beside it."""
    figure = f'<span class="figure">{text}</span>'
    return f'<span class="bar" style="--w:{min(1.0, max(0.0, share)):.0%}"></span>{figure}'


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return "unknown" if share is None else f"{share:.1%}"


def more(items: Sequence[object]) -> str:
    """Return how many items a table leaves out."""
    left = len(items) - SHOWN
    return f'<p class="soft">... and {left:,} more</p>' if left > 0 else ""
