"""What ``prefixroute watch`` has found, as frozen values; ``None`` is what cannot be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from prefixroute.core.hottest import HotPrefix

__all__ = ["EndpointView", "Source", "SourceLost", "View"]


class SourceLost(Exception):  # noqa: N818 - a state, which passes or stays
    """The source cannot be read now; the message names the cause and shows no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointView:
    """One endpoint.

    Args:
        id: The endpoint's id.
        health: Its state, in a word or two.
        in_flight: Requests held open there.
        waiting: Requests in its engine's queue, as it last reported.
        queued_tokens: Tokens sent there and not computed yet.
        requests_per_s: Requests and further tries.
        hit_rate: Share of prompt tokens that replies reported as cached.
        expected_hit_rate: The same as expected when they were placed.
        ttft_p50_s: Half of the streams had their first token within this time, seconds.
        ttft_p95_s: So had 95 % of them.
        spills: Requests sent there whose home is another endpoint, by reason.
        failures: Requests that it failed.
        ejections: How often it was ejected, since the application's start.
    """

    id: str
    health: str | None = None
    in_flight: int | None = None
    waiting: int | None = None
    queued_tokens: int | None = None
    requests_per_s: float | None = None
    hit_rate: float | None = None
    expected_hit_rate: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    spills: Mapping[str, int] | None = None
    failures: int | None = None
    ejections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that is shown of one moment.

    Args:
        endpoints: By id.
        total: The same of all of them together; its id is "".
        window_s: Counts and rates are of this time, seconds; ``None``: counts are of the time since
            the application's start, and there are no rates.
        routers: How many route to these endpoints.
        waiting_calls: Calls that wait in the application for an endpoint to have room.
        failovers: Tries after the first of a call.
        decision_p99_s: Of 99 % of the decisions, seconds.
        hottest: ``None``: not known.
        notes: What the source does not tell, and what would; what is wrong.
    """

    endpoints: Sequence[EndpointView]
    total: EndpointView
    window_s: float | None = None
    routers: int | None = None
    waiting_calls: int | None = None
    failovers: int | None = None
    decision_p99_s: float | None = None
    hottest: Sequence[HotPrefix] | None = None
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


class Source(Protocol):
    """Where views come from."""

    @property
    def shown(self) -> str:
        """What may be shown of its URL: no password, no key."""
        ...

    def read(self) -> View:
        """Return how things are now.

        Raises:
            SourceLost: It cannot be read.
        """
        ...

    def close(self) -> None:
        """Close its connection."""
        ...
