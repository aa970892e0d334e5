"""Makes traces: shared system prompts, chats, popular prefixes, agents with a growing context.

Times between arrivals are exponential, and everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from prefixroute.core.checks import check_int, check_number
from prefixroute.simulator.traces import Request, Trace, block_prompt

__all__ = ["agents", "chats", "popular_prefixes", "system_prompts"]

_BLOCK_TOKENS = 512


class _Maker:
    """Gives out new blocks and arrival times, and collects requests."""

    def __init__(self, seed: int, block_tokens: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - a workload
        self.block_tokens = block_tokens
        self._next = 0
        self._requests: list[Request] = []

    def blocks(self, count: int) -> list[int]:
        """Return blocks that nobody has."""
        start, self._next = self._next, self._next + count
        return list(range(start, self._next))

    def arrivals(self, per_s: float, duration_s: float) -> Iterator[float]:
        """Yield times of a Poisson process."""
        at_s = self.rng.expovariate(per_s)
        while at_s <= duration_s:
            yield at_s
            at_s += self.rng.expovariate(per_s)

    def add(self, at_s: float, blocks: list[int], output_tokens: int) -> None:
        """Add a request."""
        prompt = block_prompt(blocks, block_tokens=self.block_tokens)
        self._requests.append(Request(at_s=at_s, prompt=prompt, output_tokens=output_tokens))

    def trace(self, name: str) -> Trace:
        """Return what was added."""
        return Trace.of(name, self._requests, block_tokens=self.block_tokens)


def system_prompts(
    *,
    prompts: int = 150,
    prompt_blocks: int = 12,
    users: int = 5,
    turns: int = 5,
    turn_blocks: int = 2,
    requests_per_s: float = 9.0,
    duration_s: float = 600.0,
    output_tokens: int = 100,
    block_tokens: int = _BLOCK_TOKENS,
    seed: int = 0,
) -> Trace:
    """Return many system prompts, each with a few users who talk at random times.

    A request is the next turn of a random user of a random system prompt; after the last turn the
    user starts a new conversation.

    Args:
        prompts: How many system prompts there are.
        prompt_blocks: Length of a system prompt, blocks.
        users: Of each system prompt.
        turns: Of a conversation.
        turn_blocks: What a turn adds, blocks.
        requests_per_s: Mean rate of requests.
        duration_s: Length of the trace, seconds.
        output_tokens: Length of a reply, tokens.
        block_tokens: Size of a block, tokens.
        seed: Of all that is random.
    """
    check_int("system_prompts", "prompts", prompts, 1)
    maker = _Maker(seed, block_tokens)
    shared = [maker.blocks(prompt_blocks) for _ in range(prompts)]
    talks: dict[tuple[int, int], list[int]] = {}
    whole = prompt_blocks + turns * turn_blocks
    for at_s in maker.arrivals(_rate(requests_per_s), duration_s):
        who = maker.rng.randrange(prompts), maker.rng.randrange(users)
        talk = talks.get(who)
        if talk is None or len(talk) >= whole:
            talk = shared[who[0]]
        talk = talks[who] = talk + maker.blocks(turn_blocks)
        maker.add(at_s, talk, output_tokens)
    return maker.trace("system prompts")


def chats(
    *,
    prompt_blocks: int = 4,
    turns: int = 6,
    turn_blocks: int = 1,
    pause_s: float = 25.0,
    requests_per_s: float = 45.0,
    duration_s: float = 200.0,
    output_tokens: int = 150,
    block_tokens: int = _BLOCK_TOKENS,
    seed: int = 0,
) -> Trace:
    """Return chats under one system prompt.

    Args:
        prompt_blocks: Length of the system prompt, blocks.
        turns: Of a chat.
        turn_blocks: What a turn adds, blocks.
        pause_s: Mean time between turns, seconds.
        requests_per_s: Mean rate of requests once as many chats end as start.
        duration_s: Chats start during this time, seconds.
        output_tokens: Length of a reply, tokens.
        block_tokens: Size of a block, tokens.
        seed: Of all that is random.
    """
    check_int("chats", "turns", turns, 1)
    maker = _Maker(seed, block_tokens)
    shared = maker.blocks(prompt_blocks)
    for start_s in maker.arrivals(_rate(requests_per_s) / turns, duration_s):
        at_s, talk = start_s, shared
        for _ in range(turns):
            talk = talk + maker.blocks(turn_blocks)
            maker.add(at_s, talk, output_tokens)
            at_s += maker.rng.expovariate(1.0 / pause_s)
    return maker.trace("chats")


def popular_prefixes(
    *,
    prefixes: int = 200,
    prefix_blocks: int = 8,
    exponent: float = 1.1,
    own_blocks: int = 1,
    requests_per_s: float = 60.0,
    duration_s: float = 200.0,
    output_tokens: int = 100,
    block_tokens: int = _BLOCK_TOKENS,
    seed: int = 0,
) -> Trace:
    """Return single requests under prefixes whose popularity follows Zipf's law.

    Args:
        prefixes: How many there are.
        prefix_blocks: Length of a prefix, blocks.
        exponent: The k-th prefix is ``k ** -exponent`` as popular as the first.
        own_blocks: What a request has of its own, blocks.
        requests_per_s: Mean rate of requests.
        duration_s: Length of the trace, seconds.
        output_tokens: Length of a reply, tokens.
        block_tokens: Size of a block, tokens.
        seed: Of all that is random.
    """
    check_int("popular_prefixes", "prefixes", prefixes, 1)
    maker = _Maker(seed, block_tokens)
    shared = [maker.blocks(prefix_blocks) for _ in range(prefixes)]
    weights = [rank**-exponent for rank in range(1, prefixes + 1)]
    for at_s in maker.arrivals(_rate(requests_per_s), duration_s):
        prefix = maker.rng.choices(shared, weights)[0]
        maker.add(at_s, prefix + maker.blocks(own_blocks), output_tokens)
    return maker.trace("popular prefixes")


def agents(
    *,
    tasks_per_s: float = 0.2,
    prompt_blocks: int = 16,
    steps: int = 20,
    step_blocks: float = 3.0,
    pause_s: float = 5.0,
    duration_s: float = 600.0,
    output_tokens: int = 200,
    block_tokens: int = _BLOCK_TOKENS,
    seed: int = 0,
) -> Trace:
    """Return agents that work on a task in many steps, each on top of all before it.

    Args:
        tasks_per_s: Mean rate of new tasks.
        prompt_blocks: Length of the instructions and tools that all agents share, blocks.
        steps: Mean number of steps of a task; geometric.
        step_blocks: Mean of what a step adds, such as a file that was read, blocks; geometric.
        pause_s: Mean time between steps, seconds.
        duration_s: Tasks start during this time, seconds.
        output_tokens: Length of a reply, tokens.
        block_tokens: Size of a block, tokens.
        seed: Of all that is random.
    """
    check_int("agents", "steps", steps, 1)
    check_number("agents", "step_blocks", step_blocks, at_least=1.0)
    maker = _Maker(seed, block_tokens)
    shared = maker.blocks(prompt_blocks)
    for start_s in maker.arrivals(_rate(tasks_per_s), duration_s):
        at_s, context, going_on = start_s, shared, True
        while going_on:
            context = context + maker.blocks(_geometric(maker.rng, step_blocks))
            maker.add(at_s, context, output_tokens)
            at_s += maker.rng.expovariate(1.0 / pause_s)
            going_on = maker.rng.random() >= 1.0 / steps
    return maker.trace("agents")


def _rate(per_s: float) -> float:
    return check_number("workload", "rate", per_s, above=True)


def _geometric(rng: Random, mean: float) -> int:
    count = 1
    while rng.random() >= 1.0 / mean:
        count += 1
    return count
