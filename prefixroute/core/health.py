"""Whether an endpoint may be given requests: eject, probe, readmit, cool, drain.

A table row that is told what happened and the time; it never looks at a clock itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from random import Random

from prefixroute.core.checks import check_int, check_number

__all__ = ["Health", "HealthPolicy", "HealthState"]


class HealthState(Enum):
    """What an endpoint's health allows."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    EJECTED = "ejected"
    PROBING = "probing"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When an endpoint is ejected, and for how long.

    Args:
        failures: Counted failures in a row that eject.
        eject_for_s: Length of the first ejection, seconds; each further one doubles it.
        max_eject_for_s: Longest ejection, seconds.
        jitter: Share by which an ejection is lengthened at random, so that many routers do not
            probe together.
        cool_for_s: How long an endpoint that answered 429 or 503 without Retry-After is left
            alone, seconds.
        max_cool_for_s: Longest that a Retry-After is believed, seconds.

    Raises:
        ConfigurationError: A value out of its range.
    """

    failures: int = 5
    eject_for_s: float = 10.0
    max_eject_for_s: float = 300.0
    jitter: float = 0.1
    cool_for_s: float = 1.0
    max_cool_for_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("HealthPolicy", "failures", self.failures, 1)
        for name in ("eject_for_s", "max_eject_for_s", "jitter", "cool_for_s", "max_cool_for_s"):
            value = check_number("HealthPolicy", name, getattr(self, name))
            object.__setattr__(self, name, value)

    def ejection_s(self, times: int, rng: Random) -> float:
        """Return the length of the ``times``-th ejection in a row, seconds."""
        length = self.eject_for_s * 2.0 ** min(times - 1, 60)
        return min(self.max_eject_for_s, length) * (1.0 + self.jitter * rng.random())


class Health:
    """One endpoint's row."""

    __slots__ = (
        "_probes", "cooling_until", "draining", "ejected_until", "ejections", "failures", "probing",
    )  # fmt: skip

    def __init__(self) -> None:
        self.draining = False
        self.probing = 0  # number of the probe that is under way; 0: none
        self._probes = 0
        self.failures = 0  # in a row
        self.ejections = 0  # in a row
        self.ejected_until: float | None = None  # inf: until readmitted
        self.cooling_until = -math.inf

    def state(self, now: float) -> HealthState:
        """Return what the row says at ``now``."""
        if self.draining:
            return HealthState.DRAINING
        if self.ejected_until is not None:
            return HealthState.PROBING if self.probing else HealthState.EJECTED
        return HealthState.COOLING if now < self.cooling_until else HealthState.HEALTHY

    def takes(self, now: float) -> bool:
        """Return whether a request may be sent now; an ejected one takes one probe when due."""
        if self.draining or now < self.cooling_until:
            return False
        if self.ejected_until is None:
            return True
        return now >= self.ejected_until and not self.probing

    def sent(self, now: float) -> int:
        """Note that a request is being sent; return its number if it is the probe, else 0.

        The number is given back when the request ends: by then another probe may be under way,
        and only the one that is says something about it.
        """
        if self.ejected_until is None or self.probing or now < self.ejected_until:
            return 0
        self._probes += 1
        self.probing = self._probes
        return self.probing

    def succeeded(self, *, probe: int) -> bool:
        """Note a good reply; return whether it readmits the endpoint."""
        self.failures = 0
        if not self._is_current(probe):
            return False
        self.ejected_until, self.probing, self.ejections = None, 0, 0
        return True

    def failed(self, now: float, policy: HealthPolicy, rng: Random, *, probe: int) -> bool:
        """Note a counted failure; return whether it ejects the endpoint."""
        self.failures += 1
        if self._is_current(probe):
            self.probing = 0
        elif self.ejected_until is not None or self.failures < policy.failures:
            return False
        self.ejections += 1
        self.ejected_until = now + policy.ejection_s(self.ejections, rng)
        return True

    def neutral(self, *, probe: int) -> None:
        """Note an end that says nothing about the endpoint, such as a caller who left."""
        if self._is_current(probe):
            self.probing = 0

    def _is_current(self, probe: int) -> bool:
        return probe > 0 and probe == self.probing

    def cool(self, until: float) -> None:
        """Leave the endpoint alone until then; a cooldown only ever grows."""
        self.cooling_until = max(self.cooling_until, until)

    def eject(self, until: float) -> None:
        """Take the endpoint out; ``inf``: until it is readmitted."""
        self.ejected_until, self.probing = until, 0

    def readmit(self) -> None:
        """Take the endpoint in again with a clean slate."""
        self.ejected_until, self.probing = None, 0
        self.failures = self.ejections = 0
        self.cooling_until = -math.inf
        self.draining = False
