"""What compiling the core would give: ``python -m benchmarks.compiled --json``.

mypyc translates the modules of a decision to C, in a copy of the package and an environment of its
own; chats that neither has seen are then read and placed by both in turn. Nothing is published
compiled: this tells what it would be worth. Needs a C compiler.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.bodies import chat, encoded
from benchmarks.decision import decide, make
from benchmarks.measuring import Row, by_turns, cpu_us, options, packages, ratio_row, show
from tests.sdk.environments import ROOT, environment
from tests.sdk.matrix import AS_OF

CHAIN: Final = ("content", "hashing")
"""Modules that make the chain of a prompt."""

DECISION: Final = (
    *CHAIN, "bounded", "busy", "crowding", "decision", "fixed", "homes", "lease", "ledger",
    "load", "nested", "placement", "placer", "prefix_map", "prompt", "queues", "ring", "traffic",
    "waits",
)  # fmt: skip
"""These, and those that place it."""

SIZES: Final = (8_000, 128_000)
_REQUIRED: Final = ("mypy[mypyc]", "setuptools", "types-PyYAML", "openai")

_SETUP: Final = """
from setuptools import setup
from mypyc.build import mypycify

given = ["--ignore-missing-imports", *{files!r}]
setup(name="compiled", packages=[], ext_modules=mypycify(given, opt_level="3"))
"""


def built(modules: Sequence[str], python: Path, folder: Path) -> Path:
    """Return a folder with the package, of which these modules of the core are compiled."""
    for name in ("prefixroute", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if modules:
        files = [f"prefixroute/core/{name}.py" for name in modules]
        (folder / "setup.py").write_text(_SETUP.format(files=files), encoding="utf-8")
        command = [str(python), "setup.py", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"mypyc failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder


@contextmanager
def started(python: Path, folder: Path) -> Iterator[Callable[[int], float]]:
    """Give what returns the CPU time of decisions about new chats of so many tokens."""
    process = subprocess.Popen(
        [str(python), "-m", "benchmarks.compiled", "--work"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        asked, told = process.stdin, process.stdout
        if asked is None or told is None:
            raise RuntimeError("the worker has no pipes")

        def decision_us(tokens: int) -> float:
            print(tokens, file=asked, flush=True)
            return float(told.readline())

        yield decision_us


def work() -> None:
    """Answer each number of tokens on standard input with the microseconds of a decision."""
    run, number = decide(make()), count()
    for line in sys.stdin:
        tokens = int(line)
        bodies = [encoded(chat(next(number), tokens)) for _ in range(max(8, 320_000 // tokens))]
        print(cpu_us(run, bodies), flush=True)


def rows(workers: Mapping[str, Callable[[int], float]], repeats: int) -> Iterator[Row]:
    """Yield the time of a decision, compiled against not."""
    for tokens in SIZES:
        by_turns({name: partial(worker, tokens) for name, worker in workers.items()}, 1)  # warm up
        found = by_turns(
            {name: partial(worker, tokens) for name, worker in workers.items()}, repeats
        )
        plain = found.pop("Python")
        for name, figures in found.items():
            yield ratio_row(
                f"{name}, first sight, {tokens // 1000}k tokens",
                figures,
                plain,
                unit="x",
                goal=1.0,
                note=f"{statistics.median(figures):.0f} us, in Python "
                f"{statistics.median(plain):.0f} us",
            )


def main() -> None:
    """Build, measure, and print a table, or one JSON object."""
    if sys.argv[1:] == ["--work"]:
        work()
        return
    chosen = options(__doc__, repeats=9)
    python = environment("compiled", _REQUIRED, AS_OF)
    kinds: Mapping[str, Sequence[str]] = {
        "Python": (),
        "the chain compiled": CHAIN,
        "the decision compiled": DECISION,
    }
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        workers: dict[str, Callable[[int], float]] = {}
        for number, (name, modules) in enumerate(kinds.items()):
            folder = built(modules, python, Path(made) / str(number))
            workers[name] = stack.enter_context(started(python, folder))
        found = list(rows(workers, chosen.repeats))
    show(found, packages("prefixroute", "mmh3", "msgspec"), as_json=chosen.json)


if __name__ == "__main__":
    main()
