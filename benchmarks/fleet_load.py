"""One router in front of the engines, as a process of ``benchmarks.fleet``.

Every process knows the whole schedule: the same chats, their texts made of their numbers. The turns
of a chat come through whichever process the schedule says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from inspect import signature
from multiprocessing.connection import Connection
from typing import Any, Final

import httpx

from prefixroute import Router
from prefixroute.signals import EngineMetrics, RedisFleet

__all__ = ["Load", "Order", "Result", "Turn", "headers_available", "schedule", "serve_client"]

ASSISTANTS: Final = 16
SYSTEM_BYTES: Final = 4000
USER_BYTES: Final = 1400
REPLY_BYTES: Final = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent.

    Attributes:
        rate: Requests a second, over all processes.
        seconds: For how long.
        warm_up_s: From which on requests are counted, seconds.
        turns: Of each chat.
        think_s: Mean time between two turns of a chat.
        processes: Each has a router.
        poll_every_s: Interval of those that poll.
        redis_every_s: Interval of those that use Redis.
        seed: Of the schedule.
    """

    rate: float
    seconds: float
    warm_up_s: float
    turns: int = 6
    think_s: float = 8.0
    processes: int = 32
    poll_every_s: float = 2.0
    redis_every_s: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request: when it is sent, by which process, and of which chat it is the next turn."""

    at: float
    process: int
    chat: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a process is told to do.

    Attributes:
        urls: Of the engines.
        turns: Its own part of the schedule.
        began: By the machine's monotonic clock.
        polls: It reads the engines' metrics.
        headers: It asks for load headers.
        redis_url: It shares what it has; ``None``: it does not.
        load: As above.
    """

    urls: Sequence[str]
    turns: Sequence[Turn]
    began: float
    polls: bool
    headers: bool
    redis_url: str | None
    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one request.

    Attributes:
        at: When it was due.
        late_s: How much later it was sent: more than a little means that the machine is too busy.
        ttft_s: Time to the first byte of the stream; ``None``: it failed.
        prompt_tokens: As the engine reported.
        cached_tokens: As the engine reported.
    """

    at: float
    late_s: float
    ttft_s: float | None
    prompt_tokens: int
    cached_tokens: int


def headers_available() -> bool:
    """Return whether a router can read load from the headers of replies."""
    return "ask_load" in signature(Router.__init__).parameters


def schedule(load: Load) -> list[Turn]:
    """Return all requests in order: chats begin at random, their turns come through anybody."""
    rng, turns, begins, chat = random.Random(load.seed), list[Turn](), 0.0, 0
    while (begins := begins + rng.expovariate(load.rate / load.turns)) < load.seconds:
        at = begins
        for number in range(load.turns):
            if at < load.seconds:
                process = rng.randrange(load.processes)
                turns.append(Turn(at=at, process=process, chat=chat, number=number))
            at += rng.expovariate(1.0 / load.think_s)
        chat += 1
    return sorted(turns, key=lambda turn: turn.at)


def _text(name: str, length: int) -> str:
    rng = random.Random(name)
    return f"{name}: " + "".join(rng.choices("abcdefghij klmnop qrstu vwxyz ", k=length))


def body(turn: Turn) -> dict[str, Any]:
    """Return the request of a turn, with the whole chat so far."""
    # The first assistants have more of the chats than the last ones: a third of them the first.
    assistant = int(ASSISTANTS * random.Random(turn.chat).random() ** 2.5)
    system = _text(f"assistant {assistant}", SYSTEM_BYTES)
    messages = [{"role": "system", "content": system}]
    for number in range(turn.number + 1):
        user = _text(f"chat {turn.chat} question {number}", USER_BYTES)
        messages.append({"role": "user", "content": user})
        if number < turn.number:
            answer = _text(f"chat {turn.chat} answer {number}", REPLY_BYTES)
            messages.append({"role": "assistant", "content": answer})
    return {
        "model": "simulated-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": messages,
    }


async def _send(client: httpx.AsyncClient, turn: Turn, began: float) -> Result:
    content = json.dumps(body(turn)).encode()
    sent = time.monotonic()
    late_s = sent - began - turn.at
    first: float | None = None
    prompt = cached = 0
    try:
        async with client.stream("POST", "/chat/completions", content=content) as reply:
            async for line in reply.aiter_lines():
                if first is None:
                    first = time.monotonic() - sent
                if '"usage"' in line and '"prompt_tokens"' in line:
                    usage = json.loads(line.removeprefix("data: "))["usage"]
                    prompt = usage["prompt_tokens"]
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
    except httpx.HTTPError:
        first = None
    return Result(
        at=turn.at, late_s=late_s, ttft_s=first, prompt_tokens=prompt, cached_tokens=cached
    )


async def _drive(order: Order) -> tuple[list[Result], dict[str, float]]:
    options: dict[str, Any] = {"ask_load": True} if order.headers else {}
    router, fleet = Router(order.urls, **options), None
    async with AsyncExitStack() as stack:
        if order.polls:
            polling = EngineMetrics(router, every_s=order.load.poll_every_s)
            await stack.enter_async_context(polling)
        if order.redis_url is not None:
            fleet = RedisFleet(router, order.redis_url, every_s=order.load.redis_every_s)
            await stack.enter_async_context(fleet)
        client = await stack.enter_async_context(router.async_client())
        tasks = []
        for turn in order.turns:
            await asyncio.sleep(max(0.0, order.began + turn.at - time.monotonic()))
            tasks.append(asyncio.create_task(_send(client, turn, order.began)))
        results = list(await asyncio.gather(*tasks))
        stats = fleet.stats() if fleet is not None else None
    await router.aclose()
    told = (
        {"commands_per_s": stats.commands_per_s, "bytes_per_s": stats.bytes_per_s} if stats else {}
    )
    return results, told


def serve_client(control: Connection) -> None:
    """Do what the other side says, order by order, until it says ``None``."""
    control.send("ready")
    while (order := control.recv()) is not None:
        before = os.times()
        results, told = asyncio.run(_drive(order))
        after = os.times()
        cpu_s = after.user + after.system - before.user - before.system
        control.send((results, told, cpu_s))
