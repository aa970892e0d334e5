"""Where a request goes, and why."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import fields

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.prompt import KeySource

__all__ = ["Decision", "Reason"]


class Reason(Enum):
    """Why an endpoint was chosen."""

    HOME = "home"
    SPREAD = "spread"
    HOLDER = "holder"
    LOAD = "load"
    BOUND = "bound"
    OVERFLOW = "overflow"
    HOME_UNAVAILABLE = "home_unavailable"
    PINNED = "pinned"
    NO_KEY = "no_key"
    BASELINE = "baseline"
    PANIC = "panic"

    @property
    def sentence(self) -> str:
        """The reason as a sentence."""
        return _SENTENCES[self]

    @property
    def is_spill(self) -> bool:
        """Whether the home could have taken the request, and another endpoint was given it."""
        return self in _SPILLS


_SPILLS = frozenset({Reason.LOAD, Reason.BOUND, Reason.OVERFLOW, Reason.HOLDER})

_SENTENCES = {
    Reason.HOME: "It is the home of this prefix.",
    Reason.SPREAD: "The whole prompt is hot: its endpoints share it, and this one is least loaded.",
    Reason.HOLDER: "It holds more of this prompt than the home does.",
    Reason.LOAD: "The home is so busy that computing the prefix here is faster.",
    Reason.BOUND: "The home has reached its bound on requests in flight.",
    Reason.OVERFLOW: "Every endpoint has reached its bound; this one is the best of all.",
    Reason.HOME_UNAVAILABLE: (
        "The home is ejected, cooling, warming up, draining, full or was tried already."
    ),
    Reason.PINNED: "It answered the response that this request continues.",
    Reason.NO_KEY: "The request has no prompt to place it by; this endpoint is least loaded.",
    Reason.BASELINE: "The placement is a baseline that does not look at the prompt.",
    Reason.PANIC: "No endpoint is available; the request goes to the best of them all the same.",
}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request goes. Holds no prompt text and no key material.

    Args:
        endpoint: Where it goes.
        home: Where its key belongs while nothing is wrong; ``None`` without a key.
        key: The block hash that was looked up on the ring, 16 hexadecimal digits; ``None``: none.
        key_source: What the chain was made of.
        depth: Index of the key in the chain; -1 without a key.
        reason: Why this endpoint.
        tokens: Size of the request, tokens.
        expected_cached_tokens: How many of them the endpoint is expected to hold.
        spread: How many endpoints shared the deepest hot prefix above the key.
        candidates: The endpoints that were weighed, in the placement's order.
        loads: Load of each candidate before this request, seconds of prefill.
        in_flight: Requests in flight at each candidate before this one.
        bound: The most requests in flight that the chosen endpoint might hold; ``None``: no bound.
    """

    endpoint: Endpoint
    home: Endpoint | None
    key: str | None
    key_source: KeySource
    depth: int
    reason: Reason
    tokens: float
    expected_cached_tokens: float
    spread: int
    candidates: tuple[Endpoint, ...]
    loads: tuple[float, ...]
    in_flight: tuple[int, ...]
    bound: int | None

    def __reduce__(self) -> tuple[Callable[..., Decision], tuple[dict[str, object]]]:
        """Pickle it without keys and headers: a decision travels further than a configuration."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        values["endpoint"] = self.endpoint.without_secrets()
        values["home"] = None if self.home is None else self.home.without_secrets()
        values["candidates"] = tuple([one.without_secrets() for one in self.candidates])
        return _restored, (values,)

    def __repr__(self) -> str:
        """Show endpoint, reason and key."""
        key = f", key {self.key} at depth {self.depth}" if self.key else ""
        return f"<Decision {self.endpoint.id} ({self.reason.value}{key})>"

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from prefixroute.core.pages import decision_html  # noqa: PLC0415 - few look

        return decision_html(self)


def _restored(values: dict[str, Any]) -> Decision:
    return Decision(**values)
