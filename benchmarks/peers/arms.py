"""What is measured beside what: arms that take turns, a few chats at a time, on the same chats."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from benchmarks.peers.gateways import Running
from benchmarks.peers.lines import PeerError, Worker

__all__ = ["Arm", "Batch", "Name", "gateway_arm", "interleaved", "worker_arm"]

Name: TypeAlias = tuple[str, str, str]
"""Section, how, through what."""

Batch: TypeAlias = Mapping[str, float]
"""What came of an arm: figures by their names."""

Arm: TypeAlias = Callable[[int], Mapping[str, Any]]
"""Measures a few chats, given the number of the first: figures, and ``spent_us`` of each call."""

_WARM_UP: Final = 10**6
"""Number of the first chat that warms up: no repeat comes to it."""


def interleaved(
    arms: Mapping[Name, Arm], *, repeats: int, rounds: int, count: int, left_out: dict[str, str]
) -> dict[Name, list[Batch]]:
    """Return what came of each arm; all warm up before.

    A repeat has several rounds, in which every arm has its turn, there and back, so that whatever
    else the machine does meets all of them alike.

    Args:
        arms: What is measured.
        repeats: For each of them there is one figure.
        rounds: Of each repeat.
        count: Chats of a round: the same ones for all arms, others in every round.
        left_out: Is told of an arm that failed; what it did before is forgotten, so that every
            figure has all its repeats.
    """
    going, found = dict(arms), {name: list[Batch]() for name in arms}
    for repeat in range(-1, repeats):
        parts: dict[Name, list[Mapping[str, Any]]] = {name: [] for name in going}
        for turn in range(rounds if repeat >= 0 else 1):
            number = repeat * rounds + turn if repeat >= 0 else _WARM_UP
            for name in list(going) if turn % 2 == 0 else list(going)[::-1]:
                try:
                    parts[name].append(going[name](number * count))
                except PeerError as error:
                    left_out[", ".join(filter(None, name))] = (
                        f"it failed while it was measured: {error}"
                    )
                    del going[name], found[name]
        if repeat >= 0:
            for name in going:
                found[name].append(_joined(parts[name]))
        print(f"  repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    return found


def _joined(parts: Sequence[Mapping[str, Any]]) -> Batch:
    """Return the figures of a repeat: means, and the median of its calls, ``p50_us``."""
    spent = [one for part in parts for one in part.get("spent_us", ())]
    names = [name for name in parts[0] if name != "spent_us"]
    means = {name: statistics.fmean(part[name] for part in parts) for name in names}
    return {**means, "p50_us": statistics.median(spent)} if spent else means


def worker_arm(worker: Worker, op: str, **arguments: Any) -> Arm:
    """Return an arm that a worker measures by itself."""

    def measure(first: int) -> Mapping[str, Any]:
        said: Mapping[str, Any] = worker.ask(op, first=first, **arguments)
        return said

    return measure


def gateway_arm(arm: Arm, gateway: Running, calls: int) -> Arm:
    """Return the arm with what the gateway spends on each of its calls, ``gateway_us``."""

    def measure(first: int) -> Mapping[str, Any]:
        before = gateway.cpu_ns()
        said = arm(first)
        return {**said, "gateway_us": (gateway.cpu_ns() - before) / calls / 1000}

    return measure
