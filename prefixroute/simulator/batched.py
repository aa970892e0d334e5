"""A simulated replica closer to the engines: chunked prefill and batched decoding, in steps."""

from __future__ import annotations

from collections import deque

from prefixroute.simulator.replica import (
    Events,
    FifoReplica,
    Job,
    Notice,
    Replica,
    ReplicaModel,
    make_cache,
)

__all__ = ["BatchedReplica", "make_replica"]


class _Entry:
    """A job in the engine: what is left to compute and to say."""

    __slots__ = ("job", "prefill", "replies")

    def __init__(self, job: Job, prefill: float) -> None:
        self.job, self.prefill, self.replies = job, prefill, job.request.output_tokens


class BatchedReplica:
    """Works in steps; each decodes one token of every running request and prefills a chunk.

    A step takes ``decode_s`` for one request that decodes, ``decode_slowdown`` of it more for every
    further one, and the time of the prompt tokens in it. Prompt tokens are taken in the order of
    arrival, from several requests if they fit; the last chunk of a prompt yields its first token.

    Args:
        model: What it is like; ``chunk_tokens`` is set.
        block_tokens: Size of the cache's blocks, tokens.
        events: Where what will happen is put.
        first: Told of first tokens.
        last: Told of last tokens.
    """

    __slots__ = (
        "_cache", "_decoding", "_events", "_first", "_last", "_model", "_prefilling", "_queue",
        "_stepping",
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
        self._queue: deque[_Entry] = deque()
        self._prefilling: list[_Entry] = []  # those whose first token ends this step
        self._decoding: list[_Entry] = []
        self._stepping = False

    def submit(self, job: Job, now: float) -> None:
        """Take a request: its blocks are looked up, and held from now on."""
        model, request = self._model, job.request
        job.cached_tokens = self._cache.take(request.content, job.tokens, request.output_tokens)
        uncached = job.tokens - job.cached_tokens
        job.work_s = model.fixed_s + uncached / model.prefill_tokens_per_s
        self._queue.append(_Entry(job, float(uncached)))
        if not self._stepping:
            self._step(job, now)

    def _step(self, job: Job, now: float) -> None:
        """Start the next step; ``job`` only carries the event."""
        model = self._model
        budget, seconds = float(model.chunk_tokens or 0), 0.0
        room = model.max_running - len(self._decoding)
        self._prefilling = []
        while self._queue and budget > 0.0 and room > len(self._prefilling):
            head = self._queue[0]
            if head.prefill >= head.job.tokens - head.job.cached_tokens:
                seconds += model.fixed_s  # its first chunk
            chunk = min(budget, head.prefill)
            head.prefill -= chunk
            budget -= chunk
            seconds += chunk / model.prefill_tokens_per_s
            if head.prefill > 0.0:
                break
            self._prefilling.append(self._queue.popleft())
        if self._decoding:
            seconds += model.decode_s * (1.0 + model.decode_slowdown * (len(self._decoding) - 1))
        self._stepping = bool(self._decoding or self._prefilling or seconds > 0.0)
        if self._stepping:
            self._events.at(now + seconds, self._finish_step, job)

    def _finish_step(self, job: Job, now: float) -> None:
        going_on = []
        for entry in self._decoding:
            entry.replies -= 1
            if entry.replies > 0:
                going_on.append(entry)
        ended = [entry for entry in self._decoding if entry.replies <= 0]
        begun, self._prefilling = self._prefilling, []
        self._decoding = going_on + [entry for entry in begun if entry.replies > 0]
        for entry in ended:
            self._last(entry.job, now)
        for entry in begun:
            self._first(entry.job, now)
            if entry.replies <= 0:
                self._last(entry.job, now)
        self._step(job, now)

    def counts(self) -> tuple[int, int]:
        """Return how many requests are running, and how many wait for their first token."""
        return len(self._decoding), len(self._queue) + len(self._prefilling)

    def clear(self) -> None:
        """Empty the cache."""
        self._cache.clear()


def make_replica(
    model: ReplicaModel, *, block_tokens: int, events: Events, first: Notice, last: Notice
) -> Replica:
    """Return the replica that a model describes."""
    kind = FifoReplica if model.chunk_tokens is None else BatchedReplica
    return kind(model, block_tokens=block_tokens, events=events, first=first, last=last)
