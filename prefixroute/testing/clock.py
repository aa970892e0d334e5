"""Simulated time, and how long to really wait for it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

__all__ = ["Clock", "Pause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What to do before a simulated moment.

    Attributes:
        sleep_s: Real seconds to sleep now.
        timed_out: The caller's timeout ends before the moment comes: sleep, then give up.
    """

    sleep_s: float
    timed_out: bool


class Clock:
    """Simulated seconds since the cluster was made, `time_scale` real seconds each.

    With a scale of 0 nothing sleeps: time stands still, and jumps to the moment that is waited for.
    """

    def __init__(self, time_scale: float) -> None:
        """Start at 0.

        Args:
            time_scale: Real seconds in a simulated second.

        Raises:
            ValueError: The scale is negative or not finite.
        """
        if not (math.isfinite(time_scale) and time_scale >= 0):
            raise ValueError(
                f"time_scale={time_scale!r} must be finite and not negative: it is how many real"
                " seconds a simulated second takes; use 1 for real time, 0 for no waiting at all"
            )
        self.time_scale = time_scale
        self._lock = threading.Lock()
        self._ahead_s = 0.0
        self._began_s = time.monotonic()

    def now_s(self) -> float:
        """The simulated seconds that have passed. Takes no lock: a finalizer may ask."""
        if self.time_scale == 0:
            return self._ahead_s
        return (time.monotonic() - self._began_s) / self.time_scale + self._ahead_s

    def waited_s(self) -> float:
        """A reading of the time that timeouts are counted in: see `pause`."""
        return self._ahead_s if self.time_scale == 0 else time.monotonic()

    def advance(self, seconds: float) -> None:
        """Let simulated time pass at once.

        Raises:
            ValueError: The step is negative or not finite.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                f"advance({seconds!r}) must be finite and not negative: time does not go back"
            )
        with self._lock:
            self._ahead_s += seconds

    def pause(self, at_s: float, limit_s: float | None = None) -> Pause:
        """Say how to wait for a moment. With a scale of 0 the moment has come when this returns.

        Args:
            at_s: The simulated moment.
            limit_s: The longest wait that the caller allows, in real seconds; with a scale of 0,
                where no real time passes, in simulated ones. None: any.
        """
        if self.time_scale == 0:
            return self._jump(at_s, limit_s)
        sleep_s = max(0.0, (at_s - self.now_s()) * self.time_scale)
        if limit_s is not None and sleep_s > limit_s:
            return Pause(sleep_s=limit_s, timed_out=True)
        return Pause(sleep_s=sleep_s, timed_out=False)

    def _jump(self, at_s: float, limit_s: float | None) -> Pause:
        with self._lock:
            timed_out = limit_s is not None and at_s - self._ahead_s > limit_s
            if limit_s is not None and timed_out:
                at_s = self._ahead_s + limit_s
            self._ahead_s = max(self._ahead_s, at_s)
        return Pause(sleep_s=0.0, timed_out=timed_out)
