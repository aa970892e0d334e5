"""What a router has counted so far, as frozen values."""

from __future__ import annotations

from typing import Final

import msgspec

from prefixroute.core.groups import HoldoutStats
from prefixroute.core.health import HealthState
from prefixroute.core.load import EndpointState, EngineLoad
from prefixroute.core.shadow_stats import ShadowStats
from prefixroute.core.urls import shown_url

__all__ = ["EndpointStats", "Stats"]

_NO_CACHED_TOKENS: Final = (
    "its replies do not report cached tokens: start vLLM with --enable-prompt-tokens-details "
    "(and --enable-prefix-caching), SGLang with --enable-cache-report"
)
_NO_USAGE: Final = (
    "its replies report no usage: ask for it in streams, with "
    'stream_options={"include_usage": True} or Router(inject_usage=True), or call Lease.usage() '
    "where you send requests yourself"
)


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint's counts.

    Args:
        id: The endpoint's id.
        url: The endpoint's normalised URL, with a digest in place of a key in its query.
        state: Whether it may be given requests.
        warmth: Share of its part of the requests that it may have, 0 to 1; below 1 it warms up.
        in_flight: Requests that this router holds open there now.
        work: Own uncached tokens sent and not answered yet.
        requests: Leases taken so far.
        failures: Failures of the endpoint so far.
        spills: Requests sent there whose home was another endpoint.
        prompt_tokens: Prompt tokens that replies with a cache report counted.
        cached_tokens: Those of them that replies reported as cached.
        expected_cached_tokens: Those of them that placement expected to be cached.
        prefill_tokens_per_s: Learned prefill rate; ``None``: nothing learned yet.
        load: What the engine last reported of itself; ``None``: nothing, or too long ago.
        reports: Replies that reported how many of their prompt's tokens were cached.
        unreported_cached: Replies that counted their prompt's tokens, but not the cached ones.
        unreported: Replies to prompts that counted neither.
        primed: Prefixes that it was sent when it joined; no requests.
    """

    id: str
    url: str
    state: HealthState
    warmth: float
    in_flight: int
    work: float
    requests: int
    failures: int
    spills: int
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: float
    prefill_tokens_per_s: float | None
    load: EngineLoad | None
    reports: int
    unreported_cached: int
    unreported: int
    primed: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that replies reported as cached; ``None``: none reported."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def advice(self) -> str | None:
        """What turns on the reports that no reply has had so far; ``None``: nothing to say."""
        if self.reports:
            return None  # some engines leave the count out where it is zero
        if self.unreported_cached:
            return _NO_CACHED_TOKENS
        return _NO_USAGE if self.unreported else None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A router's counts; totals are sums over ``endpoints``, which are in the order given.

    Args:
        endpoints: Each one's counts.
        waiting: Calls that wait here for an endpoint to have room.
        holdout: What the two groups of ``Router(holdout=)`` came to; ``None``: there are none.
        shadow: What ``Router(shadow=)`` would have done; ``None``: there is none.
    """

    endpoints: tuple[EndpointStats, ...]
    waiting: int = 0
    holdout: HoldoutStats | None = None
    shadow: ShadowStats | None = None

    @property
    def in_flight(self) -> int:
        """Requests held open now."""
        return sum(e.in_flight for e in self.endpoints)

    @property
    def requests(self) -> int:
        """Leases taken so far."""
        return sum(e.requests for e in self.endpoints)

    @property
    def failures(self) -> int:
        """Failures of endpoints so far."""
        return sum(e.failures for e in self.endpoints)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens that replies with a cache report counted."""
        return sum(e.prompt_tokens for e in self.endpoints)

    @property
    def cached_tokens(self) -> int:
        """Those of them that replies reported as cached."""
        return sum(e.cached_tokens for e in self.endpoints)

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that replies reported as cached; ``None``: none reported."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def advice(self) -> tuple[str, ...]:
        """What turns on missing reports, a line for each endpoint that has none."""
        return tuple([f"{e.id}: {e.advice}" for e in self.endpoints if e.advice is not None])

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from prefixroute.core.pages import stats_html  # noqa: PLC0415 - few look

        return stats_html(self)


def endpoint_stats(state: EndpointState, now: float, *, fresh: bool) -> EndpointStats:
    """Return the counts of one endpoint, taken under the router's lock.

    Args:
        state: The endpoint's.
        now: Seconds.
        fresh: Its engine's last report may still be believed.
    """
    return EndpointStats(
        id=state.endpoint.id,
        url=shown_url(state.endpoint.url),
        state=state.health.state(now),
        warmth=state.health.warmth(now),
        in_flight=state.in_flight,
        work=state.queued + state.backlog,
        requests=state.requests,
        failures=state.failures,
        spills=state.spills,
        prompt_tokens=state.prompt_tokens,
        cached_tokens=state.cached_tokens,
        expected_cached_tokens=state.expected_tokens,
        prefill_tokens_per_s=state.rate or None,
        load=state.reported if fresh else None,
        reports=state.reports,
        unreported_cached=state.unreported_cached,
        unreported=state.unreported,
        primed=state.primed,
    )
