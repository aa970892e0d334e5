"""Traces: requests with a time, a prompt and a number of output tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import median
from typing import Final

from prefixroute.core.prompt import Prompt
from prefixroute.errors import ConfigurationError

__all__ = ["Request", "Trace", "block_prompt"]

_COARSE_S: Final = 1.0
"""Times that are never closer than this say in which step a request came, not when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a trace.

    Args:
        at_s: When it comes, seconds after the start of the trace.
        prompt: What placement knows of it.
        output_tokens: Length of its reply, tokens.
    """

    at_s: float
    prompt: Prompt
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their times.

    Args:
        name: What reports call it.
        block_tokens: Size of the blocks that a replica's cache is counted in, tokens.
        requests: Sorted by ``at_s``.
    """

    name: str
    block_tokens: int
    requests: tuple[Request, ...]

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return f"<Trace {self.name}, {len(self)} requests in {self.duration_s:.0f} s>"

    @property
    def duration_s(self) -> float:
        """Time from the start to the last request, seconds."""
        return self.requests[-1].at_s if self.requests else 0.0

    @property
    def tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(round(request.prompt.tokens) for request in self.requests)

    @classmethod
    def of(cls, name: str, requests: Iterable[Request], *, block_tokens: int) -> Trace:
        """Return a trace of these requests, sorted by time, the first one at its own time."""
        ordered = tuple(sorted(requests, key=lambda request: request.at_s))
        return cls(name=name, block_tokens=block_tokens, requests=ordered)

    def faster(self, speed: float) -> Trace:
        """Return the trace with all times divided by ``speed``."""
        if not (math.isfinite(speed) and speed > 0.0):
            raise ConfigurationError(f"speed={speed!r} must be a finite number above 0")
        return self._at(request.at_s / speed for request in self.requests)

    def spread(self, seed: int, *, step_s: float | None = None) -> Trace:
        """Return the trace with arrivals spread uniformly within the steps of its times.

        Args:
            seed: Of the random times.
            step_s: Length of a step, seconds; default: the median distance of different times if
                none is below a second, else times are taken as they are.
        """
        step = self.step_s if step_s is None else step_s
        if step <= 0.0:
            return self
        rng = Random(seed)  # noqa: S311 - arrival times
        moved = self._at(request.at_s + rng.random() * step for request in self.requests)
        return Trace.of(self.name, moved.requests, block_tokens=self.block_tokens)

    @property
    def step_s(self) -> float:
        """The step in which times are given, seconds; 0: they are exact."""
        times = sorted({request.at_s for request in self.requests})
        steps = [after - before for before, after in pairwise(times)]
        return median(steps) if steps and min(steps) >= _COARSE_S else 0.0

    def _at(self, times: Iterable[float]) -> Trace:
        moved = tuple(
            [replace(r, at_s=at) for r, at in zip(self.requests, times, strict=True)]
        )
        return replace(self, requests=moved)


def block_prompt(
    block_ids: Iterable[int], *, block_tokens: int, tokens: int | None = None
) -> Prompt:
    """Return the prompt of blocks that are named by their content, for a streamed call."""
    prompt = Prompt.from_blocks(block_ids, block_tokens=block_tokens, tokens=tokens)
    return replace(prompt, stream=True)
