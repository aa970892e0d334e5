"""What a router tells those who watch it: frozen events, never with prompts or keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from prefixroute.core.decision import Decision

__all__ = [
    "EndpointCooling",
    "EndpointEjected",
    "EndpointReadmitted",
    "Event",
    "FirstToken",
    "MembershipChanged",
    "Observer",
    "RequestDone",
    "RequestSent",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSent:
    """A lease was taken: a request is about to be sent.

    Args:
        decision: Where, and why.
        retry: It is a further try of its call.
        decision_s: Time that reading the request and choosing took, seconds; ``None``: not
            measured, for a further try, or one that had to wait for room.
    """

    decision: Decision
    retry: bool
    decision_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The first token of a streamed reply came, ``ttft_s`` seconds after the lease was taken."""

    endpoint_id: str
    ttft_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone:
    """A lease ended.

    Args:
        endpoint_id: Where the request went.
        duration_s: How long the lease was held, seconds.
        failed: The endpoint failed the request.
        prompt_tokens: As the reply reported; ``None``: it did not.
        cached_tokens: As the reply reported; ``None``: it did not.
        expected_cached_tokens: As expected when it was placed.
    """

    endpoint_id: str
    duration_s: float
    failed: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    expected_cached_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointEjected:
    """An endpoint failed too often, or was ejected by hand.

    Args:
        endpoint_id: Which one.
        until: When the next probe is due, by the router's clock; by hand: infinite.
        for_s: How long that is from now, seconds.
    """

    endpoint_id: str
    until: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReadmitted:
    """An ejected endpoint takes requests again."""

    endpoint_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCooling:
    """An endpoint asked to be left alone for ``for_s`` seconds."""

    endpoint_id: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChanged:
    """Endpoints joined or left, or stay with other settings (a weight, a key)."""

    joined: tuple[str, ...]
    left: tuple[str, ...]
    changed: tuple[str, ...] = ()


Event: TypeAlias = (
    RequestSent
    | FirstToken
    | RequestDone
    | EndpointEjected
    | EndpointReadmitted
    | EndpointCooling
    | MembershipChanged
)


class Observer(Protocol):
    """Anything that wants to know; called in the thread of the request, outside the lock."""

    def on_event(self, event: Event) -> None:
        """Take an event; what this raises is logged once and goes no further."""
        ...
