"""A ring as HTML, for notebooks: a piece of it to scale, and whose share is how large."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from prefixroute.core.page_parts import SHOWN, card, more, row, table

if TYPE_CHECKING:
    from prefixroute.core.ring_view import RingView

__all__ = ["ring_html"]

_WIDTH: Final = 1000.0
_HEIGHT: Final = 20
_HUES: Final = (211, 28, 140, 0, 265, 50, 180, 320)
"""Of the first endpoints, to be told apart; the others follow by the golden angle."""


def ring_html(ring: RingView) -> str:
    """Return the ring: its first virtual nodes, and each endpoint's share beside the fair one."""
    count = len(ring.members)
    many = "" if count == 1 else "s"
    head = (
        f"<p><b>Ring of {count:,} endpoint{many}, {ring.virtual_nodes:,} virtual nodes</b>"
        + (f", tier {ring.tier}" if ring.tier else "")
        + "</p>"
    )
    return card(head, _strip(ring), _members(ring))


def _strip(ring: RingView) -> str:
    """Return the first virtual nodes, each as wide as its keys are many."""
    total = sum(share for _, share in ring.pieces)
    paths: dict[int, list[str]] = {}
    at = 0.0
    for index, share in ring.pieces:
        width = share / total * _WIDTH
        paths.setdefault(index, []).append(f"M{at:.1f} 0h{width:.1f}v{_HEIGHT}h-{width:.1f}z")
        at += width
    drawn = "".join(
        f'<path fill="{_colour(index)}" d="{"".join(parts)}">'
        f"<title>{escape(ring.members[index].id)}</title></path>"
        for index, parts in sorted(paths.items())
    )
    part = "The whole ring" if total > 0.999 else f"{total:.1%} of the ring"
    legend = f"{part}, to scale: a piece is a virtual node, its colour its endpoint."
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{legend}">{drawn}</svg><span class="soft">{legend}</span>'
    )


def _members(ring: RingView) -> str:
    most = 1.05 * max(max(member.share, member.fair_share) for member in ring.members)
    rows = [
        row(
            [
                f'<span class="chip" style="background:{_colour(index)}"></span>'
                f"{escape(member.id)}",
                f"{member.weight:g}",
                f"{member.virtual_nodes:,}",
                f'<span class="bar fair" style="--w:{member.share / most:.1%};'
                f'--f:{member.fair_share / most:.1%}"></span>'
                f'<span class="figure">{member.share:.2%}</span>',
                f"{member.share / member.fair_share - 1.0:+.1%}",
            ],
            marked=False,
        )
        for index, member in enumerate(ring.members[:SHOWN])
    ]
    names = ("endpoint", "weight", "virtual nodes", "share of the keys (line: fair)", "off by")
    return table(names, rows) + more(ring.members)


def _colour(index: int) -> str:
    hue = _HUES[index] if index < len(_HUES) else round(211 + 137.508 * index) % 360
    return f"hsl({hue} 55% 55%)"
