"""The hottest prefixes, as people and dashboards are shown them: digests and numbers alone."""

from __future__ import annotations

from math import isclose
from typing import Final

import msgspec

from prefixroute.core.traffic import Hot

__all__ = ["HotPrefix", "hottest"]

_DIGEST: Final = 0xFFFF_FFFF_FFFF_FFFF
_SAME: Final = 1e-9
"""Counts that differ by no more are of the same requests, added up in another order."""


class HotPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that many requests start with.

    Args:
        digest: Its block hash, 16 hexadecimal digits, as ``Router.explain`` shows it; in a tier
            other than 0 it is another number.
        requests: That start with it, older ones for less: half after the traffic's half-life.
        share: Of all requests that were counted, 0 to 1.
        endpoints: How many it was given; 1: it is not hot.
        tokens: Its size; ``None``: not known, as of all that were given one endpoint.
    """

    digest: str
    requests: float
    share: float
    endpoints: int
    tokens: int | None


def hottest(hot: Hot, limit: int) -> list[HotPrefix]:
    """Return the prefixes that most requests start with, the hottest first.

    Of several that the very same requests start with, as of the blocks of one system prompt, the
    longest stands for all.

    Args:
        hot: What was counted.
        limit: The most to be returned.
    """
    total, tokens = sum(hot.totals.values()), hot.tokens
    found: list[tuple[int, float, int]] = []
    for one in sorted(hot.prefixes, key=lambda prefix: (-prefix[1], prefix[0])):
        if not found or not isclose(one[1], found[-1][1], rel_tol=_SAME):
            found.append(one)
        elif tokens.get(one[0], 0) > tokens.get(found[-1][0], 0):
            found[-1] = one
    return [
        HotPrefix(
            digest=f"{prefix & _DIGEST:016x}",
            requests=count,
            share=min(1.0, count / total) if total > 0.0 else 0.0,
            endpoints=spread,
            tokens=tokens.get(prefix),
        )
        for prefix, count, spread in found[:limit]
    ]
