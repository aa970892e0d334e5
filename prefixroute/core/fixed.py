"""``Fixed``, the textbook placement, and the baselines that do not look at the prompt."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from prefixroute.core.checks import check_int
from prefixroute.core.decision import Reason
from prefixroute.core.placement import (
    NEAREST,
    Ask,
    Bound,
    Choice,
    Policy,
    StatelessPolicy,
)
from prefixroute.core.prompt import BYTES_PER_TOKEN, Cut, KeySource, Prompt

__all__ = ["Fixed", "LeastLoaded", "Random_", "RoundRobin"]

_NO_CUT = Cut()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """One key per prompt, a walk along the ring, bounded loads: the textbook.

    Every prompt's key is a hash of its first ``prefix_bytes``, and it goes to the first endpoint
    from there whose in-flight requests stay within ``ceil(c (m + 1) w / W)``. When all are full,
    the least loaded relative to its weight takes it.

    Args:
        prefix_bytes: How much of the prompt's text makes the key, bytes, from the system prompt
            on; never beyond the first message, so that the turns of a chat keep their key.
        load_factor: c of the bound, 1 or more.
        load_slack: Requests above the fair share that are always allowed; 0 keeps the guarantee.
        virtual_nodes: Virtual nodes on the ring per unit of weight.

    Raises:
        ConfigurationError: A value out of its range.

    Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads",
    arXiv:1608.01350.
    """

    prefix_bytes: int = 1024
    load_factor: float = 1.25
    load_slack: float = 0.0
    virtual_nodes: int = 1024

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("Fixed", "prefix_bytes", self.prefix_bytes, 1)
        check_int("Fixed", "virtual_nodes", self.virtual_nodes, 1)
        bound = Bound(self.load_factor, self.load_slack).checked("Fixed")
        object.__setattr__(self, "load_factor", bound.load_factor)
        object.__setattr__(self, "load_slack", bound.load_slack)

    @property
    def cut(self) -> Cut:
        """One key instead of a chain."""
        return Cut(window_bytes=self.prefix_bytes)

    def start(self, random: Random) -> Policy:
        """Return a policy; it has nothing to learn."""
        return FixedPolicy(self, random)


class FixedPolicy(StatelessPolicy):
    """Places by :class:`Fixed`."""

    __slots__ = ("_bound", "_prefix_tokens")

    def __init__(self, config: Fixed, random: Random) -> None:
        super().__init__(random)
        self._bound = Bound(config.load_factor, config.load_slack)
        self._prefix_tokens = config.prefix_bytes / BYTES_PER_TOKEN

    def choose(self, ask: Ask) -> Choice:
        """Walk the ring from the key to the first endpoint below its bound."""
        prompt, group = ask.prompt, ask.group
        if not prompt.chain:
            return self.keyless(ask)
        depth = self._depth(prompt)
        key, states = prompt.chain[depth], group.states
        order = group.ring.nearest(key, NEAREST)
        home = order[0]
        available = group.everyone if ask.available is group.everyone else set(ask.available)
        candidates = [index for index in order if index in available]
        limits = self._bound.limits(group, ask.available, candidates)
        if all(states[index].in_flight >= limits[index] for index in candidates):
            candidates = [index for index in group.ring.order(key) if index in available]
            limits = self._bound.limits(group, ask.available, candidates)
        # The bounds add up to more than what is in flight, so that somebody is below his.
        index = min(candidates, key=lambda i: states[i].in_flight >= limits[i])
        reason = Reason.HOME if index == home else Reason.BOUND
        if ask.panic:
            reason = Reason.PANIC
        elif home not in available:
            reason = Reason.HOME_UNAVAILABLE
        return Choice(
            index=index,
            reason=reason,
            home=home,
            depth=depth,
            candidates=candidates,
            bound=limits[index],
            uncached_tokens=ask.tokens,
        )

    def _depth(self, prompt: Prompt) -> int:
        """Return the key's place: 0, or in a chain of blocks the one that ends the window."""
        if prompt.source is KeySource.SESSION:
            return len(prompt.chain) - 1
        if prompt.source is not KeySource.BLOCKS:
            return 0
        whole = (i for i, end in enumerate(prompt.ends) if end >= self._prefix_tokens)
        return next(whole, len(prompt.chain) - 1)


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A placement that does not look at the prompt; for comparison and as a holdout."""

    @property
    def virtual_nodes(self) -> int:
        """One: there is no ring to walk."""
        return 1

    @property
    def cut(self) -> Cut:
        """Prompts are read for their sizes alone."""
        return _NO_CUT


class RoundRobin(_Baseline):
    """Baseline: every endpoint in turn, from a random first one."""

    __slots__ = ()

    def start(self, random: Random) -> Policy:
        """Return a policy that counts."""
        return _RoundRobinPolicy(random)


class LeastLoaded(_Baseline):
    """Baseline: the endpoint with the fewest requests in flight per weight; ties take turns."""

    __slots__ = ()

    def start(self, random: Random) -> Policy:
        """Return a policy that takes turns at ties."""
        return _LeastLoadedPolicy(random)


class Random_(_Baseline):  # noqa: N801 - public as ``Random``; the standard library has that name
    """Baseline: an endpoint at random, by weight."""

    __slots__ = ()

    def start(self, random: Random) -> Policy:
        """Return a policy that draws."""
        return _RandomPolicy(random)


class _RoundRobinPolicy(StatelessPolicy):
    __slots__ = ()

    def choose(self, ask: Ask) -> Choice:
        """Return the next available endpoint."""
        at = self._rotation % len(ask.group)
        index = min(ask.available, key=lambda i: (i - at) % len(ask.group))
        return _baseline(ask, index)

    def sent(self, ask: Ask, choice: Choice, *, counted: bool) -> None:
        """Go on behind the endpoint chosen."""
        super().sent(ask, choice, counted=counted)
        self._rotation = choice.index + 1


class _LeastLoadedPolicy(StatelessPolicy):
    __slots__ = ()

    def choose(self, ask: Ask) -> Choice:
        """Return the least loaded available endpoint."""
        return self.keyless(ask, Reason.BASELINE)


class _RandomPolicy(StatelessPolicy):
    __slots__ = ("_draw",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._draw = random.random()

    def choose(self, ask: Ask) -> Choice:
        """Return a random available endpoint, by weight."""
        weights = [ask.group.states[i].endpoint.weight for i in ask.available]
        point = self._draw * sum(weights)
        at = bisect_right(list(accumulate(weights)), point)
        return _baseline(ask, ask.available[min(at, len(weights) - 1)])

    def sent(self, ask: Ask, choice: Choice, *, counted: bool) -> None:
        """Draw for the next request; asking alone must not."""
        super().sent(ask, choice, counted=counted)
        self._draw = self._random.random()

    def forked(self) -> None:
        """Draw otherwise than the other children."""
        super().forked()
        self._draw = self._random.random()


def _baseline(ask: Ask, index: int) -> Choice:
    return Choice(
        index=index,
        reason=Reason.PANIC if ask.panic else Reason.BASELINE,
        candidates=ask.available,
        uncached_tokens=ask.tokens,
    )
