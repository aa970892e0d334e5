"""A simulated replica: a prefix cache, a queue of prefills, and decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from prefixroute.simulator.cache import BlockCache
from prefixroute.simulator.traces import Request

__all__ = ["Events", "FifoReplica", "Job", "ReplicaModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """What a replica is like.

    Args:
        cache_blocks: Size of its prefix cache, blocks of the trace's size.
        prefill_tokens_per_s: How fast it computes what is not cached.
        fixed_s: Added to every prefill, seconds.
        decode_s: Time per output token, seconds.
    """

    cache_blocks: int = 4000
    prefill_tokens_per_s: float = 8000.0
    fixed_s: float = 0.02
    decode_s: float = 0.02


class Job:
    """One request on its way through a replica."""

    __slots__ = ("arrived_s", "cached_tokens", "first_s", "replica", "request", "router", "ticket")

    def __init__(self, request: Request, router: object, replica: int, ticket: object) -> None:
        self.request, self.router, self.replica, self.ticket = request, router, replica, ticket
        self.arrived_s = self.first_s = 0.0
        self.cached_tokens = 0


class Events:
    """What will happen, in the order of time."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Job, float], None], Job]] = []
        self._serial = 0

    def at(self, when_s: float, call: Callable[[Job, float], None], job: Job) -> None:
        """Call ``call(job, when_s)`` at that time."""
        self._serial += 1
        heappush(self._heap, (when_s, self._serial, call, job))

    def run_until(self, when_s: float) -> None:
        """Let everything happen that happens up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= when_s:
            at, _, call, job = heappop(heap)
            call(job, at)


class FifoReplica:
    """Prefills one request after the other, decodes any number at once.

    Prefills end in the order of arrival, so that the time of a first token is known at arrival.
    """

    __slots__ = ("_busy_until", "_cache", "_events", "_first", "_last", "_model", "running",
                 "unanswered")

    def __init__(
        self,
        model: ReplicaModel,
        block_tokens: int,
        events: Events,
        first: Callable[[Job, float], None],
        last: Callable[[Job, float], None],
    ) -> None:
        self._model, self._events, self._first, self._last = model, events, first, last
        self._cache = BlockCache(model.cache_blocks, block_tokens)
        self._busy_until = 0.0
        self.unanswered = self.running = 0

    def submit(self, job: Job, now: float) -> None:
        """Take a request."""
        model, prompt = self._model, job.request.prompt
        tokens = round(prompt.tokens)
        job.cached_tokens = cached = min(self._cache.take(prompt), max(0, tokens - 1))
        start = max(now, self._busy_until)
        self._busy_until = start + model.fixed_s + (tokens - cached) / model.prefill_tokens_per_s
        self.unanswered += 1
        self._events.at(self._busy_until, self._answer, job)

    def _answer(self, job: Job, now: float) -> None:
        self.unanswered -= 1
        self.running += 1
        job.first_s = now
        self._events.at(now + job.request.output_tokens * self._model.decode_s, self._end, job)
        self._first(job, now)

    def _end(self, job: Job, now: float) -> None:
        self.running -= 1
        self._last(job, now)

    def counts(self) -> tuple[int, int]:
        """Return how many requests are running and how many wait."""
        return self.running, self.unanswered
