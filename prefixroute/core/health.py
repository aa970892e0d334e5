"""Whether an endpoint may be given requests: eject, probe, readmit, cool, drain.

A table row that is told what happened and the time; it never looks at a clock itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from prefixroute.core.checks import check_int, check_number, refusal

__all__ = ["Health", "HealthPolicy", "HealthState"]

_LONGEST_WINDOW: Final = 1000
_HISTORY: Final = (1 << _LONGEST_WINDOW) - 1
_OPTIONAL: Final = ("error_rate", "probe_every_s")
_SHARES: Final = ("error_rate", "max_ejected_share")
_NUMBERS: Final = (
    "eject_for_s", "max_eject_for_s", "jitter", "cool_for_s", "max_cool_for_s",
    "max_ejected_share", "warm_up_s", *_OPTIONAL,
)  # fmt: skip


class HealthState(Enum):
    """What an endpoint's health allows."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    EJECTED = "ejected"
    PROBING = "probing"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When an endpoint is ejected, for how long, and how it comes back.

    Args:
        failures: Counted failures in a row that eject.
        error_rate: Share of failures among the last ``error_window`` ends that ejects too, up to 1;
            ``None``: only failures in a row do.
        error_window: How many ends are looked at for that, 2 to 1,000.
        eject_for_s: Length of the first ejection, seconds; each further one doubles it.
        max_eject_for_s: Longest ejection, seconds.
        jitter: Share by which an ejection is lengthened at random, so that many routers do not
            probe together.
        cool_for_s: How long an endpoint that answered 429 or 503 without Retry-After is left
            alone, seconds.
        max_cool_for_s: Longest that a Retry-After is believed, seconds.
        max_ejected_share: The most of the endpoints that failures may eject together, 0 to 1; one
            always may be. By 1 all may: requests then go to the best of them all the same.
        warm_up_s: Time over which an endpoint that was readmitted, or that joined later than the
            first ones, comes to its full share of the requests, seconds; 0: at once. It starts
            with an empty cache.
        probe_every_s: Interval at which the router itself asks every endpoint for ``probe_path``,
            in a thread of its own that runs while clients are open, seconds; ``None``: never, the
            requests alone tell. No answer, or a 5xx, counts as a failure, but not towards
            ``error_rate``, which is of requests; a 503 means not ready. A good answer takes back
            what it disproves, that the endpoint does not answer: such failures in a row no longer
            count, and it is readmitted if it was ejected for them or has kept silent to a probe
            since. One that answers requests with 500, or lets them time out, may be well by its
            own account. Probes go through the router's own pools, with the endpoint's key.
        probe_path: Path that is asked for, at the endpoint's root.

    Raises:
        ConfigurationError: A value out of its range.
    """

    failures: int = 5
    error_rate: float | None = 0.5
    error_window: int = 20
    eject_for_s: float = 10.0
    max_eject_for_s: float = 300.0
    jitter: float = 0.1
    cool_for_s: float = 1.0
    max_cool_for_s: float = 60.0
    max_ejected_share: float = 1.0
    warm_up_s: float = 10.0
    probe_every_s: float | None = None
    probe_path: str = "/health"

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("HealthPolicy", "failures", self.failures, 1)
        check_int("HealthPolicy", "error_window", self.error_window, 2)
        if self.error_window > _LONGEST_WINDOW:
            rule = f"at most {_LONGEST_WINDOW}"
            raise refusal("HealthPolicy", "error_window", self.error_window, rule)
        for name in _NUMBERS:
            given = getattr(self, name)
            if given is not None or name not in _OPTIONAL:
                most = 1.0 if name in _SHARES else math.inf
                above = name in _OPTIONAL
                value = check_number("HealthPolicy", name, given, at_most=most, above=above)
                object.__setattr__(self, name, value)
        path: object = self.probe_path
        if not isinstance(path, str) or not path.startswith("/") or not path.isascii():
            raise refusal("HealthPolicy", "probe_path", path, "a path such as '/health'")

    def ejection_s(self, times: int, rng: Random) -> float:
        """Return the length of the ``times``-th ejection in a row, seconds."""
        length = self.eject_for_s * 2.0 ** min(times - 1, 60)
        return min(self.max_eject_for_s, length) * (1.0 + self.jitter * rng.random())

    def may_eject(self, ejected: int, members: int) -> bool:
        """Return whether one more may be ejected when ``ejected`` of ``members`` are."""
        return ejected == 0 or ejected + 1 <= self.max_ejected_share * members


class Health:
    """One endpoint's row."""

    __slots__ = (
        "_ends", "_history", "_probes", "cooling_until", "draining", "ejected_until", "ejections",
        "failures", "hearsay", "probing", "silences", "silent", "warm_from", "warm_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self.draining = False
        self.probing = 0  # number of the probe that is under way; 0: none
        self._probes = 0
        self.failures = 0  # in a row
        self.silences = 0  # of these, those without any answer
        self._history = self._ends = 0  # the last ends as bits, 1 a failure, and how many there are
        self.ejections = 0  # in a row
        self.ejected_until: float | None = None  # inf: until readmitted
        self.cooling_until = -math.inf
        self.silent = False  # ejected for no answer at all, or silent to a probe since
        self.hearsay = False  # other routers' failures ejected it, none of our own
        self.warm_from = self.warm_until = -math.inf

    def state(self, now: float) -> HealthState:
        """Return what the row says at ``now``."""
        if self.draining:
            return HealthState.DRAINING
        if self.ejected_until is not None:
            return HealthState.PROBING if self.probing else HealthState.EJECTED
        return HealthState.COOLING if now < self.cooling_until else HealthState.HEALTHY

    def warmth(self, now: float) -> float:
        """Return the share of its part of the requests that the endpoint may have, 0 to 1."""
        if now >= self.warm_until:
            return 1.0
        return max(0.0, (now - self.warm_from) / (self.warm_until - self.warm_from))

    def warm_up(self, now: float, policy: HealthPolicy) -> None:
        """Start with a small share of the requests: the cache is empty."""
        self.warm_from, self.warm_until = now, now + policy.warm_up_s

    def takes(self, now: float) -> bool:
        """Return whether a request may be sent now; an ejected one takes one probe when due."""
        if self.draining or now < self.cooling_until:
            return False
        if self.ejected_until is None:
            return True
        return now >= self.ejected_until and not self.probing

    def sent(self, now: float, *, panic: bool = False) -> int:
        """Note that a request is being sent; return its number if it is the probe, else 0.

        The number is given back when the request ends: by then another probe may be under way,
        and only the one that is says something about it. In a panic, when requests go to ejected
        endpoints for want of others, a probe need not be due.
        """
        if self.ejected_until is None or self.probing or self.ejected_until == math.inf:
            return 0
        if now < self.ejected_until and not panic:
            return 0
        self._probes += 1
        self.probing = self._probes
        return self.probing

    def succeeded(self, *, probe: int) -> bool:
        """Note a good reply; return whether it readmits the endpoint."""
        self.failures = self.silences = 0
        self._history, self._ends = self._history << 1 & _HISTORY, self._ends + 1
        if not self._is_current(probe):
            return False
        self._answered()
        return True

    def heard(self) -> bool:
        """Note a good answer to the router's own probe; return whether it readmits the endpoint.

        It disproves that nobody is there. It does not show that requests are served.
        """
        self.failures -= self.silences
        self.silences = 0
        until = self.ejected_until
        if until is None or until == math.inf or not self.silent:
            return False
        self._answered()
        return True

    def _answered(self) -> None:
        self.ejected_until, self.probing, self.ejections = None, 0, 0
        self.failures = self.silences = 0
        self.hearsay = False
        self._history = self._ends = 0

    def failed(
        self,
        now: float,
        policy: HealthPolicy,
        rng: Random,
        *,
        probe: int,
        silent: bool = False,
        own: bool = False,
        may_eject: bool = True,
    ) -> bool:
        """Note a counted failure; return whether it ejects the endpoint.

        Args:
            now: Seconds.
            policy: When it does.
            rng: Source of jitter.
            probe: The request's number, if it was a probe; else 0.
            silent: Nobody answered, as if nobody were there.
            own: It was the router's own probe, which counts in a row, but in no rate of errors.
            may_eject: Whether a further endpoint may be; a probe that failed is ejected again.
        """
        if not own:
            self._history, self._ends = (self._history << 1 | 1) & _HISTORY, self._ends + 1
        self.failures += 1
        self.silences += silent
        if self._is_current(probe):
            self.probing = 0
        elif self.ejected_until is not None or not (may_eject and self._fails(policy)):
            self.silent |= own
            return False
        self.ejections += 1
        self.hearsay = False
        self.ejected_until, self.silent = now + policy.ejection_s(self.ejections, rng), silent
        self._history = self._ends = 0
        return True

    def _fails(self, policy: HealthPolicy) -> bool:
        """Return whether there were too many failures, in a row or among the last ends."""
        if self.failures >= policy.failures:
            return True
        window, rate = policy.error_window, policy.error_rate
        if rate is None or self._ends < window:
            return False
        return (self._history & (1 << window) - 1).bit_count() >= rate * window

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
        self.ejected_until, self.probing, self.hearsay = until, 0, False

    def readmit(self) -> None:
        """Take the endpoint in again with a clean slate."""
        self._answered()
        self.cooling_until = -math.inf
        self.draining = False
