"""The demo's workload: chats with assistants that have long system prompts, over the OpenAI SDK."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from openai import OpenAI

__all__ = ["Outcome", "Workload", "run_workload"]

_TEXT: Final = (
    "account answer brief careful check claim clear concise customer detail document draft email "
    "exact explain format friendly guide help history index invoice issue item language limit list "
    "manual market meeting member note order output page plan policy price process product project "
    "quote reason record refund region report request review rule sales schedule schema section "
    "service shipping source step style summary support table task team ticket tone topic user "
    "value version warranty"
)
_WORDS: Final = tuple(_TEXT.split())
_TOKENS_PER_WORD: Final = 1.7  # of these words, at 4 bytes a token
_THREADS: Final = 48
_THINK_S: Final = (0.5, 1.5)
"""Shortest and longest time that a user thinks before the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent. The same values send the same texts at the same times.

    Args:
        assistants: Applications, each with a system prompt of its own.
        system_tokens: About how long a system prompt is, tokens.
        chats: Chats that users start with each assistant.
        turns: Turns of each chat; each sends the chat so far.
        chats_per_s: Chats that start in a second; arrivals are random (Poisson).
        answer_tokens: The longest answer, tokens.
        seed: Of texts, order and times.
    """

    assistants: int = 25
    system_tokens: int = 2000
    chats: int = 4
    turns: int = 3
    chats_per_s: float = 5.5
    answer_tokens: int = 16
    seed: int = 0

    @property
    def requests(self) -> int:
        """How many requests that makes."""
        return self.assistants * self.chats * self.turns


@dataclass(slots=True)
class Outcome:
    """What a run of the workload has come to so far; filled from many threads."""

    ttft_s: list[float] = field(default_factory=list)
    per_endpoint: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    unreported: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return len(self.ttft_s)

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that replies reported as cached; ``None``: none reported."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def quantile_s(self, q: float) -> float:
        """Return the time to first token that a share ``q`` of requests stayed within, seconds."""
        ordered = sorted(self.ttft_s)
        return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan

    def add(self, ttft_s: float, endpoint: str, usage: Any) -> None:
        """Count one answer. ``usage`` is the SDK's, or ``None``."""
        details = getattr(usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None)
        with self._lock:
            self.ttft_s.append(ttft_s)
            self.per_endpoint[endpoint] += 1
            if cached is None:
                self.unreported += 1
            else:
                self.prompt_tokens += usage.prompt_tokens
                self.cached_tokens += cached

    def fail(self, error: Exception) -> None:
        """Count one request that was not answered."""
        with self._lock:
            self.errors.append(f"{type(error).__name__}: {error}")


def run_workload(
    client: OpenAI,
    model: str,
    workload: Workload,
    *,
    phase: str,
    endpoint_of: Callable[[Any], str],
    progress: Callable[[Outcome], object],
) -> Outcome:
    """Send the workload and return what it came to.

    Args:
        client: The OpenAI SDK's client.
        model: The model to ask for.
        workload: What to send.
        phase: Begins every system prompt, so that one phase cannot profit from another's cache.
        endpoint_of: Returns where an HTTP response came from.
        progress: Called after each answer.
    """
    random = Random(workload.seed)  # noqa: S311 - a workload that can be repeated
    systems = list(_systems(workload, phase, random))
    starts = sorted(_arrivals(workload, random))
    chats = [index % workload.assistants for index in range(len(starts))]
    random.shuffle(chats)
    outcome = Outcome()
    began = time.perf_counter()

    def chat(number: int) -> None:
        own = Random(f"{workload.seed}/{number}")  # noqa: S311 - as above
        time.sleep(max(0.0, starts[number] - (time.perf_counter() - began)))
        messages = [{"role": "system", "content": systems[chats[number]]}]
        for _ in range(workload.turns):
            messages.append({"role": "user", "content": f"{_text(own, 30)}?"})
            try:
                answer = _ask(client, model, messages, workload, endpoint_of, outcome)
            except Exception as error:  # noqa: BLE001 - counted, and shown in the end
                outcome.fail(error)
                return
            progress(outcome)
            messages.append({"role": "assistant", "content": answer})
            time.sleep(own.uniform(*_THINK_S))

    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        list(pool.map(chat, range(len(starts))))
    outcome.seconds = time.perf_counter() - began
    return outcome


def _ask(
    client: OpenAI,
    model: str,
    messages: list[dict[str, str]],
    workload: Workload,
    endpoint_of: Callable[[Any], str],
    outcome: Outcome,
) -> str:
    """Stream one answer; its first piece of text ends the time to first token."""
    sent = time.perf_counter()
    first: float | None = None
    usage = None
    pieces = []
    create: Any = client.chat.completions.create  # plain dicts are what the API takes
    stream = create(
        model=model,
        messages=messages,
        max_tokens=workload.answer_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    with stream:
        for chunk in stream:
            usage = chunk.usage or usage
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first = first if first is not None else time.perf_counter() - sent
                pieces.append(text)
        endpoint = endpoint_of(stream.response)
    outcome.add(first if first is not None else time.perf_counter() - sent, endpoint, usage)
    return "".join(pieces)


def _systems(workload: Workload, phase: str, random: Random) -> Iterator[str]:
    for number in range(workload.assistants):
        words = round(workload.system_tokens / _TOKENS_PER_WORD)
        yield f"You are assistant {number} of the {phase} run. {_text(random, words)}."


def _arrivals(workload: Workload, random: Random) -> Iterator[float]:
    at = 0.0
    for _ in range(workload.assistants * workload.chats):
        yield at
        at += random.expovariate(workload.chats_per_s)


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))
