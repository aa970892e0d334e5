"""Which endpoints the hash has given too much, as the engines' reports show in the long run.

Few heavy keys hash unevenly, and no router sees enough to notice. The engines' counts show the sum
of what all routers do, and all routers see the same: an endpoint that is crowded for minutes gives
some of its keys to the next in their ring order, and the routers agree on which, without a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from prefixroute.core.load import EndpointState, EngineLoad

__all__ = ["keeps", "note_crowd", "uniform"]

_WINDOW_S: Final = 600.0
"""Counts of a queue are noisy for minutes, and every key that moves is computed anew: only what
lasts is worth it."""

_EXPONENT: Final = 2.0
"""An endpoint keeps (mean / own crowd) squared of its keys. The first power would, as the crowd
shrinks with the keys, take away half of the excess; the second takes two thirds."""

_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF


def note_crowd(state: EndpointState, load: EngineLoad, since_s: float) -> None:
    """Take a report into the endpoint's long-run mean of requests.

    Args:
        state: The endpoint.
        load: What it reports.
        since_s: Time since its report before, seconds; infinite: there was none.
    """
    fade = math.exp(-since_s / _WINDOW_S) if since_s < math.inf else math.exp(-1.0 / _WINDOW_S)
    state.crowd = state.crowd * fade + (1.0 - fade) * (load.running + load.waiting)
    state.crowd_weight = state.crowd_weight * fade + 1.0 - fade


def keeps(states: Sequence[EndpointState]) -> list[float] | None:
    """Return the share of its keys that each endpoint keeps, 0 to 1; ``None``: all keep all.

    The time that was not observed is taken for average, so that the first reports move nothing.
    """
    if not all(state.crowd_weight for state in states):
        return None
    crowds = [state.crowd / state.crowd_weight / state.endpoint.weight for state in states]
    mean = sum(crowds) / len(crowds)
    if mean <= 0.0:
        return None
    shares = []
    for state, crowd in zip(states, crowds, strict=True):
        excess = state.crowd_weight * (crowd / mean - 1.0)
        shares.append((1.0 + excess) ** -_EXPONENT if excess > 0.0 else 1.0)
    return shares


def uniform(key: int, salt: int) -> float:
    """Return a number in [0, 1) that a key and an endpoint have in every router.

    Source: the finalizer of SplitMix64, Steele, Lea, Flood, OOPSLA 2014.
    """
    z = (key ^ salt) & _MASK_64
    z = (z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK_64
    z = (z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB & _MASK_64
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53
