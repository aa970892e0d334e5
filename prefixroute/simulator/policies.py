"""What can be simulated: the product's own placements, and the rules of others.

A :class:`PolicyFactory` makes the routers of a run; each of them is a :class:`SimulatedRouter`. The
product's are :class:`CoreRouter`: the very core that an application uses, on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from prefixroute.core.fixed import Fixed, LeastLoaded, Random_, RoundRobin
from prefixroute.core.lease import Lease
from prefixroute.core.load import EngineLoad
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.request import read_prompt
from prefixroute.core.router import RouterCore
from prefixroute.errors import ConfigurationError
from prefixroute.simulator import peers, trees
from prefixroute.simulator.routers import Setup, SimulatedRouter
from prefixroute.simulator.traces import Request

__all__ = [
    "CoreRouter",
    "PolicyFactory",
    "PolicyLike",
    "policy_factory",
    "policy_names",
]

_CUT: Final = Cut()
_BASELINES: Final = (LeastLoaded, RoundRobin, Random_)
_UNTAUGHT: Final = (Fixed, *_BASELINES)
"""Placements that learn nothing from replies; for them nothing is computed from these."""

_OWN: Final = "prefixroute, its own placement through its own core; docs/placement.md"
_BASELINE: Final = "prefixroute, a baseline through its own core"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFactory:
    """A named rule.

    Args:
        name: What reports call it.
        start: Makes one router.
        source: Where the rule comes from, for reports.
    """

    name: str
    start: Callable[[Setup], SimulatedRouter]
    source: str = ""


PolicyLike: TypeAlias = str | Placement | PolicyFactory
"""A name of :func:`policy_names`, a placement of the product, or a factory."""


class CoreRouter:
    """The product's core with a placement, on a virtual clock.

    Args:
        placement: How prompts are placed.
        setup: What the run starts with.
    """

    def __init__(self, placement: Placement, setup: Setup) -> None:
        self._now = 0.0
        self._seed, self._cut, self._shared = setup.seed, placement.cut, setup.shared
        self._taught = not isinstance(placement, _UNTAUGHT)
        self._members: list[int] = list(setup.members)
        self._index = {self._id(index): index for index in setup.members}
        self.core = RouterCore(
            [self._url(index) for index in setup.members],
            placement=placement,
            # One ring for all routers, but no baseline that breaks ties in step with the others.
            seed=setup.serial if isinstance(placement, _BASELINES) else 0,
            clock=self._clock,
            wall_clock=self._clock,
        )

    def _clock(self) -> float:
        return self._now

    def _url(self, index: int) -> str:
        # The seed is in the name, so that every run has another ring while its routers agree.
        return f"http://replica-{index}.run-{self._seed}.test/v1"

    _id = _url

    def _prompt(self, request: Request) -> Prompt:
        if request.body is None or self._cut == _CUT:
            return request.prompt
        key = (self._cut, id(request.body))
        found = self._shared.get(key)
        if found is None:
            found = read_prompt(request.body, path=request.path, cut=self._cut)
            self._shared[key] = found
        return cast("Prompt", found)

    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Take a lease."""
        self._now = now
        lease = self.core.lease(self._prompt(request))
        return self._index[lease.endpoint.id], lease

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:
        """Tell the lease."""
        if self._taught:
            self._now = now
            cast("Lease", ticket).first_token(cached_tokens)

    def done(
        self, ticket: object, prompt_tokens: int, cached_tokens: int | None, now: float
    ) -> None:
        """Tell the lease, and release it."""
        self._now = now
        lease = cast("Lease", ticket)
        if self._taught:
            lease.usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        lease.release()

    def reported(self, counts: Sequence[tuple[int, int]], now: float) -> None:
        """Report the loads, as a poller does."""
        self._now = now
        loads = {}
        for index in self._members:
            running, waiting = counts[index]
            loads[self._id(index)] = EngineLoad(running=running, waiting=waiting)
        self.core.report_load(loads)

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Change the list of endpoints."""
        self._now = now
        self._members = list(members)
        self._index.update((self._id(index), index) for index in members)
        self.core.set_endpoints([self._url(index) for index in members])

    def home(self, request: Request, now: float) -> int | None:
        """Return the home that the core names."""
        self._now = now
        home = self.core.route(self._prompt(request)).home
        return None if home is None else self._index[home.id]


def _core(placement: Placement) -> Callable[[Setup], SimulatedRouter]:
    return lambda setup: CoreRouter(placement, setup)


def _factories() -> dict[str, PolicyFactory]:
    rules: dict[str, tuple[Callable[[Setup], SimulatedRouter], str]] = {
        "nested": (_core(Nested()), _OWN),
        "fixed": (_core(Fixed()), f"{_OWN}; rule reimplemented from arXiv:1608.01350"),
        "least-loaded": (_core(LeastLoaded()), _BASELINE),
        "round-robin": (_core(RoundRobin()), _BASELINE),
        "random": (_core(Random_()), _BASELINE),
        "power-of-two": (peers.PowerOfTwo, peers.PowerOfTwo.SOURCE),
        "first-block": (peers.FirstBlock, peers.FirstBlock.SOURCE),
        "prefix-tree": (trees.PrefixTree, trees.PrefixTree.SOURCE),
        "prefix-queue-scores": (trees.PrefixQueueScores, trees.PrefixQueueScores.SOURCE),
        "overlap-cost": (trees.OverlapCost, trees.OverlapCost.SOURCE),
    }
    return {
        name: PolicyFactory(name=name, start=start, source=source)
        for name, (start, source) in rules.items()
    }


def policy_names() -> tuple[str, ...]:
    """Return the names of the rules that can be simulated."""
    return tuple(_factories())


def policy_factory(policy: PolicyLike) -> PolicyFactory:
    """Return the factory of a policy.

    Raises:
        ConfigurationError: No rule has this name.
    """
    if isinstance(policy, PolicyFactory):
        return policy
    if isinstance(policy, str):
        found = _factories().get(policy)
        if found is None:
            known = ", ".join(policy_names())
            raise ConfigurationError(f"policy {policy!r} is unknown; there are: {known}")
        return found
    return PolicyFactory(name=repr(policy), start=_core(policy), source=_OWN)
