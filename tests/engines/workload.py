"""A chat workload that compares placements on real replicas, and what the best one could reach.

Every assistant has a system prompt of its own, and its conversations follow one another; each turn
sends the whole conversation so far with the model's real replies in it. The caller provides the
`send` function, so that any placement, client or SDK can be measured with the same requests.

    with LlamaReplicas(REPLICAS, slots=SLOTS) as replicas:
        result = run_workload(send, FULL)
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.engines.chat import Message, Reply, Send
from tests.engines.texts import system_prompts, user_message


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Which requests to send. Equal specs send the same user texts in the same order.

    Attributes:
        seed: names the set of prompts and the order.
        assistants: system prompts; each has one conversation at a time.
        conversations: of each assistant, one after another.
        turns: of each conversation.
        concurrency: requests in flight at once.
    """

    seed: int = 0
    assistants: int = 12
    conversations: int = 1
    turns: int = 10
    concurrency: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its reply, and where in the workload it belongs (all counted from 0)."""

    assistant: int
    conversation: int
    turn: int
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """What a workload came to: its exchanges, assistant by assistant in order, and the seconds.

    The engine finds multiples of `block_tokens` cached.
    """

    spec: WorkloadSpec
    exchanges: tuple[Exchange, ...]
    wall_s: float
    block_tokens: int = 1

    @property
    def prompt_tokens(self) -> int:
        """The length of all prompts together."""
        return sum(exchange.reply.prompt_tokens for exchange in self.exchanges)

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that came from a cache."""
        cached = sum(exchange.reply.cached_tokens for exchange in self.exchanges)
        return cached / self.prompt_tokens

    @property
    def ceiling(self) -> float:
        """The hit rate that no placement of these requests can exceed; see `ceiling_tokens`."""
        return ceiling_tokens(self.exchanges, self.block_tokens) / self.prompt_tokens

    @property
    def requests_per_endpoint(self) -> Mapping[str, int]:
        """How many requests each endpoint answered."""
        return Counter(exchange.reply.endpoint for exchange in self.exchanges)

    def ttft_s(self, quantile: float) -> float:
        """The time to first token that this part of the requests stayed within (nearest rank)."""
        times = sorted(exchange.reply.ttft_s for exchange in self.exchanges)
        return times[max(0, math.ceil(quantile * len(times)) - 1)]

    def __str__(self) -> str:
        counts = "/".join(str(n) for n in sorted(self.requests_per_endpoint.values()))
        return (
            f"hit rate {self.hit_rate:.1%} of at most {self.ceiling:.1%}, "
            f"TTFT p50 {self.ttft_s(0.5):.2f} s p95 {self.ttft_s(0.95):.2f} s, "
            f"requests {counts}, {self.wall_s:.0f} s"
        )


REPLICAS = 4
SLOTS = 6
"""Of each replica. Enough for every assistant when placement is about even (three on each), and too
few for a replica to remember all twelve, so that it matters where a request goes."""

FULL = WorkloadSpec()
"""For measuring: 120 requests; on two cores a minute at random, a quarter of that well placed."""

QUICK = WorkloadSpec(turns=6)
"""For every test run: the same picture in 72 shorter requests and less than half the time."""


def ceiling_tokens(exchanges: Sequence[Exchange], block_tokens: int = 1) -> int:
    """How many prompt tokens a perfect placement would find cached, counted from the replies.

    Perfect is: every assistant has a slot to itself that nothing else ever replaces, which takes no
    more assistants than there are slots. Then each prompt finds

    - in the first turn of all: what it found in the run. Nobody had sent more than the head of the
      chat template and "You are" before.
    - in the first turn of a later conversation: no more than the assistant's first prompt, whose
      system prompt it shares, and not its own last token, which is always computed.
    - in a later turn: the prompt before it and the reply to that, but for the reply's last token,
      which was sampled and never computed.

    Of that the whole blocks, where the engine keeps no others.

    No longer prefix of a prompt has been computed anywhere, so no placement can do better; and for
    one conversation per assistant a placement that pins each to a slot reaches the figure exactly,
    as long as the engine reads its own reply back as the tokens that it wrote.
    """
    total = 0
    first: dict[int, Reply] = {}
    last: dict[int, Reply] = {}
    for exchange in exchanges:
        reply, before = exchange.reply, last.get(exchange.assistant)
        if before is None:
            first[exchange.assistant] = reply
            total += reply.cached_tokens
        elif exchange.turn == 0:
            found = min(first[exchange.assistant].prompt_tokens, reply.prompt_tokens) - 1
            total += found - found % block_tokens
        else:
            found = before.prompt_tokens + before.completion_tokens - 1
            total += found - found % block_tokens
        last[exchange.assistant] = reply
    return total


def run_workload(send: Send, spec: WorkloadSpec, *, block_tokens: int = 1) -> WorkloadResult:
    """Sends all of a workload's requests and returns what they came to.

    Args:
        send: sends one chat and returns the reply; called from `spec.concurrency` threads, for one
            assistant by one thread at a time.
        spec: which requests.
        block_tokens: the engine finds multiples of this cached.

    Raises:
        Exception: what `send` raised; no further request is sent then.
    """
    rng = random.Random(spec.seed)
    assistants = [
        _Assistant(index, system, spec.turns, random.Random(rng.random()))
        for index, system in enumerate(system_prompts(rng, spec.assistants))
    ]
    order = list(_order(spec, rng))
    began = time.monotonic()
    with ThreadPoolExecutor(spec.concurrency) as pool:
        tasks = [pool.submit(assistants[index].exchange, send) for index in order]
        try:
            exchanges = [task.result() for task in tasks]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    wall_s = time.monotonic() - began
    exchanges.sort(key=lambda exchange: (exchange.assistant, exchange.conversation, exchange.turn))
    return WorkloadResult(
        spec=spec, exchanges=tuple(exchanges), wall_s=wall_s, block_tokens=block_tokens
    )


class _Assistant:
    """One assistant with its system prompt; tells its users' conversations one after another."""

    def __init__(self, index: int, system: str, turns: int, rng: random.Random) -> None:
        self._index = index
        self._system: Message = {"role": "system", "content": system}
        self._turns = turns
        self._rng = rng
        self._sent = 0
        self._messages: list[Message] = []
        self._lock = threading.Lock()

    def exchange(self, send: Send) -> Exchange:
        """Sends the next turn, after the one before it has been answered."""
        with self._lock:
            conversation, turn = divmod(self._sent, self._turns)
            if turn == 0:
                self._messages = [self._system]
            self._messages.append({"role": "user", "content": user_message(self._rng)})
            reply = send(tuple(self._messages))
            self._messages.append({"role": "assistant", "content": reply.text})
            self._sent += 1
            return Exchange(
                assistant=self._index, conversation=conversation, turn=turn, reply=reply
            )


def _order(spec: WorkloadSpec, rng: random.Random) -> Iterator[int]:
    """Whose turn it is: random, but not of one whose last request may still be running.

    An assistant is drawn with its remaining turns as its weight, so that all end at about the same
    time.
    """
    left = [spec.conversations * spec.turns] * spec.assistants
    recent: list[int] = []
    while any(left):
        weights = [0 if index in recent else n for index, n in enumerate(left)]
        (index,) = rng.choices(range(spec.assistants), weights if any(weights) else left)
        left[index] -= 1
        recent = [*recent, index][-(spec.concurrency - 1) :] if spec.concurrency > 1 else []
        yield index
