"""What is remembered per prompt: ``python -m benchmarks.memory --json``.

A process of its own for each figure places chats of 8k tokens that have nothing in common, and
says by how much the peak of its resident memory grew; what Python holds (``tracemalloc``) is in the
note. The router has placed 200 others before.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Mapping
from typing import Final

from benchmarks.bodies import encoded
from benchmarks.measuring import Row, options, packages, peak_mb, ratio_row, show
from prefixroute import Fixed, Nested, Placement, Router

PROMPTS: Final = 10_000
TOKENS: Final = 8_000
MESSAGES: Final = 40
PLACEMENTS: Final[Mapping[str, Placement]] = {"nested": Nested(), "fixed": Fixed()}


def body(number: int) -> bytes:
    """Return a chat of 8k tokens of which no message is in any other."""
    length = 4 * TOKENS // MESSAGES
    return encoded(
        [
            {
                "role": "assistant" if turn % 2 else "user",
                "content": f"{number} {turn} ".ljust(length),
            }
            for turn in range(MESSAGES)
        ]
    )


def grown_mb(placement: str, first: int, prompts: int, *, traced: bool) -> float:
    """Return by how many MB a router grows by these prompts."""
    router = Router([f"http://gpu-{i}:8000/v1" for i in range(8)], placement=PLACEMENTS[placement])

    def place(start: int, count: int) -> None:
        for number in range(start, start + count):
            router.acquire(body(number)).release()

    place(-200, 200)
    place(0, first)
    if traced:
        tracemalloc.start()
        place(first, prompts)
        return tracemalloc.get_traced_memory()[0] / 1e6
    before = peak_mb()
    place(first, prompts)
    return peak_mb() - before


def in_process(
    placement: str, first: int, *, prompts: int = PROMPTS, traced: bool = False
) -> float:
    """Return :func:`grown_mb` of a new process."""
    code = (
        "from benchmarks.memory import grown_mb; "
        f"print(grown_mb({placement!r}, {first}, {prompts}, traced={traced}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def rows(repeats: int) -> list[Row]:
    """Return what the first prompts cost, and that more of them cost nothing in the end."""
    found = []
    for what, placement, first, goal in (
        (f"Nested(), the first {PROMPTS} prompts of {TOKENS // 1000}k tokens", "nested", 0, 20.0),
        (f"Nested(), {PROMPTS} more after {4 * PROMPTS}", "nested", 4 * PROMPTS, 2.0),
        (f"Fixed(), the first {PROMPTS}", "fixed", 0, 1.0),
    ):
        grown = [in_process(placement, first) for _ in range(repeats)]
        note = "" if first else f"tracemalloc {in_process(placement, 0, traced=True):.1f} MB"
        found.append(ratio_row(what, grown, [1.0] * repeats, unit="MB", goal=goal, note=note))
    return found


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    chosen = options(__doc__, repeats=3)
    show(rows(chosen.repeats), packages("prefixroute", "mmh3", "msgspec"), as_json=chosen.json)


if __name__ == "__main__":
    main()
