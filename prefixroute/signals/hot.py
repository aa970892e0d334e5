"""What is hot, as routers hand it on: digests and counts, never a text.

Each router leaves what it counted in one of a few places, at random, and all read what is in them:
the cost of either does not depend on how many routers there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import isfinite
from statistics import median_low
from typing import Final

import msgspec

from prefixroute.core.traffic import Hot

__all__ = ["HOT_PLACES", "HOT_PREFIXES", "Snapshot", "pooled", "read_snapshot"]

HOT_PLACES: Final = 8
"""A sample of so many routers tells what is hot among thousands."""

HOT_PREFIXES: Final = 256
"""Prefixes in a snapshot at most."""

_LONGEST: Final = 64 * 1024
_OLDEST_HALF_LIVES: Final = 2.0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What one router had counted at ``at_ms`` of the server's clock; see :class:`Hot`."""

    owner: str
    at_ms: int
    half_life_s: float
    totals: dict[int, float]
    prefixes: list[tuple[int, float, int]]
    tokens: dict[int, int] = {}


_DECODER: Final = msgspec.msgpack.Decoder(Snapshot)


def read_snapshot(packed: bytes | None) -> Snapshot | None:
    """Return a snapshot; ``None``: there is none, or it is not one."""
    if packed is None or len(packed) > _LONGEST:
        return None
    try:
        found = _DECODER.decode(packed)
    except (msgspec.DecodeError, RecursionError):
        return None
    numbers = [
        found.half_life_s,
        *found.totals.values(),
        *(count for _, count, _ in found.prefixes),
    ]
    if found.half_life_s <= 0.0 or not all(isfinite(n) and 0.0 <= n < 1e12 for n in numbers):
        return None
    return found


def pooled(snapshots: Iterable[Snapshot], now_ms: int) -> Hot:
    """Return what routers have counted together; of each only the newest snapshot is taken.

    Args:
        snapshots: Of any other routers.
        now_ms: Of the server's clock: counts decay from their snapshot's time on.
    """
    newest: dict[str, Snapshot] = {}
    for one in sorted(snapshots, key=lambda snapshot: snapshot.at_ms):
        if (now_ms - one.at_ms) / 1000.0 <= _OLDEST_HALF_LIVES * one.half_life_s:
            newest[one.owner] = one
    totals: dict[Hashable, float] = {}
    counts: dict[int, float] = {}
    spreads: dict[int, list[int]] = {}
    tokens: dict[int, int] = {}
    for one in newest.values():
        age_s = max(0.0, (now_ms - one.at_ms) / 1000.0)
        scale = 2.0 ** (-age_s / one.half_life_s)
        for group, total in one.totals.items():
            totals[group] = totals.get(group, 0.0) + total * scale
        for prefix, count, spread in one.prefixes:
            counts[prefix] = counts.get(prefix, 0.0) + count * scale
            spreads.setdefault(prefix, []).append(spread)
        tokens.update(one.tokens)
    return Hot(
        totals=totals,
        prefixes=[(one, count, median_low(spreads[one])) for one, count in counts.items()],
        tokens=tokens,
    )
