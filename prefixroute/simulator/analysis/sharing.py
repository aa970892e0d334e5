"""How much of the prompts repeats earlier ones, how deep, and in which prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prefixroute.core.prompt import KeySource, Prompt
from prefixroute.simulator.analysis.report import Depths, TopPrefix
from prefixroute.simulator.report import quantile
from prefixroute.simulator.traces import Request

__all__ = ["Sharing", "sharing_of", "top_prefixes"]

_DEPTHS: Final = (0, 1, 128, 512, 2048, 8192, 32768)

_LEAST_REQUESTS: Final = 0.01
"""A prefix counts as one that many share from this share of all requests on."""

_PREFIXES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How much of the prompts repeats the start of an earlier one.

    Attributes:
        tokens: Of all prompts.
        repeated: How many of these repeat.
        repeated_root: How many of these are tools and system prompts.
        depths: Of each request, sorted.
    """

    tokens: int
    repeated: int
    repeated_root: int
    depths: Sequence[int]

    def summary(self) -> Depths:
        """Return how the depths are spread."""
        bounds = [*_DEPTHS[1:], max(self.depths, default=0) + 1]
        count = max(1, len(self.depths))
        shares, below = [], 0
        for low, high in zip(_DEPTHS, bounds, strict=True):
            upto = sum(depth < high for depth in self.depths)
            shares.append((low, (upto - below) / count))
            below = max(below, upto)
        p10, p50, p90 = (round(quantile(self.depths, q)) for q in (0.1, 0.5, 0.9))
        return Depths(p10=p10, p50=p50, p90=p90, shares=tuple(shares))


def sharing_of(requests: Sequence[Request]) -> Sharing:
    """Return what the prompts of requests repeat, each of the requests before it."""
    seen: set[int] = set()
    depths, root, tokens = [], 0, 0
    for request in requests:
        prompt, held = request.prompt, 0
        for block in prompt.chain:
            if block not in seen:
                break
            held += 1
        seen.update(prompt.chain[held:])
        size = round(prompt.tokens)
        depths.append(min(size, _tokens(prompt, held)))
        root += min(depths[-1], _tokens(prompt, min(held, prompt.root_blocks)))
        tokens += size
    repeated = sum(depths)
    depths.sort()
    return Sharing(tokens=tokens, repeated=repeated, repeated_root=root, depths=depths)


def top_prefixes(requests: Sequence[Request]) -> list[tuple[TopPrefix, int]]:
    """Return the prefixes that save most, each with the index of a request that has it."""
    counts: Counter[int] = Counter()
    for request in requests:
        counts.update(request.prompt.chain)
    least = max(2.0, _LEAST_REQUESTS * len(requests))
    found: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        chain, depth = request.prompt.chain, 0
        while depth < len(chain) and counts[chain[depth]] >= least:
            depth += 1
        if depth:
            found.setdefault(chain[depth - 1], [index, depth, 0])[2] += 1
    total = sum(round(request.prompt.tokens) for request in requests)
    prefixes = []
    for digest, (index, depth, count) in found.items():
        prompt = requests[index].prompt
        tokens = _tokens(prompt, depth)
        prefix = TopPrefix(
            digest=f"{digest:016x}",
            tokens=tokens,
            requests=count,
            request_share=count / len(requests),
            token_share=tokens * (count - 1) / total if total else 0.0,
            label=_label(prompt, depth),
        )
        prefixes.append((prefix, index))
    prefixes.sort(key=lambda found: (-found[0].token_share, found[0].digest))
    return prefixes[:_PREFIXES]


def _tokens(prompt: Prompt, blocks: int) -> int:
    return round(prompt.ends[blocks - 1] * prompt.tokens_per_unit) if blocks else 0


def _label(prompt: Prompt, depth: int) -> str:
    """Say where a prefix ends, without its text."""
    match prompt.source:
        case KeySource.MESSAGES | KeySource.INPUT | KeySource.SESSION:
            if depth < prompt.root_blocks:
                return "within tools and system prompt"
            if depth == prompt.root_blocks:
                return "end of tools and system prompt"
            return "within the conversation" if depth < len(prompt.chain) else "the whole prompt"
        case KeySource.TEXT | KeySource.TOKENS:
            return "within the text" if depth < len(prompt.chain) else "the whole text"
    return f"block {depth} of {len(prompt.chain)}"
