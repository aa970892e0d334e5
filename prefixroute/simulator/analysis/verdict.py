"""Whether routing by prefix is worth it, in a sentence."""

from __future__ import annotations

from typing import Final

from prefixroute.simulator.analysis.report import Expected, Reason, Search, Verdict

__all__ = ["verdict"]

_LEAST_REQUESTS: Final = 20
_UNRELATED: Final = 0.05
_LEAST_GAIN: Final = 0.03
_SPOILED: Final = 0.1
_NEAR: Final = 0.9
_SHORT_S: Final = 0.005
"""A gain in prefill per request below this is lost in the noise of a network."""

_SMALL_PART: Final = 0.02


def verdict(
    *,
    requests: int,
    replicas: int,
    repeated_share: float,
    mean_tokens: float,
    prefill_tokens_per_s: float,
    decode_mean_s: float | None,
    distinct_tokens: int,
    cache_tokens: int,
    random: Expected,
    routed: Expected,
    search: Search | None,
) -> Verdict:
    """Return whether to go on, and why.

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
    gain = routed.hit_rate - random.hit_rate
    prefill_saved_s = gain * mean_tokens / prefill_tokens_per_s
    saved_s = random.ttft_mean_s - routed.ttft_mean_s
    between = f"hit rate {random.hit_rate:.0%} at random, {routed.hit_rate:.0%} routed"
    spoilers = search.spoilers if search is not None else ()
    after = search.share_if_fixed if search is not None else 0.0
    before = search.repeated_share if search is not None else 0.0
    if requests < _LEAST_REQUESTS:
        return _verdict(
            None,
            Reason.TOO_FEW,
            f"Cannot tell: {requests} requests are too few. Give a log of an hour or more of your "
            "traffic, or at least some hundred requests in a row.",
        )
    if spoilers and gain < _SPOILED and after - before >= max(_SPOILED, 2 * gain):
        return _verdict(False, Reason.SPOILED, _spoiled(search))
    if repeated_share < _UNRELATED:
        return _verdict(
            False,
            Reason.UNRELATED,
            f"Routing by prefix will not help: only {repeated_share:.1%} of the prompt tokens "
            "repeat the start of an earlier prompt, so there is nearly nothing that a replica "
            "could already hold. The prompts are unrelated.",
        )
    if replicas == 1:
        return _verdict(
            False,
            Reason.ONE_REPLICA,
            "Not worth it: with one replica there is nothing to choose. Its own prefix cache finds "
            f"what there is to find ({random.hit_rate:.0%} of the prompt tokens).",
        )
    if gain < _LEAST_GAIN:
        if random.hit_rate >= _NEAR * repeated_share:
            return _verdict(
                False,
                Reason.CACHE_HOLDS_ALL,
                f"Not worth it: every replica soon holds what repeats ({between}). All distinct "
                f"prefixes together have {distinct_tokens:,} tokens, a replica's cache "
                f"{cache_tokens:,}.",
            )
        return _verdict(
            False, Reason.LITTLE_GAIN, f"Not worth it: routing finds little more ({between})."
        )
    if prefill_saved_s < _SHORT_S:
        return _verdict(
            False,
            Reason.SHORT,
            f"Not worth it: prompts are short ({mean_tokens:,.0f} tokens on average), so that even "
            f"though more is found cached ({between}) it saves {prefill_saved_s * 1e3:.1f} ms of "
            "prefill a request.",
        )
    if decode_mean_s is not None and saved_s < _SMALL_PART * (random.ttft_mean_s + decode_mean_s):
        return _verdict(
            False,
            Reason.LONG_OUTPUTS,
            f"Hardly worth it: outputs are much longer than prompts. Routing saves "
            f"{max(0.0, saved_s):.2f} s to the first token ({between}), but a reply takes about "
            f"{decode_mean_s:.1f} s.",
        )
    text = (
        f"{'Worth it' if gain >= _SPOILED else 'Worth a little'}: on {replicas} replicas, "
        f"{between}; mean time to first token {random.ttft_mean_s:.2f} s at random, "
        f"{routed.ttft_mean_s:.2f} s routed."
    )
    if spoilers and after - before >= _LEAST_GAIN:
        text += (
            f" The prompts can give more: {after:.0%} of the tokens would repeat instead of "
            f"{before:.0%} if what varies near their start (below) did not."
        )
    return _verdict(True, Reason.GAIN, text)


def _spoiled(search: Search | None) -> str:
    if search is None:
        return ""
    first, *others = search.spoilers
    more = " (and what else is listed below)" if others else ""
    return (
        f"Not as the prompts are: only {search.repeated_share:.0%} of their tokens repeat an "
        f"earlier prefix, but {search.share_if_fixed:.0%} would without {first.what} in "
        f"{first.place}{more}. Change that first, and analyse again."
    )


def _verdict(worth_it: bool | None, reason: Reason, text: str) -> Verdict:  # noqa: FBT001
    return Verdict(worth_it=worth_it, reason=reason, text=text)
