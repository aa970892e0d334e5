"""Pieces of the diagrams, as SVG text that reads in light and in dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

__all__ = ["dot", "svg"]

_STYLE: Final = """
.card{fill:#fff;stroke:#d0d7de}
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}
.head{font-weight:600}
.soft{fill:#59636e}
.small{font-size:11px}
.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:11.5px}
.line{stroke:#59636e;fill:none}
.on{fill:#fff;font-size:10px;font-weight:600;text-anchor:middle;dominant-baseline:central}
.part{fill:#eff2f5;stroke:#8c959f}
.hot{fill:#f3d4b3}
.mid{text-anchor:middle}
.end{text-anchor:end}
.f0{fill:#2f6fb5}.f1{fill:#b45309}.f2{fill:#2e7d4f}.f3{fill:#7c4dbd}
.s0{stroke:#2f6fb5}.s1{stroke:#b45309}.s2{stroke:#2e7d4f}.s3{stroke:#7c4dbd}
.arc{fill:none;stroke-width:9;opacity:.55}
.out{opacity:.22}
@media (prefers-color-scheme:dark){
.card{fill:#161b22;stroke:#3d444d}
text{fill:#e6edf3}
.soft{fill:#9198a1}
.line{stroke:#9198a1}
.part{fill:#262c36;stroke:#656c76}
.hot{fill:#6b4523}
.on{fill:#fff}
.f0{fill:#3b7fc9}.f1{fill:#c2620f}.f2{fill:#368f5b}.f3{fill:#8f62cf}
.s0{stroke:#3b7fc9}.s1{stroke:#c2620f}.s2{stroke:#368f5b}.s3{stroke:#8f62cf}
.out{opacity:.3}
}
"""


def dot(x: float, y: float, index: int, *, radius: float, out: bool = False) -> str:
    """Return an endpoint: a disc with its number, faint where it is out of the question."""
    return (
        f"<g{' class=' + chr(34) + 'out' + chr(34) if out else ''}>"
        f'<circle class="f{index}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'
        f'<text class="on" x="{x:.1f}" y="{y:.1f}">{index}</text></g>'
    )


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return a picture on a card of its own colour, whatever the page behind it.

    Args:
        width: Of the picture, pixels.
        height: Of the picture, pixels.
        title: What it shows, for those who cannot see it.
        parts: What is on it; the last is on top.
    """
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" '
        'markerHeight="6" orient="auto"><path class="tip" d="M0 0L10 5L0 10z" fill="#808890"/>'
        "</marker></defs>"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        tip,
        f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
