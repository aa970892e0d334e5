"""How long a response asks its caller to wait."""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_tz
from typing import Any, Final

__all__ = ["resets_in_s", "retry_after_s"]

_LONGEST_S: Final = 3600.0

_LIMITS: Final = (
    # what is left, and when it is whole again
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
)

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PERIOD: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])", re.ASCII)


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
    return _clamped(seconds)


def resets_in_s(headers: Any, wall_clock: Callable[[], float]) -> float | None:
    """Return when the rate limit that a refusal ran into is whole again, seconds, 0 to an hour.

    Knows ``x-ratelimit-reset-requests`` and ``-tokens`` (OpenAI: ``1s``, ``6m0s``),
    ``anthropic-ratelimit-*-reset`` (RFC 3339) and ``ratelimit-reset`` (seconds). Of several limits
    the one counts that has nothing left, the longest of them; where something is left of all, the
    request wanted more than that, and the shortest counts.

    Args:
        headers: The response's, which is a refusal.
        wall_clock: Returns seconds since the epoch.

    Returns:
        ``None``: nothing readable.
    """
    resets = list(_resets(headers, wall_clock))
    spent = [seconds for left, seconds in resets if not left]
    return _clamped(max(spent) if spent else min((s for _, s in resets), default=None))


def _resets(headers: Any, wall_clock: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """Yield what is left of each limit (0 if that is not said) and when it is whole again."""
    for remaining, reset in _LIMITS:
        value = headers.get(reset)
        if value is None:
            continue
        seconds = _number(value, 1.0)
        if seconds is None:
            seconds = _period(value)
        if seconds is None:
            seconds = _timestamp(value, wall_clock)
        if seconds is not None:
            yield _number(headers.get(remaining), 1.0) or 0.0, seconds


def _clamped(seconds: float | None) -> float | None:
    return None if seconds is None else min(_LONGEST_S, max(0.0, seconds))


def _number(value: str | None, unit: float) -> float | None:
    try:
        number = math.nan if value is None else float(value) * unit
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _period(value: str) -> float | None:
    value = value.strip()
    if _PERIOD.fullmatch(value) is None:
        return None
    return math.fsum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value))


def _timestamp(value: str, wall_clock: Callable[[], float]) -> float | None:
    try:
        when = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return when.timestamp() - wall_clock()


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
