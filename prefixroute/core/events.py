"""What a router tells those who watch it: frozen events, never with prompts or keys."""

from __future__ import annotations

from contextvars import Context
from typing import Final, Protocol, TypeAlias

import msgspec

from prefixroute.core.decision import Decision

__all__ = [
    "EndpointCooling",
    "EndpointEjected",
    "EndpointPrimed",
    "EndpointReadmitted",
    "Event",
    "FirstToken",
    "GroupReply",
    "MembershipChanged",
    "Observer",
    "RequestDone",
    "RequestSent",
    "ShadowPlaced",
]


_OF_ONE_LEASE: Final = frozenset({"context", "decision_s", "serial"})


class _Event(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What all events are: equal where they tell the same, of whichever lease."""

    def _told(self) -> tuple[object, ...]:
        names = self.__struct_fields__
        return tuple([getattr(self, name) for name in names if name not in _OF_ONE_LEASE])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._told() == self._told()

    def __hash__(self) -> int:
        return hash((type(self), self._told()))


class RequestSent(_Event, frozen=True, kw_only=True, eq=False):
    """A lease was taken: a request is about to be sent.

    Args:
        decision: Where, and why.
        retry: It is a further try of its call.
        decision_s: Time that reading the request and choosing took, seconds; ``None``: not
            measured, for a further try, or one that had to wait for room.
        serial: Tells the leases of this router apart.
        context: The context of a call that had to wait, for whoever traces calls: it is told where
            room was made; ``None``: the current one.
    """

    decision: Decision
    retry: bool
    decision_s: float | None = None
    serial: int = 0
    context: Context | None = None


class FirstToken(_Event, frozen=True, kw_only=True, eq=False):
    """The first token of a streamed reply came.

    Args:
        endpoint_id: Where the request went.
        ttft_s: Time since the lease was taken, seconds.
        serial: As in :class:`RequestSent`.
    """

    endpoint_id: str
    ttft_s: float
    serial: int = 0


class RequestDone(_Event, frozen=True, kw_only=True, eq=False):
    """A lease ended.

    Args:
        endpoint_id: Where the request went.
        duration_s: How long the lease was held, seconds.
        failed: The endpoint failed the request.
        prompt_tokens: As the reply reported; ``None``: it did not.
        cached_tokens: As the reply reported; ``None``: it did not.
        expected_cached_tokens: As expected when it was placed.
        serial: As in :class:`RequestSent`.
    """

    endpoint_id: str
    duration_s: float
    failed: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    expected_cached_tokens: float
    serial: int = 0


class EndpointEjected(_Event, frozen=True, kw_only=True, eq=False):
    """An endpoint failed too often, or was ejected by hand.

    Args:
        endpoint_id: Which one.
        until: When the next probe is due, by the router's clock; by hand: infinite.
        for_s: How long that is from now, seconds.
    """

    endpoint_id: str
    until: float
    for_s: float


class EndpointReadmitted(_Event, frozen=True, kw_only=True, eq=False):
    """An ejected endpoint takes requests again."""

    endpoint_id: str


class EndpointCooling(_Event, frozen=True, kw_only=True, eq=False):
    """An endpoint asked to be left alone for ``for_s`` seconds."""

    endpoint_id: str
    for_s: float


class EndpointPrimed(_Event, frozen=True, kw_only=True, eq=False):
    """An endpoint that joined has been sent the hottest prefixes that it will own.

    Args:
        endpoint_id: Which one.
        prefixes: How many it has computed.
        took_s: How long that took, seconds.
    """

    endpoint_id: str
    prefixes: int
    took_s: float


class MembershipChanged(_Event, frozen=True, kw_only=True, eq=False):
    """Endpoints joined or left, or stay with other settings (a weight, a key)."""

    joined: tuple[str, ...]
    left: tuple[str, ...]
    changed: tuple[str, ...] = ()


class GroupReply(_Event, frozen=True, kw_only=True, eq=False):
    """A lease of one of the two groups of a holdout ended.

    Args:
        held_out: It was of the group that the baseline places.
        failed: The endpoint failed the request.
        prompt_tokens: As the reply reported; ``None``: it did not.
        cached_tokens: As the reply reported; ``None``: it did not.
        ttft_s: Time to the first token of a streamed reply, seconds; ``None``: there was none.
    """

    held_out: bool
    failed: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    ttft_s: float | None


class ShadowPlaced(_Event, frozen=True, kw_only=True, eq=False):
    """A shadow placement has decided for a request that is being sent.

    Args:
        moved: It would have sent it to another endpoint.
        tokens: Size of the request.
        given_cached_tokens: Of these, expected to be cached where it goes.
        shadow_cached_tokens: Of these, expected to be cached where the shadow would send it.
    """

    moved: bool
    tokens: float
    given_cached_tokens: float
    shadow_cached_tokens: float


Event: TypeAlias = (
    RequestSent
    | FirstToken
    | RequestDone
    | EndpointEjected
    | EndpointReadmitted
    | EndpointCooling
    | EndpointPrimed
    | MembershipChanged
    | GroupReply
    | ShadowPlaced
)


class Observer(Protocol):
    """Anything that wants to know; called in the thread of the request, outside the lock."""

    def on_event(self, event: Event) -> None:
        """Take an event; what this raises is logged once and goes no further."""
        ...
