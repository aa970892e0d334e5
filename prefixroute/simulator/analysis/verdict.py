"""Whether routing by prefix is worth it, in a sentence or two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prefixroute.simulator.analysis.report import Expected, Reason, Search, Verdict

__all__ = ["Facts", "verdict_on"]

_LEAST_REQUESTS: Final = 20
_UNRELATED: Final = 0.05
_LEAST_GAIN: Final = 0.03
_SPOILED: Final = 0.1
_NEAR: Final = 0.9
_SHORT_S: Final = 0.005
"""A gain in prefill per request below this is lost in the noise of a network."""

_SMALL_PART: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a verdict rests on.

    Args:
        requests: How many there were.
        replicas: How many there are.
        repeated_share: Share of prompt tokens that repeat an earlier prefix.
        mean_tokens: Mean length of a prompt.
        prefill_tokens_per_s: Of a replica.
        decode_mean_s: Mean time that a reply takes after its first token; ``None``: unknown.
        distinct_tokens: What a cache would have to hold to keep everything.
        cache_tokens: Of a replica.
        random: Expected of requests spread at random.
        routed: Expected of requests routed by prefix.
        search: What spoils prefixes.
    """

    requests: int
    replicas: int
    repeated_share: float
    mean_tokens: float
    prefill_tokens_per_s: float
    decode_mean_s: float | None
    distinct_tokens: int
    cache_tokens: int
    random: Expected
    routed: Expected
    search: Search | None

    @property
    def gain(self) -> float:
        """What routing adds to the hit rate."""
        return self.routed.hit_rate - self.random.hit_rate

    @property
    def rates(self) -> str:
        """Both hit rates in words."""
        return (
            f"hit rate {self.random.hit_rate:.0%} at random, {self.routed.hit_rate:.0%} by prefix"
        )

    @property
    def fixable(self) -> float:
        """Share of the prompt tokens that spoilers keep from repeating."""
        if self.search is None or not self.search.spoilers:
            return 0.0
        return self.search.share_if_fixed - self.search.repeated_share


def verdict_on(facts: Facts) -> Verdict:
    """Return whether to go on, and why: the first rule that speaks decides."""
    for rule in (_too_few, _spoiled, _unrelated, _one_replica, _no_gain, _short, _long_outputs):
        verdict = rule(facts)
        if verdict is not None:
            return verdict
    return _gain(facts)


def _too_few(facts: Facts) -> Verdict | None:
    if facts.requests >= _LEAST_REQUESTS:
        return None
    text = (
        f"Cannot tell: {facts.requests} requests are too few. Give an hour of your traffic, or at "
        "least some hundred requests in a row."
    )
    return Verdict(worth_it=None, reason=Reason.TOO_FEW, text=text)


def _spoiled(facts: Facts) -> Verdict | None:
    search = facts.search
    if search is None or facts.gain >= _SPOILED:
        return None
    if facts.fixable < max(_SPOILED, 2 * facts.gain):
        return None
    first, *others = search.spoilers
    more = " (and what else is listed below)" if others else ""
    text = (
        f"Not as the prompts are: {search.repeated_share:.0%} of their tokens repeat an earlier "
        f"prefix, but {search.share_if_fixed:.0%} would without {first.what} in "
        f"{first.place}{more}. Change that first, and analyse again."
    )
    return Verdict(worth_it=False, reason=Reason.SPOILED, text=text)


def _unrelated(facts: Facts) -> Verdict | None:
    if facts.repeated_share >= _UNRELATED:
        return None
    text = (
        f"Routing by prefix will not help: the prompts are unrelated. Only "
        f"{facts.repeated_share:.1%} of their tokens repeat the start of an earlier prompt, so "
        "there is nearly nothing that a replica could already hold."
    )
    return Verdict(worth_it=False, reason=Reason.UNRELATED, text=text)


def _one_replica(facts: Facts) -> Verdict | None:
    if facts.replicas > 1:
        return None
    text = (
        "Not worth it: with one replica there is nothing to choose. Its own prefix cache finds "
        f"{facts.random.hit_rate:.0%} of the prompt tokens."
    )
    return Verdict(worth_it=False, reason=Reason.ONE_REPLICA, text=text)


def _no_gain(facts: Facts) -> Verdict | None:
    if facts.gain >= _LEAST_GAIN:
        return None
    if facts.random.hit_rate < _NEAR * facts.repeated_share:
        text = f"Not worth it: routing finds little more ({facts.rates})."
        return Verdict(worth_it=False, reason=Reason.LITTLE_GAIN, text=text)
    text = (
        f"Not worth it: every replica soon holds what repeats ({facts.rates}). All that is "
        f"distinct in the prompts is {facts.distinct_tokens:,} tokens; a replica caches "
        f"{facts.cache_tokens:,}."
    )
    return Verdict(worth_it=False, reason=Reason.CACHE_HOLDS_ALL, text=text)


def _short(facts: Facts) -> Verdict | None:
    saved_s = facts.gain * facts.mean_tokens / facts.prefill_tokens_per_s
    if saved_s >= _SHORT_S:
        return None
    text = (
        f"Not worth it: prompts are short ({facts.mean_tokens:,.0f} tokens on average). More is "
        f"found cached ({facts.rates}), but that saves {saved_s * 1e3:.1f} ms of prefill a request."
    )
    return Verdict(worth_it=False, reason=Reason.SHORT, text=text)


def _long_outputs(facts: Facts) -> Verdict | None:
    if facts.decode_mean_s is None:
        return None
    saved_s = facts.random.ttft_mean_s - facts.routed.ttft_mean_s
    if saved_s >= _SMALL_PART * (facts.random.ttft_mean_s + facts.decode_mean_s):
        return None
    text = (
        f"Hardly worth it: outputs are much longer than prompts. Routing saves "
        f"{max(0.0, saved_s):.2f} s to the first token ({facts.rates}), but the whole reply takes "
        f"about {facts.decode_mean_s:.1f} s."
    )
    return Verdict(worth_it=False, reason=Reason.LONG_OUTPUTS, text=text)


def _gain(facts: Facts) -> Verdict:
    text = (
        f"{'Worth it' if facts.gain >= _SPOILED else 'Worth a little'}: on {facts.replicas} "
        f"replicas, {facts.rates}; mean time to first token {facts.random.ttft_mean_s:.2f} s at "
        f"random, {facts.routed.ttft_mean_s:.2f} s by prefix."
    )
    search = facts.search
    if search is not None and facts.fixable >= _LEAST_GAIN:
        text += (
            f" The prompts can give more: {search.share_if_fixed:.0%} of their tokens would repeat "
            f"instead of {search.repeated_share:.0%} without what is listed below."
        )
    return Verdict(worth_it=True, reason=Reason.GAIN, text=text)
