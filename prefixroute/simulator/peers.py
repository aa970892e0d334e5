"""Rules of other balancers that keep no record of what went where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from random import Random
from typing import Final, cast

from prefixroute.core.hashing import digest64
from prefixroute.simulator.routers import Setup
from prefixroute.simulator.traces import Request

__all__ = ["Chooser", "FirstBlock", "Peer", "PowerOfTwo"]


class Peer(ABC):
    """What the rules share: members, requests in flight, ties at random; a ticket is the replica.

    Args:
        setup: What the run starts with.
    """

    def __init__(self, setup: Setup) -> None:
        self.members = list(setup.members)
        self.block_tokens = setup.block_tokens
        self.in_flight = dict.fromkeys(setup.members, 0)
        self.random = Random(setup.seed * 1_000_003 + setup.serial)  # noqa: S311 - ties

    @abstractmethod
    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Return the replica, on which the request counts as in flight, and a ticket."""

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:  # noqa: B027
        """Learn nothing; rules that learn have their own."""

    def done(
        self,
        ticket: object,
        prompt_tokens: int,  # noqa: ARG002
        cached_tokens: int | None,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> None:
        """Count the request as ended."""
        self.in_flight[cast("int", ticket)] -= 1

    def reported(self, counts: Sequence[tuple[int, int]], now: float) -> None:  # noqa: B027
        """Learn nothing; rules that learn have their own."""

    def set_members(self, members: Sequence[int], now: float) -> None:  # noqa: ARG002
        """Use these replicas from now on."""
        self.members = list(members)
        for replica in members:
            self.in_flight.setdefault(replica, 0)

    def home(self, request: Request, now: float) -> int | None:  # noqa: ARG002
        """Return ``None``: this rule has no keys."""
        return None

    def least_loaded(self) -> int:
        """Return the member with the fewest requests in flight; ties at random."""
        least = min(self.in_flight[replica] for replica in self.members)
        return self.random.choice([r for r in self.members if self.in_flight[r] == least])


class Chooser(Peer):
    """A rule that only chooses."""

    @abstractmethod
    def choose(self, request: Request, now: float) -> int:
        """Return the replica."""

    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Choose, and count the request as in flight."""
        replica = self.choose(request, now)
        self.in_flight[replica] += 1
        return replica, replica


class PowerOfTwo(Chooser):
    """Two replicas at random, of these the one with fewer requests in flight.

    Rule reimplemented from Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
    IEEE TPDS 12(10), 2001.
    """

    SOURCE: Final = (
        'rule reimplemented from Mitzenmacher, "The Power of Two Choices in Randomized Load '
        'Balancing", IEEE TPDS 12(10), 2001'
    )

    def choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        """Compare two."""
        two = self.random.sample(self.members, min(2, len(self.members)))
        return min(two, key=self.in_flight.__getitem__)


_REPLICATION: Final = 256
"""Virtual nodes per replica, KubeAI's default."""

_LOAD_FACTOR: Final = 1.25
"""KubeAI's default mean load percentage, as a factor."""


class FirstBlock(Chooser):
    """A hash of the prompt's first block on a ring, with bounded load.

    The first replica from there whose load after this request is at most 1.25 times the mean; if
    there is none, the first one. As there, the mean is over this router's own requests and not
    rounded up: a router with few of them finds nobody within the bound, and takes the first.

    Rule reimplemented from KubeAI's PrefixHash strategy, ``chwblGetAddr`` and ``chwblLoadOK`` in
    internal/loadbalancer/balance_chwbl.go of github.com/substratusai/kubeai.
    """

    SOURCE: Final = (
        "rule reimplemented from KubeAI's PrefixHash strategy, chwblGetAddr and chwblLoadOK in "
        "internal/loadbalancer/balance_chwbl.go of github.com/substratusai/kubeai"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._seed = setup.seed
        self._place()

    def _place(self) -> None:
        points = sorted(
            (digest64(f"{replica}/{node}/{self._seed}".encode()), replica)
            for replica in self.members
            for node in range(_REPLICATION)
        )
        self._points = [point for point, _ in points]
        self._owners = [replica for _, replica in points]

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Use these replicas from now on, on a new ring."""
        super().set_members(members, now)
        self._place()

    def _start(self, request: Request) -> int:
        chain = request.prompt.chain
        return bisect_left(self._points, chain[0] if chain else 0)

    def choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        """Walk the ring to a replica with room."""
        start, owners = self._start(request), self._owners
        total = sum(self.in_flight[replica] for replica in self.members)
        limit = (total + 1) / len(self.members) * _LOAD_FACTOR
        for step in range(len(owners)):
            replica = owners[(start + step) % len(owners)]
            if total == 0 or self.in_flight[replica] + 1 <= limit:
                return replica
        return owners[start % len(owners)]

    def home(self, request: Request, now: float) -> int | None:  # noqa: ARG002
        """Return where the hash points, whatever the load."""
        return self._owners[self._start(request) % len(self._owners)]
