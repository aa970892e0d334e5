"""How busy the engines are together, as far as they or other routers tell.

Prefill that need not have been keeps an engine busy for longer, and who comes meanwhile waits: a
busy period is 1 / (1 - rho) times as long as the work that began it. So what a move costs others
grows with the load, and without that routers that flee from queues make more of them.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Busy"]

_WINDOW_S: Final = 60.0
"""Loads change within minutes, and so does what a move costs."""

_FIRST: Final = 0.5
"""Until reports have told."""

_MOST: Final = 0.95
"""More cannot be told from an overload, whose busy periods have no end."""

_LONGEST_S: Final = 5.0
"""What one report stands for at most."""


class Busy:
    """Learns the share of the time in which requests wait for their prefill, rho.

    Source of what is made of it: the busy period of an M/G/1 queue, Kleinrock, "Queueing Systems",
    vol. 1, 5.8.
    """

    __slots__ = ("_share",)

    def __init__(self) -> None:
        self._share = _FIRST

    def note(self, *, waiting: bool, since_s: float, endpoints: int) -> None:
        """Take a report of one endpoint.

        Args:
            waiting: Requests wait there.
            since_s: Time since its report before, seconds; infinite: there was none.
            endpoints: How many report.
        """
        step = -math.expm1(-min(since_s, _LONGEST_S) / (_WINDOW_S * max(1, endpoints)))
        self._share += step * (waiting - self._share)

    @property
    def lengthening(self) -> float:
        """By what work lengthens a busy period, in times of its own length: 1 / (1 - rho)."""
        return 1.0 / (1.0 - min(_MOST, self._share))
