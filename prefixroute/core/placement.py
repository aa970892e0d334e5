"""The placements: frozen configurations, and what they share.

A placement is pure configuration and may be shared. ``start()`` gives the policy that keeps what
one router learns; all of its methods are called under the router's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from prefixroute.core.checks import check_number
from prefixroute.core.decision import Reason
from prefixroute.core.load import EndpointState, Loan, capacity
from prefixroute.core.membership import Group
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.queues import Queues
from prefixroute.core.traffic import Hot

if TYPE_CHECKING:
    from random import Random

__all__ = ["NEAREST", "Ask", "Bound", "Choice", "Placement", "Policy", "Seen", "least_loaded"]


NEAREST: Final = 32
"""Endpoints of a key's ring order that are weighed; more only where these have no room."""

_in_flight: Final = attrgetter("in_flight")


class Ask(msgspec.Struct, kw_only=True):
    """One question to a policy: where should this prompt go, now?

    Args:
        prompt: What is to be placed.
        per_unit: Tokens in one unit of the prompt's sizes, as corrected for its model.
        group: The members of the tier in question.
        available: Indices in the group of those that may be sent to, ascending.
        now: Seconds.
        queues: How busy they are.
        panic: Nobody is available; ``available`` names all.
    """

    prompt: Prompt
    per_unit: float
    group: Group
    available: Sequence[int]
    now: float
    queues: Queues
    panic: bool = False

    @property
    def tokens(self) -> float:
        """Size of the request, tokens."""
        return self.prompt.size * self.per_unit


class Choice(msgspec.Struct, kw_only=True):
    """A policy's answer; indices are the group's."""

    index: int
    reason: Reason
    home: int | None = None
    depth: int = -1
    candidates: Sequence[int] = ()
    loads: Sequence[float] = ()
    bound: int | None = None
    spread: int = 1
    held_tokens: float = 0.0
    held_blocks: int = 0
    uncached_tokens: float = 0.0
    shared_tokens: float = 0.0
    credit_level: int | None = None
    spreads: Sequence[tuple[int, int]] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy knows of the prefixes of one prompt, in the order of its chain; for people.

    Args:
        requests: Decayed count of all requests.
        shares: Each prefix's share of them, as a lower bound; nothing where traffic does not count,
            and so below.
        spreads: Endpoints that each prefix is given.
        holders: Endpoints that each prefix was sent to, and that are believed to hold it.
    """

    requests: float
    shares: Sequence[float] = ()
    spreads: Sequence[int] = ()
    holders: Sequence[int] = ()


class Policy(Protocol):
    """What one router has learned about placing."""

    def choose(self, ask: Ask) -> Choice:
        """Return where the prompt goes; changes nothing."""
        ...

    def seen(self, ask: Ask, choice: Choice) -> Seen:
        """Return what is known of each prefix of a prompt that was placed; for people."""
        ...

    def sent(self, ask: Ask, choice: Choice, *, counted: bool) -> None:
        """Note that the choice is carried out; ``counted``: it is the request's first attempt."""
        ...

    def learned(self, loan: Loan) -> None:
        """Learn from the cached tokens that a reply reported."""
        ...

    def unsent(self, loan: Loan) -> None:
        """Undo what :meth:`sent` believed: the request failed before its first byte."""
        ...

    def joined(self, state: EndpointState) -> None:
        """Note that an endpoint joined, with an empty cache."""
        ...

    def left(self, state: EndpointState) -> None:
        """Note that an endpoint left or lost its cache."""
        ...

    def forked(self) -> None:
        """Note that this is a new process: what is random must not be as in its siblings."""
        ...

    def hot(self, now: float) -> Hot:
        """Return what was counted of prefixes that may be hot, for other routers."""
        ...

    def heard(self, hot: Hot, now: float) -> None:
        """Take what other routers have counted, in place of what they had before."""
        ...


class Placement(Protocol):
    """A placement's configuration."""

    @property
    def cut(self) -> Cut:
        """Where it wants prompts cut."""
        ...

    @property
    def virtual_nodes(self) -> int:
        """Virtual nodes per unit of weight on its ring."""
        ...

    def start(self, random: Random) -> Policy:
        """Return the policy of one router."""
        ...


class Bound(msgspec.Struct, frozen=True):
    """The bound on in-flight requests at admission; see :func:`capacity`."""

    load_factor: float
    load_slack: float

    def checked(self, owner: str) -> Bound:
        """Return the bound in floats; refuse values with which it cannot hold or be met.

        Raises:
            ConfigurationError: A load factor below 1, or a negative slack.
        """
        factor = check_number(
            owner,
            "load_factor",
            self.load_factor,
            at_least=1.0,
            hint="below 1 the endpoints together could not hold all requests; 1.25 is usual",
        )
        slack = check_number(
            owner, "load_slack", self.load_slack, hint="0 is the textbook, 8 the default of Nested"
        )
        return Bound(factor, slack)

    def limits(self, group: Group, available: Sequence[int], of: Sequence[int]) -> dict[int, int]:
        """Return the most requests that endpoints may hold after admission.

        Args:
            group: Of the endpoints.
            available: Indices of those that share the requests.
            of: Of these, those that are asked about.
        """
        states = group.states
        if group.even:
            counted = states if available is group.everyone else [states[i] for i in available]
            total_in_flight, part = sum(map(_in_flight, counted)), 1.0 / len(available)
            most = capacity(total_in_flight, part, self.load_factor, self.load_slack)
            return dict.fromkeys(of, most)
        total = weight = 0.0
        for index in available:
            total += states[index].in_flight
            weight += states[index].endpoint.weight
        factor, slack, in_flight = self.load_factor, self.load_slack, int(total)
        known: dict[float, int] = {}
        limits = {}
        for index in of:
            own = states[index].endpoint.weight
            limit = known.get(own)
            if limit is None:
                limit = known[own] = capacity(in_flight, own / weight, factor, slack)
            limits[index] = limit
        return limits


def outstanding(state: EndpointState, queues: Queues, now: float) -> float:
    """Return requests per weight at an endpoint: own ones, and others' as last reported."""
    return (state.in_flight + queues.foreign_requests(state, now)) / state.endpoint.weight


def least_loaded(ask: Ask, rotation: int) -> int:
    """Return the available index with the least outstanding requests; ties take turns."""
    states, available, count = ask.group.states, ask.available, len(ask.available)
    start = rotation % count
    return min(
        (available[(start + step) % count] for step in range(count)),
        key=lambda index: outstanding(states[index], ask.queues, ask.now),
    )


class StatelessPolicy:
    """The parts of a policy that has nothing to learn from replies."""

    __slots__ = ("_random", "_requests", "_rotation")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rotation = random.getrandbits(16)
        self._requests = 0

    def keyless(self, ask: Ask, reason: Reason = Reason.NO_KEY) -> Choice:
        """Choose the least loaded endpoint for a request without a key."""
        index = least_loaded(ask, self._rotation)
        return Choice(
            index=index,
            reason=Reason.PANIC if ask.panic else reason,
            candidates=ask.available,
            uncached_tokens=ask.tokens,
        )

    def seen(self, ask: Ask, choice: Choice) -> Seen:  # noqa: ARG002
        """Return nothing of prefixes: their traffic is not counted."""
        return Seen(requests=float(self._requests))

    def sent(self, ask: Ask, choice: Choice, *, counted: bool) -> None:  # noqa: ARG002
        """Move the rotation of ties on."""
        self._requests += counted
        if choice.depth < 0:
            self._rotation += 1

    def learned(self, loan: Loan) -> None:
        """Learn nothing."""

    def unsent(self, loan: Loan) -> None:
        """Undo nothing."""

    def joined(self, state: EndpointState) -> None:
        """Remember nothing."""

    def left(self, state: EndpointState) -> None:
        """Forget nothing."""

    def forked(self) -> None:
        """Let ties start elsewhere than in the other children."""
        self._rotation = self._random.getrandbits(16)

    def hot(self, now: float) -> Hot:  # noqa: ARG002
        """Return nothing: prefixes are not counted."""
        return Hot()

    def heard(self, hot: Hot, now: float) -> None:
        """Take nothing."""
