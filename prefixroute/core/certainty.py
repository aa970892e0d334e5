"""How far chance reaches in the difference of two ratios of sums: a delete-a-group jackknife."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["Gain", "difference", "jackknife", "student"]

_LEVEL: Final = 0.95

_LEAST_PARTS: Final = 8
"""Parts of either group with something in them, below which nothing is said of the difference."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the groups, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether chance alone is an unlikely explanation: 0 is not in the interval."""
        return self.low > 0.0 or self.high < 0.0


def difference(
    more: tuple[Sequence[float], Sequence[float]], less: tuple[Sequence[float], Sequence[float]]
) -> Gain | None:
    """Return the difference of two ratios of sums, with its 95 % interval.

    Args:
        more: Numerators and denominators by part, of the one.
        less: The same of the other, which is subtracted.

    Returns:
        ``None``: too few parts have anything in them.
    """
    first, second = jackknife(*more), jackknife(*less)
    if first is None or second is None:
        return None
    value, variance, parts = first
    other, other_variance, other_parts = second
    reach = student(min(parts, other_parts) - 1) * math.sqrt(variance + other_variance)
    gain = value - other
    return Gain(value=gain, low=gain - reach, high=gain + reach)


def jackknife(tops: Sequence[float], bottoms: Sequence[float]) -> tuple[float, float, int] | None:
    """Return a ratio of sums, the variance of its estimate, and the parts that it is made of.

    Each part is left out once, and the spread of what the others come to tells the variance.

    Source: Kott, "The Delete-a-Group Jackknife", Journal of Official Statistics 17 (2001).
    """
    pairs = [(top, bottom) for top, bottom in zip(tops, bottoms, strict=True) if bottom > 0]
    parts = len(pairs)
    if parts < _LEAST_PARTS:
        return None
    top, bottom = sum(t for t, _ in pairs), sum(b for _, b in pairs)
    without = [(top - t) / (bottom - b) for t, b in pairs]
    mean = sum(without) / parts
    variance = (parts - 1) / parts * sum((one - mean) ** 2 for one in without)
    return top / bottom, variance, parts


def student(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, to 0.5 % from 5 degrees of freedom on.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    from statistics import NormalDist  # noqa: PLC0415 - slow to import, and few ask

    z, v = NormalDist().inv_cdf(0.5 + _LEVEL / 2), float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
