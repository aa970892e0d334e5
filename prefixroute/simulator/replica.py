"""Simulated replicas: a prefix cache, a queue of prefills, and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol, TypeAlias

from prefixroute.core.checks import check_int, check_number
from prefixroute.simulator.cache import BlockCache, Cache
from prefixroute.simulator.slots import SlotCache
from prefixroute.simulator.traces import Request

if TYPE_CHECKING:
    from prefixroute.simulator.routers import SimulatedRouter

__all__ = ["Events", "FifoReplica", "Job", "Replica", "ReplicaModel", "make_cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """What a replica is like.

    Args:
        cache_blocks: Size of its prefix cache, blocks of the trace's size.
        prefill_tokens_per_s: How fast it computes what is not cached.
        fixed_s: Added to every prefill, seconds.
        decode_s: Time per output token of a request that decodes alone, seconds.
        chunk_tokens: Most prompt tokens computed in one step together with decoding, as engines
            with chunked prefill do; ``None``: each prefill runs alone and decoding is undisturbed.
        decode_slowdown: With ``chunk_tokens``, by how much of ``decode_s`` each further request
            in the batch lengthens a step.
        max_running: With ``chunk_tokens``, the most requests in the batch; others wait.
        slots: If given, the cache holds this many whole prompts with their replies instead of
            blocks, as llama.cpp's server does; see :class:`~prefixroute.simulator.slots.SlotCache`.

    Raises:
        ConfigurationError: A value out of its range.
    """

    cache_blocks: int = 4000
    prefill_tokens_per_s: float = 8000.0
    fixed_s: float = 0.02
    decode_s: float = 0.02
    chunk_tokens: int | None = None
    decode_slowdown: float = 0.02
    max_running: int = 256
    slots: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("ReplicaModel", "cache_blocks", self.cache_blocks, 0)
        check_int("ReplicaModel", "max_running", self.max_running, 1)
        if self.chunk_tokens is not None:
            check_int("ReplicaModel", "chunk_tokens", self.chunk_tokens, 1)
        if self.slots is not None:
            check_int("ReplicaModel", "slots", self.slots, 1)
        check_number("ReplicaModel", "fixed_s", self.fixed_s)
        check_number("ReplicaModel", "decode_s", self.decode_s)
        check_number("ReplicaModel", "decode_slowdown", self.decode_slowdown)
        rate = self.prefill_tokens_per_s
        check_number("ReplicaModel", "prefill_tokens_per_s", rate, above=True)


def make_cache(models: Sequence[ReplicaModel], block_tokens: int) -> Cache:
    """Return an empty cache as large as those of these replicas together."""
    slots = [model.slots for model in models if model.slots is not None]
    if len(slots) == len(models):
        return SlotCache(sum(slots))
    return BlockCache(sum(model.cache_blocks for model in models), block_tokens)


class Job:
    """One request on its way through a replica.

    Attributes:
        request: What was asked.
        router: Who sent it.
        replica: Index of the replica.
        ticket: What the router wants to be shown again.
        sent_s: When it was sent.
        tokens: Length of its prompt.
        cached_tokens: How many of them the replica held.
        work_s: Prefill that it costs, seconds.
    """

    __slots__ = (
        "cached_tokens", "replica", "request", "router", "sent_s", "ticket", "tokens", "work_s",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        router: SimulatedRouter,
        replica: int,
        ticket: object,
        sent_s: float,
    ) -> None:
        self.request, self.router, self.replica = request, router, replica
        self.ticket, self.sent_s = ticket, sent_s
        self.tokens = request.tokens
        self.cached_tokens, self.work_s = 0, 0.0


Notice: TypeAlias = Callable[[Job, float], None]
"""Called with a job and the time."""


class Events:
    """What will happen, in the order of time; at one time, in the order in which it was added."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Notice, Job]] = []
        self._serial = 0

    def at(self, when_s: float, call: Notice, job: Job) -> None:
        """Call ``call(job, when_s)`` at that time."""
        self._serial += 1
        heappush(self._heap, (when_s, self._serial, call, job))

    def run_until(self, when_s: float) -> None:
        """Let everything happen that happens up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= when_s:
            at, _, call, job = heappop(heap)
            call(job, at)


class Replica(Protocol):
    """An engine that takes jobs and tells of their first and last tokens."""

    def submit(self, job: Job, now: float) -> None:
        """Take a request."""
        ...

    def counts(self) -> tuple[int, int]:
        """Return how many requests are running, and how many wait for their first token."""
        ...

    def clear(self) -> None:
        """Empty the cache."""
        ...


class FifoReplica:
    """Prefills one request after the other and decodes any number at once.

    Prefills end in the order of arrival, so that the time of a first token is known at arrival.

    Args:
        model: What it is like.
        block_tokens: Size of the cache's blocks, tokens.
        events: Where what will happen is put.
        first: Told of first tokens.
        last: Told of last tokens.
    """

    __slots__ = (
        "_busy_until", "_cache", "_events", "_first", "_last", "_model", "_running", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        model: ReplicaModel,
        *,
        block_tokens: int,
        events: Events,
        first: Notice,
        last: Notice,
    ) -> None:
        self._model, self._events, self._first, self._last = model, events, first, last
        self._cache = make_cache([model], block_tokens)
        self._busy_until = 0.0
        self._waiting = self._running = 0

    def submit(self, job: Job, now: float) -> None:
        """Take a request: its blocks are looked up, and held from now on."""
        model, request = self._model, job.request
        job.cached_tokens = self._cache.take(request.content, job.tokens, request.output_tokens)
        job.work_s = model.fixed_s + (job.tokens - job.cached_tokens) / model.prefill_tokens_per_s
        self._busy_until = max(now, self._busy_until) + job.work_s
        self._waiting += 1
        self._events.at(self._busy_until, self._answer, job)

    def _answer(self, job: Job, now: float) -> None:
        self._waiting -= 1
        self._running += 1
        self._events.at(now + job.request.output_tokens * self._model.decode_s, self._end, job)
        self._first(job, now)

    def _end(self, job: Job, now: float) -> None:
        self._running -= 1
        self._last(job, now)

    def counts(self) -> tuple[int, int]:
        """Return how many requests are running, and how many wait for their first token."""
        return self._running, self._waiting

    def clear(self) -> None:
        """Empty the cache."""
        self._cache.clear()
