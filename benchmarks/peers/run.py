"""A run of ``benchmarks.peers``: how much is measured, what was found, and what was left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.arms import Arm, Batch, Name, interleaved
from benchmarks.peers.environments import SetupError
from benchmarks.peers.lines import PeerError, Worker
from benchmarks.peers.servers import Servers

__all__ = ["Run", "Size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        repeats: Of everything, in turn.
        rounds: Of a repeat.
        chats: Of a round; each is two calls, or two decisions.
        prompts: That memory is measured with.
    """

    repeats: int
    rounds: int
    chats: int
    prompts: int


@dataclass(slots=True, kw_only=True)
class Run:
    """A run: its folder, the servers, what was found and what was left out."""

    folder: Path
    up: Servers
    size: Size
    found: dict[Name, list[Batch]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def leaving_out(self, name: str) -> Iterator[None]:
        """Leave out what the block can't set up, and say why."""
        try:
            yield
        except (PeerError, SetupError) as error:
            self.left_out[name] = " ".join(str(error).split())  # a cell of a table

    def measure(self, what: str, arms: Mapping[Name, Arm]) -> None:
        """Measure arms beside each other."""
        print(f"{what}: {len(arms)} side by side", file=sys.stderr, flush=True)
        size = self.size
        self.found |= interleaved(
            arms,
            repeats=size.repeats,
            rounds=size.rounds,
            count=size.chats,
            left_out=self.left_out,
        )

    def worker(
        self, name: str, python: Path | str, variables: Mapping[str, str] | None = None
    ) -> Worker:
        """Return a worker that logs to this run's folder."""
        return Worker(python, f"benchmarks.peers.{name}", self.folder / f"{name}.log", variables)
