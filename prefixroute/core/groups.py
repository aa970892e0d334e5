"""What the two groups of a holdout came to, side by side, and how sure the difference is.

Requests of one conversation are alike, so that their number says little about the certainty.
Conversations are therefore hashed into 32 parts, and how these differ tells how far chance reaches:
see :mod:`prefixroute.core.certainty`. Memory does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from prefixroute.core.certainty import Gain, difference
from prefixroute.core.load import Loan

__all__ = ["PARTS", "GroupStats", "Groups", "HoldoutStats", "Tally"]

PARTS: Final = 32
"""Parts that the conversations of a group are hashed into."""

_SAMPLE: Final = 2048
"""Times kept of each group: the standard error of its 95th percentile is half a percentile."""

_NO_MORE_THAN: Final = 2.0
"""Times its share that the held-out group may have of the requests."""

_ALLOWED: Final = 30.0
"""Requests more than that which it may have: one long conversation."""


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one group of conversations came to.

    Args:
        placement: How it is placed.
        requests: Calls of it that were sent.
        reports: Replies that reported their cached tokens.
        unreported: Replies that did not: what of these was cached is unknown, and counts nowhere.
        failed: Tries that their endpoint failed.
        prompt_tokens: Of the replies that reported.
        cached_tokens: Of these, reported as cached.
        parts: Of the 32 parts that conversations are hashed into, those with a reply.
        ttft_count: Streamed replies with a first token.
        ttft_mean_s: Mean time to first token, seconds; ``None``: there was none, and so below.
        ttft_p50_s: Median, from a uniform sample of at most 2,048 of all so far.
        ttft_p95_s: 95th percentile, from the same sample.
    """

    placement: str
    requests: int
    reports: int
    unreported: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    parts: int
    ttft_count: int
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that replies reported as cached; ``None``: none reported."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class HoldoutStats(msgspec.Struct, frozen=True, kw_only=True):
    """A holdout's two groups and the difference.

    Both share the endpoints, so that the difference is not that of two fleets: see
    ``docs/proof.md`` for which way it leans.

    Args:
        share: Of the conversations that is held out.
        routed: What the router's placement came to.
        held_out: What the baseline came to.
        excess: Requests that belonged to the held-out group and were routed all the same, since it
            had got twice its share already; they count in neither group.
        hit_rate_gain: Routed less held out, 0 to 1; ``None``: not enough conversations yet.
        ttft_gain_s: Held out less routed, in mean seconds; ``None``: not enough yet.
    """

    share: float
    routed: GroupStats
    held_out: GroupStats
    excess: int
    hit_rate_gain: Gain | None
    ttft_gain_s: Gain | None

    @property
    def sentence(self) -> str:
        """The difference in plain words."""
        return f"{self._hits()} {self._times()}"

    def _hits(self) -> str:
        mine, other, gain = self.routed.hit_rate, self.held_out.hit_rate, self.hit_rate_gain
        if mine is None or other is None or gain is None:
            return "Cached prompt tokens: not enough conversations yet to tell the groups apart."
        return (
            f"Of prompt tokens {mine:.1%} were cached, against {other:.1%} placed by "
            f"{self.held_out.placement}: {100 * gain.value:+.1f} points (95 % sure of "
            f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}{_chance(gain)})."
        )

    def _times(self) -> str:
        mine, other, gain = self.routed.ttft_mean_s, self.held_out.ttft_mean_s, self.ttft_gain_s
        if mine is None or other is None or gain is None:
            return "First tokens: not enough streamed conversations yet."
        return (
            f"First tokens came after {mine:.3f} s, against {other:.3f} s: {gain.value:.3f} s "
            f"sooner (95 % sure of {gain.low:.3f} to {gain.high:.3f}{_chance(gain)})."
        )


def _chance(gain: Gain) -> str:
    return "" if gain.sure else "; it may be chance"


class Tally:
    """Counts one group, in memory that does not grow.

    The times are a uniform sample of all: Algorithm R of Vitter, "Random Sampling with a
    Reservoir", ACM TOMS 11 (1985).

    Args:
        placement: How the group is placed.
        random: Draws the sample; not the router's own, which a comparison must not disturb.
    """

    __slots__ = (
        "_cached", "_prompt", "_random", "_sample", "_ttft_n", "_ttft_s", "failed", "placement",
        "reports", "requests", "unreported",
    )  # fmt: skip

    def __init__(self, placement: str, random: Random) -> None:
        self.placement, self._random = placement, random
        self.requests = self.reports = self.unreported = self.failed = 0
        # By part: tokens of prompts and of them cached; first tokens and the sum of their times.
        self._prompt, self._cached, self._ttft_n = [0] * PARTS, [0] * PARTS, [0] * PARTS
        self._ttft_s = [0.0] * PARTS
        self._sample: list[float] = []

    def ended(self, loan: Loan, part: int) -> None:
        """Count a try that has ended."""
        if loan.failed:
            self.failed += 1
            return
        if loan.cached_tokens is None:
            self.unreported += 1
        else:
            self.reports += 1
            tokens = loan.prompt_tokens if loan.prompt_tokens is not None else round(loan.tokens)
            self._prompt[part] += max(tokens, loan.cached_tokens)
            self._cached[part] += loan.cached_tokens
        if loan.first_at is not None:
            self._first_token(loan.first_at - loan.sent_at, part)

    def _first_token(self, ttft_s: float, part: int) -> None:
        self._ttft_n[part] += 1
        self._ttft_s[part] += ttft_s
        count = sum(self._ttft_n)
        if count <= _SAMPLE:
            self._sample.append(ttft_s)
        elif (at := self._random.randrange(count)) < _SAMPLE:
            self._sample[at] = ttft_s

    def stats(self) -> GroupStats:
        """Return the counts so far."""
        times, count = sorted(self._sample), sum(self._ttft_n)
        return GroupStats(
            placement=self.placement,
            requests=self.requests,
            reports=self.reports,
            unreported=self.unreported,
            failed=self.failed,
            prompt_tokens=sum(self._prompt),
            cached_tokens=sum(self._cached),
            parts=sum(map(bool, [p or n for p, n in zip(self._prompt, self._ttft_n, strict=True)])),
            ttft_count=count,
            ttft_mean_s=sum(self._ttft_s) / count if count else None,
            ttft_p50_s=_quantile(times, 0.5),
            ttft_p95_s=_quantile(times, 0.95),
        )

    @property
    def hits(self) -> tuple[Sequence[float], Sequence[float]]:
        """Cached tokens and prompt tokens, by part."""
        return self._cached, self._prompt

    @property
    def times(self) -> tuple[Sequence[float], Sequence[float]]:
        """Seconds to first tokens and their number, by part."""
        return self._ttft_s, self._ttft_n


class Groups:
    """The two groups of a holdout.

    Args:
        share: Of the conversations that is held out.
        routed: Names the placement of the others.
        baseline: Names the placement of those held out.
        random: Draws the samples of times.
    """

    __slots__ = ("excess", "held_out", "routed", "share")

    def __init__(self, share: float, routed: str, baseline: str, random: Random) -> None:
        self.share, self.excess = share, 0
        self.routed, self.held_out = Tally(routed, random), Tally(baseline, random)

    @property
    def is_over(self) -> bool:
        """Whether far more than its share is held out: prompts that no hash tells apart."""
        held = self.held_out.requests
        return held > _ALLOWED + _NO_MORE_THAN * self.share * (held + self.routed.requests)

    def stats(self) -> HoldoutStats:
        """Return the counts so far, and the difference."""
        return HoldoutStats(
            share=self.share,
            routed=self.routed.stats(),
            held_out=self.held_out.stats(),
            excess=self.excess,
            hit_rate_gain=difference(self.routed.hits, self.held_out.hits),
            ttft_gain_s=difference(self.held_out.times, self.routed.times),
        )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
