"""What callers saw of an outage, from lists of calls and attempts: pure figures.

All times are seconds from the start of the load.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "Attempt",
    "Call",
    "Outage",
    "Phase",
    "Record",
    "avoided_after_s",
    "half_share_after_s",
    "may_have_reached_dying",
    "percentile",
    "traffic_after_s",
]

PROBE_GAP_S: Final = 1.0
"""An attempt at an endpoint that got none in the second before it is a probe."""
SHARE_WINDOW_S: Final = 2.0
_NEVER_SENT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a user.

    Attributes:
        number: Which one.
        due: When it arrived.
        made: When the load got round to making it: later than ``due`` if the machine is too slow.
        ended: When its caller had an answer or an error.
        error: The error; empty: it was answered.
    """

    number: int
    due: float
    made: float
    ended: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request to one endpoint, on behalf of a call.

    Attributes:
        call: The number of the call.
        endpoint: Which endpoint.
        began: When.
        ended: When the headers of its answer, or its error, were there.
        error: The error, or ``status ...``; empty: it was answered well.
    """

    call: int
    endpoint: int
    began: float
    ended: float
    error: str

    @property
    def was_sent(self) -> bool:
        """Whether a byte of it may have reached the endpoint."""
        return self.error not in _NEVER_SENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """What was wrong with one endpoint, and from when until when."""

    fault: str
    endpoint: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run: the calls that arrive in it are its own."""

    name: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All that happened to one client.

    Attributes:
        calls: Of its users.
        attempts: Of the calls.
        outages: Of the endpoints.
        phases: Of the run.
        versions: Of the packages that it is made of.
    """

    calls: Sequence[Call]
    attempts: Sequence[Attempt]
    outages: Sequence[Outage]
    phases: Sequence[Phase]
    versions: Mapping[str, str]


def may_have_reached_dying(
    call: Call, attempts: Sequence[Attempt], outages: Sequence[Outage]
) -> bool:
    """Return whether any of a call's attempts was sent to an endpoint while that was failing.

    A refused connection does not count: nothing was sent over it.

    Args:
        call: The call.
        attempts: Its own.
        outages: All of the run.
    """
    for one in attempts:
        until = one.ended if one.error else call.ended  # the body of an answer may break off later
        for outage in outages:
            overlaps = one.began <= outage.ended and until >= outage.began
            if one.was_sent and outage.endpoint == one.endpoint and overlaps:
                return True
    return False


def avoided_after_s(begins: Sequence[float], outage: Outage) -> float | None:
    """Return how long after its fault began an endpoint got its last attempt that was no probe.

    Args:
        begins: When attempts at it began, sorted.
        outage: The endpoint's.

    Returns:
        Seconds; 0.0 if it got none, ``None`` if it got some to the very end.
    """
    last, before = outage.began, -math.inf
    for at in begins:
        if outage.began <= at <= outage.ended and at - before < PROBE_GAP_S:
            last = at
        before = at
    return None if outage.ended - last < PROBE_GAP_S else last - outage.began


def traffic_after_s(answered: Sequence[float], outage: Outage) -> float | None:
    """Return how long after its fault ended an endpoint got an attempt that it answered.

    Args:
        answered: When attempts that it answered well began, sorted.
        outage: The endpoint's.
    """
    return next((at - outage.ended for at in answered if at >= outage.ended), None)


def half_share_after_s(
    begins: Sequence[float], outage: Outage, well_per_s: float, until: float
) -> float | None:
    """Return how long after its fault ended an endpoint had half of its usual traffic again.

    That is the first attempt with which two seconds begin that bring half of it.

    Args:
        begins: When attempts at it began, sorted.
        outage: The endpoint's.
        well_per_s: Its attempts a second while all was well.
        until: When the load ends.
    """
    least = max(1.0, well_per_s * SHARE_WINDOW_S / 2)
    for position in range(bisect_left(begins, outage.ended), len(begins)):
        at = begins[position]
        if at + SHARE_WINDOW_S > until:
            return None
        if bisect_left(begins, at + SHARE_WINDOW_S) - position >= least:
            return at - outage.ended
    return None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least of the values that this share of them does not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan
