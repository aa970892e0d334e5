"""Traces: requests with a time, a prompt and a number of output tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from statistics import median
from typing import Final

from msgspec import structs

from prefixroute.core.checks import check_number
from prefixroute.core.prompt import Prompt

__all__ = ["Change", "Request", "Trace", "block_prompt"]

_COARSE_S: Final = 1.0
"""Times that repeat and are else never closer than this say in which step a request came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a trace.

    Args:
        at_s: When it comes, seconds after the start of the trace.
        prompt: What placement knows of it.
        output_tokens: Length of its reply, tokens.
        body: The request body, if the trace has bodies: placements that cut prompts their own way
            read it again.
        path: The path that the body was sent to.
        cached_as: The prompt as the replicas' caches see it, where that is finer than what
            placement sees; default: the same.
    """

    at_s: float
    prompt: Prompt
    output_tokens: int
    body: Mapping[str, object] | None = field(default=None, repr=False)
    path: str | None = None
    cached_as: Prompt | None = field(default=None, repr=False)

    @property
    def content(self) -> Prompt:
        """The prompt as the replicas' caches see it."""
        return self.prompt if self.cached_as is None else self.cached_as

    @property
    def tokens(self) -> int:
        """Length of the prompt, tokens."""
        return round(self.content.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A replica that joins, with an empty cache, or leaves.

    One that leaves gets no new requests and ends those that it has.

    Args:
        at_s: When, seconds after the start of the trace.
        replica: Index of the replica; joining, one above the highest is a new one.
        joins: Whether it joins.
    """

    at_s: float
    replica: int
    joins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their times.

    Args:
        name: What reports call it.
        block_tokens: Size of the blocks that a replica's cache is counted in, tokens.
        requests: Sorted by ``at_s``.
        changes: Of the membership, sorted by ``at_s``.
    """

    name: str
    block_tokens: int
    requests: tuple[Request, ...] = field(repr=False)
    changes: tuple[Change, ...] = ()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def duration_s(self) -> float:
        """Time from the start to the last request, seconds."""
        return self.requests[-1].at_s if self.requests else 0.0

    @property
    def tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.tokens for request in self.requests)

    @classmethod
    def of(
        cls,
        name: str,
        requests: Iterable[Request],
        *,
        block_tokens: int,
        changes: Iterable[Change] = (),
    ) -> Trace:
        """Return a trace of these requests and changes, sorted by time."""
        return cls(
            name=name,
            block_tokens=block_tokens,
            requests=tuple(sorted(requests, key=lambda request: request.at_s)),
            changes=tuple(sorted(changes, key=lambda change: change.at_s)),
        )

    def faster(self, speed: float) -> Trace:
        """Return the trace with all times divided by ``speed``.

        Raises:
            ConfigurationError: A speed that is no finite number above 0.
        """
        speed = check_number("Trace.faster", "speed", speed, above=True)
        return replace(
            self,
            requests=tuple([replace(r, at_s=r.at_s / speed) for r in self.requests]),
            changes=tuple([replace(c, at_s=c.at_s / speed) for c in self.changes]),
        )

    def shifted(self, by_s: float) -> Trace:
        """Return the trace with all times moved by ``by_s``."""
        return replace(
            self,
            requests=tuple([replace(r, at_s=r.at_s + by_s) for r in self.requests]),
            changes=tuple([replace(c, at_s=c.at_s + by_s) for c in self.changes]),
        )

    @property
    def step_s(self) -> float:
        """The step in which times are given, seconds; 0: they are exact."""
        times = sorted({request.at_s for request in self.requests})
        steps = [after - before for before, after in pairwise(times)]
        if not steps or len(times) == len(self.requests) or min(steps) < _COARSE_S:
            return 0.0
        return median(steps)

    def spread(self, seed: int) -> Trace:
        """Return the trace with arrivals spread uniformly within the steps of its times.

        Times that are exact are left alone.

        Args:
            seed: Of the random times.
        """
        step_s = self.step_s
        if step_s <= 0.0:
            return self
        rng = Random(seed)  # noqa: S311 - arrival times
        moved = [replace(r, at_s=r.at_s + rng.random() * step_s) for r in self.requests]
        return Trace.of(self.name, moved, block_tokens=self.block_tokens, changes=self.changes)

    def streamed(self, *, stream: bool) -> Trace:
        """Return the trace with replies that are all streamed, or all not."""
        moved = [
            r
            if r.prompt.stream is stream
            else replace(r, prompt=structs.replace(r.prompt, stream=stream))
            for r in self.requests
        ]
        return replace(self, requests=tuple(moved))


def block_prompt(
    block_ids: Iterable[int], *, block_tokens: int, tokens: int | None = None
) -> Prompt:
    """Return the prompt of a streamed call whose blocks are named by their content.

    Args:
        block_ids: One int for each block's own content.
        block_tokens: Length of a block, tokens.
        tokens: Length of the prompt, tokens; default: whole blocks.

    Raises:
        ConfigurationError: As :meth:`Prompt.from_blocks` does.
    """
    prompt = Prompt.from_blocks(block_ids, block_tokens=block_tokens, tokens=tokens)
    return structs.replace(prompt, stream=True)
