"""A router in a simulation: what it is told, and what it starts with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prefixroute.simulator.traces import Request

__all__ = ["Setup", "SimulatedRouter"]


class SimulatedRouter(Protocol):
    """One router in a simulation. It is told what a client is told, and the time.

    Replicas are indices. A ticket is whatever :meth:`route` gives; it is shown again when the
    request's tokens come.
    """

    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Return the replica for a request, and a ticket."""
        ...

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:
        """Note a first token, and the cached tokens if they are reported with it."""
        ...

    def done(
        self, ticket: object, prompt_tokens: int, cached_tokens: int | None, now: float
    ) -> None:
        """Note the end of a reply, with what it reports of its prompt."""
        ...

    def reported(self, counts: Sequence[tuple[int, int]], now: float) -> None:
        """Take the engines' ``(running, waiting)`` counts, of all replicas in order."""
        ...

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Use these replicas from now on."""
        ...

    def home(self, request: Request, now: float) -> int | None:
        """Return where the request's key belongs now; ``None``: this rule has no keys."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a router of a run starts with.

    Args:
        members: Indices of the replicas.
        block_tokens: Size of the trace's blocks, tokens.
        seed: Of the run: places the ring.
        serial: Number of the router in the run; seeds its ties.
        routers: How many routers there are at a time.
        shared: What the routers of a run share to be quick; says nothing about the requests.
    """

    members: tuple[int, ...]
    block_tokens: int
    seed: int = 0
    serial: int = 0
    routers: int = 1
    shared: dict[object, object] = field(default_factory=dict)
