"""Lays one text along another: where they differ, and where they agree again.

Both are walked once. Where they differ, the differing value is found by its look, or else the next
words that both have are looked for within a bounded reach: so the time is linear in the length.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from prefixroute.simulator.analysis.kinds import PATTERN

__all__ = ["Alignment", "align", "common_length"]

_MOST_DIFFERENCES: Final = 24
_BACK: Final = 48
"""How far in front of a difference a value may start."""

_REACHES: Final = ((256, 12, re.compile(r"\w+|\s+|[^\w\s]")), (8192, 48, re.compile(r"\n")))
"""Reach, how much must agree behind it, and where that may start: first near, then far."""

_VALUE_GRAM: Final = 4
_TAIL: Final = 256
"""Texts whose ends differ by no more than this differ by a value at the end."""

_TAG: Final = re.compile(r"[\w'-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Where two texts differ.

    Args:
        differences: ``(start, end)`` in the first and in the second text, ascending.
        reached: Up to where in the first text both were laid along each other.
        agreed: How many characters they have in common behind the first difference.
    """

    differences: tuple[tuple[int, int, int, int], ...]
    reached: int
    agreed: int

    def place(self, start: int, end: int) -> tuple[int, int] | None:
        """Return where in the second text a stretch of the first is; ``None``: nowhere."""
        if end > self.reached:
            return None
        return self._at(start, last=False), self._at(end, last=True)

    def _at(self, at: int, *, last: bool) -> int:
        index = bisect_right(self.differences, at, key=lambda d: d[0]) - 1
        if index < 0:
            return at
        a0, a1, b0, b1 = self.differences[index]
        if at == a0:  # what was put in here belongs to a stretch that ends here
            return b1 if last and a1 == a0 else b0
        if at < a1:
            return b1 if last else b0
        return b1 + at - a1


def common_length(a: str, i: int, b: str, j: int) -> int:
    """Return how many characters two texts have in common from these places on."""
    rest = min(len(a) - i, len(b) - j)
    if a[i : i + rest] == b[j : j + rest]:
        return rest
    same, step = 0, 64
    while a[i + same : i + same + step] == b[j + same : j + same + step]:
        same, step = same + step, 2 * step
    while step > 1:
        step //= 2
        if a[i + same : i + same + step] == b[j + same : j + same + step]:
            same += step
    return same


def align(a: str, b: str) -> Alignment:
    """Lay ``b`` along ``a``."""
    i = j = agreed = 0
    differences: list[tuple[int, int, int, int]] = []
    while True:
        same = common_length(a, i, b, j)
        agreed += same if differences else 0
        i, j = i + same, j + same
        if i == len(a) and j == len(b):
            break
        floor = differences[-1][1] if differences else 0
        found = _resume(a, i, b, j, floor) if len(differences) < _MOST_DIFFERENCES else None
        if found is None:
            break
        agreed -= min(agreed, i - found[0])
        differences.append(found)
        i, j = found[1], found[3]
    return Alignment(differences=tuple(differences), reached=i, agreed=agreed)


def _resume(a: str, i: int, b: str, j: int, floor: int) -> tuple[int, int, int, int] | None:
    """Return the difference that begins about here; ``None``: the texts never agree again."""
    in_a, in_b = _value(a, i), _value(b, j)
    back = max(i - (in_a[0] if in_a else i), j - (in_b[0] if in_b else j))
    back = min(max(back, _word(a, i, b, j)), i - floor)
    a0, b0 = i - back, j - back
    if in_a and in_b and (in_a[0], in_b[0]) == (a0, b0):
        a1, b1 = in_a[1], in_b[1]
        gram = a[a1 : a1 + _VALUE_GRAM]
        if gram == b[b1 : b1 + _VALUE_GRAM]:
            return a0, a1, b0, b1
    for reach, least, starts in _REACHES:
        found = _again(a, a0, b, b0, (reach, least, starts))
        if found is not None:
            return a0, found[0], b0, found[1]
    if max(len(a) - a0, len(b) - b0) <= _TAIL:
        return a0, len(a), b0, len(b)
    return None


def _value(text: str, at: int) -> tuple[int, int] | None:
    """Return the value that covers a place, or ends there."""
    start = max(0, at - _BACK)
    for match in PATTERN.finditer(text, start, at + 2 * _BACK):
        if match.start() > at:
            break
        if match.end() >= at:
            return match.span()
    return None


def _word(a: str, i: int, b: str, j: int) -> int:
    """Return how far in front of a difference its word, or its blanks, begin."""
    back = 0
    blank = a[i : i + 1].isspace() or b[j : j + 1].isspace()
    if blank and a[i - 1 : i].isspace():
        while back < min(i, j, _BACK) and a[i - back - 1].isspace():
            back += 1
        return back
    while back < min(i, j, _BACK) and _TAG.match(a[i - back - 1]):
        back += 1
    return back


def _again(
    a: str, a0: int, b: str, b0: int, how: tuple[int, int, re.Pattern[str]]
) -> tuple[int, int] | None:
    reach, least, starts = how
    seen: dict[str, int] = {}
    for match in starts.finditer(a, a0, a0 + reach):
        seen.setdefault(a[match.start() : match.start() + least], match.start())
    best: tuple[int, int] | None = None
    for match in starts.finditer(b, b0, b0 + reach):
        at = match.start()
        if best is not None and at - b0 >= best[0] - a0 + best[1] - b0:
            break
        other = seen.get(b[at : at + least])
        if other is not None and (
            best is None or other - a0 + at - b0 < best[0] - a0 + best[1] - b0
        ):
            best = other, at
    return best
