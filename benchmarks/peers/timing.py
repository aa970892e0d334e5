"""What every peer is asked and how each of its calls is timed: the same code in each environment.

Importable wherever there is a Python: the standard library alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from benchmarks.bodies import TURNS, chat

__all__ = ["MODEL", "cpu_us", "pairs", "timed", "timed_async"]

T = TypeVar("T")

MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"

_QUIET_NS: Final = 300_000
_LOOK_S: Final = 0.01
_LOOKS: Final = 200


def pairs(
    first: int, count: int, tokens: int
) -> tuple[list[list[dict[str, str]]], list[list[dict[str, str]]]]:
    """Return chats that nobody has seen before, and the same ones with their next turn.

    Args:
        first: Number of the first chat; no two numbers give the same one.
        count: How many.
        tokens: Of each chat's first 40 messages.
    """
    later = [chat(number, tokens, TURNS + 2) for number in range(first, first + count)]
    return [messages[:-2] for messages in later], later


def cpu_us(run: Callable[[T], object], args: Sequence[T]) -> float:
    """Return the CPU time of this process for one call, all of its threads: microseconds."""
    began = time.process_time_ns()
    for arg in args:
        run(arg)
    return (time.process_time_ns() - began) / len(args) / 1000


def timed(send: Callable[[T], object], requests: Sequence[T]) -> dict[str, Any]:
    """Send one request after the other.

    Returns:
        ``spent_us``: the time until each call returns. ``cpu_us``: CPU time of this process for one
        call, with what it puts off until later.
    """
    spent = []
    began = time.process_time_ns()
    for request in requests:
        at = time.perf_counter_ns()
        send(request)
        spent.append(time.perf_counter_ns() - at)
    for _ in _until_quiet():
        time.sleep(_LOOK_S)
    return _figures(spent, time.process_time_ns() - began)


async def timed_async(
    send: Callable[[T], Awaitable[object]], requests: Sequence[T]
) -> dict[str, Any]:
    """Do as :func:`timed` on an event loop, one request after the other, too."""
    spent = []
    began = time.process_time_ns()
    for request in requests:
        at = time.perf_counter_ns()
        await send(request)
        spent.append(time.perf_counter_ns() - at)
    for _ in _until_quiet():
        await asyncio.sleep(_LOOK_S)
    return _figures(spent, time.process_time_ns() - began)


def _until_quiet() -> Iterator[None]:
    """Yield until this process does hardly anything between two looks, or for two seconds."""
    for _ in range(_LOOKS):
        before = time.process_time_ns()
        yield
        if time.process_time_ns() - before < _QUIET_NS:
            return


def _figures(spent_ns: Sequence[int], cpu_ns: int) -> dict[str, Any]:
    return {
        "spent_us": [spent / 1000 for spent in spent_ns],
        "cpu_us": cpu_ns / len(spent_ns) / 1000,
    }
