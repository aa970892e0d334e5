"""The diagrams of docs/, drawn from the product's own tables: ``python -m docs_site.diagrams``.

They are kept as files, so that a checkout shows them; a test compares them with what is drawn now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from docs_site.drawing import dot, svg
from prefixroute import Explanation, Nested, Router
from prefixroute.core.circle import Circle
from prefixroute.core.explain import Boundary
from prefixroute.core.ring import Ring

__all__ = ["DIAGRAMS", "chain_svg", "ring_svg"]

DOCS: Final = Path(__file__).parents[1] / "docs"
ENDPOINTS: Final = tuple(f"http://gpu-{n}:8000/v1" for n in range(4))
SEED: Final = 0
KEYS: Final = 2.0**64
FEW: Final = 8
"""Virtual nodes of each endpoint in the picture of a ring: as many as can be told apart."""


def main() -> None:
    """Write the diagrams."""
    for name, draw in DIAGRAMS.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")


# -- the ring ----------------------------------------------------------------------------


def ring_svg() -> str:
    """Return a ring with few virtual nodes, a key on its way, and what more of them do."""
    key = _asked().read(_chat("gardening", "dora")).chain[1]
    circle = Circle(dict.fromkeys(ENDPOINTS, FEW), SEED)
    owner = {slot: ENDPOINTS.index(name) for name, slot in circle.slots.items()}
    nodes = [(at, owner[slot]) for at, slot in zip(circle.keys, circle.owners, strict=True)]
    ring = Ring([(name, 1.0) for name in ENDPOINTS], virtual_nodes=FEW, seed=SEED)
    return svg(
        760,
        376,
        f"A ring of {len(ENDPOINTS)} endpoints with {FEW} virtual nodes each, and a key on it",
        [*_circle(nodes), *_key_on_circle(key, nodes, ring.order(key)), *_shares()],
    )


_CENTRE: Final = (205.0, 188.0)
_RADIUS: Final = 128.0


def _point(key: float, radius: float) -> tuple[float, float]:
    turn = key / KEYS * 2.0 * math.pi
    return _CENTRE[0] + radius * math.sin(turn), _CENTRE[1] - radius * math.cos(turn)


def _circle(nodes: Sequence[tuple[int, int]]) -> Iterable[str]:
    """Yield the arcs, each in the colour of whom its keys belong to, then the virtual nodes."""
    before = nodes[-1][0]
    for key, owner in nodes:
        large = int((key - before) % KEYS > KEYS / 2)
        a, b = _point(before, _RADIUS), _point(key, _RADIUS)
        yield (
            f'<path class="arc s{owner}" d="M{a[0]:.1f} {a[1]:.1f}A{_RADIUS:.0f} {_RADIUS:.0f} '
            f'0 {large} 1 {b[0]:.1f} {b[1]:.1f}"/>'
        )
        before = key
    for key, owner in nodes:
        yield dot(*_point(key, _RADIUS), owner, radius=7.0)


def _key_on_circle(
    key: int, nodes: Sequence[tuple[int, int]], order: Sequence[int]
) -> Iterable[str]:
    """Yield the key, the way to its home, and the order in which the endpoints are met."""
    home = next((at for at, _ in nodes if at > key), nodes[0][0])
    outer = _RADIUS + 20.0
    inner, start, end = _point(key, _RADIUS - 9.0), _point(key, outer), _point(home, outer)
    yield (
        f'<path class="line" stroke-width="2" marker-end="url(#tip)" d="M{inner[0]:.1f} '
        f"{inner[1]:.1f}L{start[0]:.1f} {start[1]:.1f}A{outer:.0f} {outer:.0f} 0 0 1 "
        f'{end[0]:.1f} {end[1]:.1f}"/>'
    )
    beside = _point(key, outer + 12.0)
    yield f'<text class="mid small" x="{beside[0]:.1f}" y="{beside[1] + 4.0:.1f}">key</text>'
    x, y = _CENTRE
    yield f'<text class="mid" x="{x:.0f}" y="{y - 32:.0f}">key</text>'
    yield f'<text class="mid code" x="{x:.0f}" y="{y - 14:.0f}">{key:016x}</text>'
    said = "home first, then as met"
    yield f'<text class="mid soft small" x="{x:.0f}" y="{y + 12:.0f}">{said}</text>'
    left = x - (len(order) - 1) * 13.0
    for rank, index in enumerate(order):
        yield dot(left + rank * 26.0, y + 34.0, index, radius=10.0)


def _shares() -> Iterable[str]:
    """Yield how even the ring is with more virtual nodes."""
    left, top, width = 425.0, 66.0, 74.0
    counts = (FEW, 128, Nested().virtual_nodes)
    head = "Share of the keys, by virtual nodes"
    yield f'<text class="head" x="{left:.0f}" y="{top - 24:.0f}">{head}</text>'
    for column, count in enumerate(counts):
        x = left + 30.0 + column * (width + 26.0)
        yield f'<text class="soft" x="{x:.0f}" y="{top:.0f}">{count:,}</text>'
        for index, share in enumerate(_share_of_keys(count)):
            y = top + 18.0 + index * 34.0
            if column == 0:
                yield dot(left + 8.0, y + 8.0, index, radius=8.5)
            yield (
                f'<rect class="f{index}" x="{x:.0f}" y="{y:.0f}" '
                f'width="{width * share / 0.5:.1f}" height="16" rx="2"/>'
            )
            at = x + width * share / 0.5 + 5.0
            yield f'<text class="small" x="{at:.1f}" y="{y + 12.5:.1f}">{share:.1%}</text>'
    lines = (
        f"Left: {FEW} virtual nodes for each endpoint. A key",
        "goes on clockwise to the next one: that is its",
        "home. Who is met next, is next in order.",
        f"With {counts[-1]:,} for each, the default, shares",
        "are nearly even, and who joins takes of all.",
    )
    for row, line in enumerate(lines):
        yield f'<text class="soft" x="{left:.0f}" y="{top + 186.0 + row * 20.0:.0f}">{line}</text>'


def _share_of_keys(virtual_nodes: int) -> list[float]:
    circle = Circle(dict.fromkeys(ENDPOINTS, virtual_nodes), SEED)
    owner = {slot: ENDPOINTS.index(name) for name, slot in circle.slots.items()}
    shares = [0.0] * len(ENDPOINTS)
    before = circle.keys[-1] - KEYS
    for key, slot in zip(circle.keys, circle.owners, strict=True):
        shares[owner[slot]] += (key - before) / KEYS
        before = key
    return shares


# -- the chain ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A prompt to draw."""

    title: str
    parts: Sequence[str]
    explained: Explanation


def chain_svg() -> str:
    """Return three prompts cut at their boundaries: two below a hot prefix, and a cold one."""
    router = _asked()
    for n in range(_OTHERS):
        if n % (_OTHERS // _HOT) == 0:
            _send(router, _chat("gardening", f"user {n}"))
        _send(router, _chat(f"topic {n}", "bob"))
    chats = ("system", "question", "answer", "question")
    rows = [
        _Row(
            title=f"{title}, second turn",
            parts=chats,
            explained=router.explain(_chat(about, user, turns=2)),
        )
        for title, about, user in (
            ("Ann asks about gardening", "gardening", "ann"),
            ("Dora asks about gardening", "gardening", "dora"),
            ("Bob asks about something else", "topic 7", "bob"),
        )
    ]
    drawn = [part for at, row in enumerate(rows) for part in _row(row, 42.0 + at * 140.0)]
    title = "Three prompts, cut at their boundaries, with the keys there and the homes"
    return svg(760, 424, title, drawn)


_HOT: Final = 20
_OTHERS: Final = 300
"""Requests about gardening, each by somebody else, and requests with other system prompts."""

_LEFT: Final = 24.0
_PER_TOKEN: Final = 2.35


def _row(row: _Row, top: float) -> Iterable[str]:
    """Yield a prompt as a bar, and what was found at each boundary that was looked at."""
    decision, boundaries = row.explained.decision, row.explained.boundaries
    yield f'<text class="head" x="{_LEFT:.0f}" y="{top - 9:.0f}">{escape(row.title)}</text>'
    begin = _LEFT
    for at, boundary in enumerate(boundaries):
        end = _LEFT + boundary.tokens * _PER_TOKEN
        hot = " hot" if at < decision.depth else ""
        size = f'x="{begin:.1f}" y="{top:.0f}" width="{end - begin:.1f}" height="26"'
        yield f'<rect class="part{hot}" {size}/>'
        middle = (begin + end) / 2
        yield f'<text class="mid small" x="{middle:.1f}" y="{top + 17:.0f}">{row.parts[at]}</text>'
        begin = end
    members: Sequence[int] = range(len(ENDPOINTS))
    for at, boundary in enumerate(boundaries[: decision.depth + 1]):
        order = [i for i in _ring().order(int(boundary.key, 16)) if i in members]
        kept = order[: decision.spread] if at < decision.depth else order[:1]
        x, y = _LEFT + boundary.tokens * _PER_TOKEN, top + 26.0 * (decision.depth + 2 - at)
        yield f'<path class="line" d="M{x:.1f} {top - 4:.0f}V{y - 4:.0f}h8"/>'
        yield from _boundary(x + 14.0, y, boundary, order, kept)
        members = kept
    if decision.home is None or ENDPOINTS[members[0]] != decision.home.id:
        raise AssertionError(f"{row.title}: {members} drawn, and the router says {decision.home}")
    yield f'<text class="end" x="706" y="{top + 17:.0f}">home</text>'
    yield dot(724.0, top + 13.0, members[0], radius=11.0)


def _boundary(
    x: float, y: float, boundary: Boundary, order: Sequence[int], kept: Sequence[int]
) -> Iterable[str]:
    """Yield a boundary: its key, the share of the traffic, the endpoints in the key's order."""
    share = boundary.share or 0.0
    told = f"in {100 * share:.1f} % of the requests" if share > 0.001 else "hardly in any request"
    yield f'<text class="code" x="{x:.1f}" y="{y:.0f}">{boundary.key[:8]}…</text>'
    yield f'<text class="small soft" x="{x + 76:.1f}" y="{y:.0f}">{told}</text>'
    for rank, index in enumerate(order):
        out = index not in kept
        yield dot(x + 228.0 + rank * 20.0, y - 4.0, index, radius=8.0, out=out)
    said = f"shared by {len(kept)}" if len(kept) > 1 else "its home"
    at = x + 222.0 + len(order) * 20.0
    yield f'<text class="small soft" x="{at:.1f}" y="{y:.0f}">{said}</text>'


def _ring() -> Ring:
    return Ring(
        [(name, 1.0) for name in ENDPOINTS], virtual_nodes=Nested().virtual_nodes, seed=SEED
    )


# -- pieces ------------------------------------------------------------------------------


def _asked() -> Router:
    """Return a router whose time stands still."""
    return Router(ENDPOINTS, seed=SEED, clock=lambda: 0.0)


def _chat(about: str, user: str, *, turns: int = 1) -> Mapping[str, object]:
    system = f"You answer questions about {about}. Be brief, be kind, name your sources. " * 4
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        question = f"I am {user}. This is question {turn + 1}: what do I do next, and when? "
        messages.append({"role": "user", "content": question * 3})
        messages.append({"role": "assistant", "content": f"Answer {turn + 1} for {user}. " * 12})
    return {"model": "any", "messages": messages[:-1]}


def _send(router: Router, body: Mapping[str, object]) -> None:
    with router.acquire(body) as lease:
        lease.first_token()


DIAGRAMS: Final[Mapping[str, Callable[[], str]]] = {"ring.svg": ring_svg, "chain.svg": chain_svg}
"""What is drawn, by file in docs/."""

if __name__ == "__main__":
    main()
