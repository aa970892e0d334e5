"""A simulated engine: a prefix cache, a prefill queue and decoding, without any I/O."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from dataclasses import dataclass

from prefixroute.testing.cache import BlockCache, extend_chain
from prefixroute.testing.model import EngineModel

__all__ = ["Admission", "Engine", "EngineStats", "RenderedPrompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt as the engine sees it after its chat template.

    Attributes:
        text: The bytes that are cut into tokens and blocks.
        salt: What else tells cached prefixes apart: model, adapter, `cache_salt`.
    """

    text: bytes
    salt: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """When an admitted request gets its tokens, in simulated seconds.

    Attributes:
        serial: Tells the engine's admissions apart.
        start_at_s: Its prefill starts.
        first_token_at_s: Its prefill is over, its first token is out.
        done_at_s: Its last token is out.
        prompt_tokens: Length of the prompt.
        cached_tokens: How many of them came from the prefix cache.
        completion_tokens: Length of the answer (of all choices together).
        decode_s_per_token: Time from one output token to the next.
    """

    serial: int
    start_at_s: float
    first_token_at_s: float
    done_at_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    decode_s_per_token: float

    def token_at_s(self, count: int) -> float:
        """When the first `count` tokens of a choice are out."""
        return self.first_token_at_s + max(0, count - 1) * self.decode_s_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine's load, and what it has done since it was made or cleared.

    Attributes:
        running: Requests in prefill or decoding.
        waiting: Requests whose prefill has not begun.
        kv_usage: Share of the cache's blocks that running requests need, 0 to 1.
        cached_blocks: Blocks in the prefix cache.
        requests: Requests admitted so far.
        finished: Requests that ran to their end.
        cancelled: Requests whose caller went away.
        prompt_tokens: Prompt tokens of all that was admitted.
        cached_tokens: How many of them came from the prefix cache.
        completion_tokens: Output tokens of all that finished or was cancelled.
    """

    running: int
    waiting: int
    kv_usage: float
    cached_blocks: int
    requests: int
    finished: int
    cancelled: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the prefix cache; 0.0 before any."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True, kw_only=True)
class _Running:
    admission: Admission
    chain: list[bytes]
    new_blocks: list[bytes]
    output_chain: list[bytes]


class Engine:
    """One simulated engine. It is told the time and never waits; safe to use from threads.

    Prefill is a queue, first come first served, one prompt at a time; decoding runs beside it at
    a constant speed. So all that will happen to a request is known when it is admitted. Prompt
    blocks enter the cache then: whoever comes later is served later. Those of the answer follow
    when it is done. A cancelled request gives back the prefill that it has not used to those that
    come later; those already queued keep their times.
    """

    def __init__(self, model: EngineModel) -> None:
        """Make an idle engine with an empty cache."""
        self.model = model
        self._lock = threading.Lock()
        # A finalizer may cancel while this very thread holds the lock, so cancelling only appends.
        self._cancelled: deque[tuple[int, float]] = deque()
        self._cache = BlockCache(model.cache_blocks)
        self._serial = 0
        self._clear()

    def chain(self, prompt: RenderedPrompt) -> list[bytes]:
        """Hash the whole blocks of a prompt."""
        return extend_chain(prompt.salt, prompt.text, self.model.block_bytes)

    def cached_tokens(self, prompt: RenderedPrompt) -> int:
        """How many tokens of a prompt would come from the cache now; changes nothing."""
        chain = self.chain(prompt)
        with self._lock:
            return self._hit_blocks(prompt, chain) * self.model.block_tokens

    def admit(
        self, prompt: RenderedPrompt, *, output: bytes = b"", choices: int = 1, now_s: float
    ) -> Admission:
        """Queue a request and say when it will be served.

        Args:
            prompt: What is to be prefilled.
            output: The bytes of one answer, as they would be rendered in the next turn.
            choices: How many such answers are decoded, side by side.
            now_s: The simulated time.

        Returns:
            Its schedule. Give it to `cancel` if the caller goes away before `done_at_s`.
        """
        model = self.model
        chain = self.chain(prompt)
        tail = prompt.text[len(chain) * model.block_bytes :]
        output_chain = extend_chain(
            chain[-1] if chain else prompt.salt, tail + output, model.block_bytes
        )
        with self._lock:
            self._settle(now_s)
            hit_blocks = self._hit_blocks(prompt, chain)
            admission = self._schedule(
                prompt_tokens=model.tokens_of(prompt.text),
                cached_tokens=hit_blocks * model.block_tokens,
                output_tokens=model.tokens_of(output),
                choices=choices,
                now_s=now_s,
            )
            self._cache.touch(chain, admission.serial)
            self._active[admission.serial] = _Running(
                admission=admission,
                chain=chain,
                new_blocks=chain[hit_blocks:],
                output_chain=output_chain,
            )
            heapq.heappush(self._ends, (admission.done_at_s, admission.serial))
        return admission

    def cancel(self, admission: Admission, now_s: float) -> None:
        """The caller has gone away. Nothing happens if the request is done or was cancelled."""
        self._cancelled.append((admission.serial, now_s))
        if self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Forget the cache, the queue, all requests and counts."""
        with self._lock:
            self._clear()

    def stats(self, now_s: float) -> EngineStats:
        """Say what is going on at a simulated time."""
        with self._lock:
            self._settle(now_s)
            active = [running.admission for running in self._active.values()]
            started = [admission for admission in active if admission.start_at_s <= now_s]
            return EngineStats(
                running=len(started),
                waiting=len(active) - len(started),
                kv_usage=self._kv_usage(started),
                cached_blocks=len(self._cache),
                requests=self._requests,
                finished=self._finished,
                cancelled=self._cancellations,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                completion_tokens=self._completion_tokens,
            )

    def _clear(self) -> None:
        self._cancelled.clear()
        self._cache.clear()
        self._active: dict[int, _Running] = {}
        self._ends: list[tuple[float, int]] = []
        self._busy_until_s = 0.0
        self._requests = self._finished = self._cancellations = 0
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0

    def _hit_blocks(self, prompt: RenderedPrompt, chain: list[bytes]) -> int:
        # The logits of the last token are needed, so its block is never taken from the cache.
        usable = (self.model.tokens_of(prompt.text) - 1) // self.model.block_tokens
        return min(self._cache.match(chain), max(0, usable))

    def _schedule(
        self,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        choices: int,
        now_s: float,
    ) -> Admission:
        model = self.model
        start_at_s = self._slot_at(max(now_s, self._busy_until_s))
        prefill_s = (prompt_tokens - cached_tokens) / model.prefill_tokens_per_s
        first_token_at_s = start_at_s + model.request_overhead_s + prefill_s
        self._busy_until_s = first_token_at_s
        self._serial += 1
        self._requests += 1
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += cached_tokens
        return Admission(
            serial=self._serial,
            start_at_s=start_at_s,
            first_token_at_s=first_token_at_s,
            done_at_s=first_token_at_s + max(0, output_tokens - 1) * model.decode_s_per_token,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=output_tokens * choices,
            decode_s_per_token=model.decode_s_per_token,
        )

    def _slot_at(self, at_s: float) -> float:
        """The first moment, not before `at_s`, at which fewer than `max_running` are running."""
        if len(self._active) < self.model.max_running:
            return at_s
        ends = (running.admission.done_at_s for running in self._active.values())
        later = sorted(end for end in ends if end > at_s)
        surplus = len(later) - self.model.max_running
        return at_s if surplus < 0 else later[surplus]

    def _settle(self, now_s: float) -> None:
        """Take note of what was cancelled or has finished up to now."""
        self._drain()
        while self._ends and self._ends[0][0] <= now_s:
            self._finish(heapq.heappop(self._ends)[1])

    def _finish(self, serial: int) -> None:
        running = self._active.pop(serial, None)
        if running is None:
            return
        self._finished += 1
        self._completion_tokens += running.admission.completion_tokens
        if running.output_chain:
            self._cache.touch(running.chain + running.output_chain, serial)

    def _drain(self) -> None:
        while self._cancelled:
            serial, now_s = self._cancelled.popleft()
            running = self._active.get(serial)
            if running is None:
                continue
            if running.admission.done_at_s <= now_s:
                self._finish(serial)
                continue
            del self._active[serial]
            self._cancellations += 1
            self._give_back(running, now_s)

    def _give_back(self, running: _Running, now_s: float) -> None:
        """Free what a cancelled request has not used: prefill time, and blocks not computed."""
        admission = running.admission
        left_s = admission.first_token_at_s - max(now_s, admission.start_at_s)
        if left_s <= 0:
            decode_s = admission.done_at_s - admission.first_token_at_s
            share = (now_s - admission.first_token_at_s) / decode_s
            self._completion_tokens += 1 + round(share * (admission.completion_tokens - 1))
            return
        self._busy_until_s = max(now_s, self._busy_until_s - left_s)
        computed = 1 - left_s / (admission.first_token_at_s - admission.start_at_s)
        kept = int(computed * len(running.new_blocks))
        self._cache.discard(running.new_blocks[kept:], admission.serial)

    def _kv_usage(self, started: list[Admission]) -> float:
        model = self.model
        if not started or not model.cache_blocks:
            return 0.0
        tokens = (admission.prompt_tokens + admission.completion_tokens for admission in started)
        blocks = sum(-(-count // model.block_tokens) for count in tokens)
        return min(1.0, blocks / model.cache_blocks)
