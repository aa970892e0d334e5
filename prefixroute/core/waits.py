"""How long others' requests keep one waiting, as own first tokens tell.

The mean over all endpoints is learned from every reply. Whether some of them keep one waiting
longer than others, again and again, is a question of few and scattered values: the mean of each
endpoint counts only as far as it differs from the others' by more than chance explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from prefixroute.core.load import EndpointState

__all__ = ["Waits"]

_STEP: Final = 0.03
"""Weight of a reply in the means, once there are some: a window of about thirty."""

_DOUBT: Final = 4.0
"""How many times the variance that chance explains has to be exceeded: two standard errors. With
less of it routers chase each other's chance to endpoints that were lately lucky."""

_LEAST_CHANCE: Final = 0.25
"""Variance of the logarithms that chance is taken to explain at least, half of a factor e: waits
of an engine that is hardly busy are all alike until the first one is not."""


class Waits:
    """Learns the mean wait for others' requests and the own mean service time.

    Attributes:
        mean_s: Mean wait for others' requests, F, seconds.
        service_s: Mean of own service times, T, seconds.
    """

    __slots__ = ("_replies", "mean_s", "service_s")

    def __init__(self) -> None:
        self._replies = 0
        self.mean_s = self.service_s = 0.0

    @property
    def busy(self) -> float:
        """Share of a first token's time that is waiting for others, F / (F + T)."""
        mean = self.mean_s
        return mean / (mean + self.service_s) if mean > 0.0 else 0.0

    def at(self, state: EndpointState) -> float:
        """Return the mean wait at an endpoint, seconds."""
        if state.wait_factor == 1.0:
            return self.mean_s
        return max(0.0, (self.mean_s + self.service_s) * state.wait_factor - self.service_s)

    def learn(
        self,
        state: EndpointState,
        members: Iterable[EndpointState],
        *,
        wait_s: float,
        service_s: float,
        weight: float,
    ) -> None:
        """Learn from one first token.

        Args:
            state: The endpoint that it came from.
            members: All endpoints.
            wait_s: What of its time neither own requests nor its service explain, seconds.
            service_s: Its own prefill, seconds.
            weight: Of what comes now against what came at the start; see :class:`Queues`.
        """
        self._replies += 1
        step = max(_STEP, 1.0 / self._replies)
        self.mean_s += step * (wait_s - self.mean_s)
        self.service_s += step * (service_s - self.service_s)
        # Logarithms, for waits have a heavy tail: one long one must not outweigh all the others.
        value = math.log1p(wait_s / max(self.service_s, 1e-6))
        state.felt += weight
        state.felt_sum += weight * value
        state.felt_squares += weight * value * value
        self._compare([member for member in members if member.felt > 0.0], weight)

    def _compare(self, states: list[EndpointState], weight: float) -> None:
        """Set how much longer than the mean each endpoint's waits are: empirical Bayes.

        Source: Morris, "Parametric Empirical Bayes Inference", JASA 78 (1983): a group's mean is
        drawn to that of all by the share of chance in its variance.
        """
        count = sum(state.felt for state in states) / weight
        if count <= 0.0:
            return  # a late reply of an endpoint that left, and none yet of those that stay
        mean = sum(state.felt_sum for state in states) / weight / count
        within = between = freedom = 0.0
        for state in states:
            number, own = state.felt / weight, state.felt_sum / state.felt
            within += max(0.0, state.felt_squares / weight - number * own * own)
            freedom += max(0.0, number - 1.0)
            between += number * (own - mean) ** 2
        if freedom < 1.0:
            return
        chance = max(within / freedom, _LEAST_CHANCE)
        real = max(0.0, (between - (len(states) - 1) * chance * _DOUBT) / count)
        for state in states:
            more = max(0.0, state.felt / weight - 1.0)  # one reply does not tell what is usual
            shrink = real * more / (real * more + chance)
            state.wait_factor = math.exp(shrink * (state.felt_sum / state.felt - mean))
