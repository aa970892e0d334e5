"""What a shadow placement would have done, as a frozen value."""

from __future__ import annotations

import msgspec

__all__ = ["ShadowStats"]


class ShadowStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a shadow placement would have done.

    What is expected to be cached is counted alike for both: the longest prefix of each prompt that
    the placement has sent to the same endpoint before. It knows nothing of evictions, nor of what
    other routers send, so compare the two with each other rather than with the measured hit rate.

    Args:
        placement: The shadow.
        requests: Requests that both placed.
        moved: Of these, how many the shadow would have sent to another endpoint.
        tokens: Their size.
        given_cached_tokens: Of these, expected to be cached where they went.
        shadow_cached_tokens: Of these, expected to be cached where the shadow would have sent them.
        full: Requests that the shadow had no room for.
    """

    placement: str
    requests: int
    moved: int
    tokens: float
    given_cached_tokens: float
    shadow_cached_tokens: float
    full: int

    @property
    def moved_share(self) -> float | None:
        """Share of the requests that would have gone elsewhere; ``None``: there was none."""
        return self.moved / self.requests if self.requests else None

    @property
    def given_hit_rate(self) -> float | None:
        """Expected share of cached tokens as placed; ``None``: there was no request."""
        return self.given_cached_tokens / self.tokens if self.tokens else None

    @property
    def shadow_hit_rate(self) -> float | None:
        """Expected share of cached tokens as the shadow would have placed; ``None``: as above."""
        return self.shadow_cached_tokens / self.tokens if self.tokens else None

    @property
    def sentence(self) -> str:
        """The comparison in plain words."""
        moved, given, shadow = self.moved_share, self.given_hit_rate, self.shadow_hit_rate
        if moved is None or given is None or shadow is None:
            return f"{self.placement} has had no request to place yet."
        return (
            f"{self.placement} would have sent {moved:.1%} of {self.requests} requests elsewhere, "
            f"and could expect {shadow:.1%} of their tokens to be cached, against {given:.1%}."
        )
