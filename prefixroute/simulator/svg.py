"""Line charts as SVG text. Colours and sizes of type come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

__all__ = ["Axis", "Line", "chart", "linear_axis", "log_axis", "steps_axis", "time_axis"]

_WIDTH: Final = 520
_HEIGHT: Final = 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 26, 12, 58
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from ``low`` to ``high``.

    Args:
        label: What it shows, with the unit.
        low: Value at its start.
        high: Value at its end, above ``low``.
        ticks: Values that are marked, with their text.
        log: Whether it is logarithmic.
    """

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value is, from 0 at the start to 1 at the end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points.

    Args:
        css: Its classes.
        points: ``(x, y)``, by x.
        title: What a pointer on it shows.
        dots: Whether each point is marked.
    """

    css: str
    points: Sequence[tuple[float, float]]
    title: str = ""
    dots: bool = False


def linear_axis(label: str, high: float, show: Callable[[float], str]) -> Axis:
    """Return an axis from 0 to the next of about four ticks at round values."""
    high = high if high > 0.0 else 1.0
    power = 10.0 ** math.floor(math.log10(high / 4.0))
    step = next(power * s for s in _STEPS if power * s >= high / 4.0 - 1e-12)
    count = math.ceil(high / step - 1e-9)
    ticks = [(n * step, show(n * step)) for n in range(count + 1)]
    return Axis(label=label, low=0.0, high=count * step, ticks=ticks)


def log_axis(label: str, values: Iterable[float], show: Callable[[float], str]) -> Axis:
    """Return a logarithmic axis that has these values, with ticks at powers of ten."""
    positive = [value for value in values if value > 0.0] or [1.0]
    low, high = min(positive) / 1.1, max(positive) * 1.1
    first = math.ceil(math.log10(low))
    if 10.0 ** (first + 1) > high:  # there is to be more than one tick
        first, low, high = first - 1, min(low, 10.0 ** (first - 1)), max(high, 10.0**first)
    powers = range(first, math.floor(math.log10(high) + 1e-9) + 1)
    ticks = [(10.0**power, show(10.0**power)) for power in powers]
    return Axis(label=label, low=low, high=high, log=True, ticks=ticks)


def time_axis(label: str, high: float, show: Callable[[float], str]) -> Axis:
    """Return an axis from 0 that ends where the time does."""
    axis = linear_axis(label, high, show)
    within = [(value, text) for value, text in axis.ticks if value <= high]
    return replace(axis, high=high or axis.high, ticks=within)


def steps_axis(label: str, names: Sequence[str]) -> Axis:
    """Return an axis with a place for each name, at 0, 1, 2 and so on."""
    ticks = list(enumerate(names))
    return Axis(label=label, low=-0.25, high=len(names) - 0.75, ticks=ticks)


def chart(title: str, x: Axis, y: Axis, lines: Iterable[Line]) -> str:
    """Return a chart.

    Args:
        title: What it shows, for those who cannot see it.
        x: The horizontal axis.
        y: The vertical axis.
        lines: The last one is on top.
    """
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x, y),
        *(_line(line, x, y) for line in lines),
        "</svg>",
    ]
    return "".join(parts)


def _at_x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _at_y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)


def _grid(x: Axis, y: Axis) -> Iterable[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value, text in y.ticks:
        at = _at_y(y, value)
        yield f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>'
        yield f'<text class="y" x="{_LEFT - 8}" y="{at:.1f}">{escape(text)}</text>'
    for value, text in x.ticks:
        at = _at_x(x, value)
        yield f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>'
        yield f'<text class="x" x="{at:.1f}" y="{bottom + 20}">{escape(text)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
    middle = (_LEFT + right) / 2
    yield f'<text class="label" x="{middle:.0f}" y="{_HEIGHT - 8}">{escape(x.label)}</text>'
    if y.label:
        yield f'<text class="name" x="{_LEFT + 6}" y="{_TOP + 13}">{escape(y.label)}</text>'


def _line(line: Line, x: Axis, y: Axis) -> str:
    places = [(_at_x(x, a), _at_y(y, b)) for a, b in line.points]
    if not places:
        return ""
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    dots = ""
    if line.dots:
        dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in places)
    title = f"<title>{escape(line.title)}</title>" if line.title else ""
    return f'<g class="line {line.css}">{title}<path d="{path}"/>{dots}</g>'
