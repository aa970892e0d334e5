"""How long a response asks its caller to wait."""

from __future__ import annotations

import calendar
import math
from collections.abc import Callable
from email.utils import parsedate_tz
from typing import Any, Final

__all__ = ["retry_after_s"]

_LONGEST_S: Final = 3600.0


def retry_after_s(headers: Any, wall_clock: Callable[[], float]) -> float | None:
    """Return what a response asks to wait, seconds, 0 to an hour; ``None``: nothing readable.

    Knows ``retry-after-ms``, and ``Retry-After`` as seconds and as an HTTP date (RFC 9110, 10.2.3).

    Args:
        headers: The response's.
        wall_clock: Returns seconds since the epoch.
    """
    seconds = _number(headers.get("retry-after-ms"), 0.001)
    if seconds is None:
        value = headers.get("retry-after")
        seconds = _number(value, 1.0)
        if seconds is None and value is not None:
            seconds = _until(value, wall_clock)
    return None if seconds is None else min(_LONGEST_S, max(0.0, seconds))


def _number(value: str | None, unit: float) -> float | None:
    try:
        number = math.nan if value is None else float(value) * unit
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _until(value: str, wall_clock: Callable[[], float]) -> float | None:
    try:
        date = parsedate_tz(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if date is None:
        return None
    try:
        return calendar.timegm((*date[:6], 0, 0, 0)) - (date[9] or 0) - wall_clock()
    except (ValueError, OverflowError):
        return math.inf if date[0] > 9999 else None  # a year that no calendar has
