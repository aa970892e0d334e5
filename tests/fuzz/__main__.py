"""Fuzz with atheris: ``python -m tests.fuzz [--only prompt] [--seconds 60] [--seed 7]``.

Starts from the corpus beside this file. Below ``setarch -R``, the default seed and number of runs
try the same inputs each time, so that a gate breaks by a change of the code alone; ``--seed 0``
draws another seed. An input that breaks a target is written to the current folder and said; put it
into the corpus with its fix.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
NAMES = sorted(folder.name for folder in CORPUS.iterdir())


def main() -> int:
    """Run each target in a process of its own, as libFuzzer never returns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--seconds", type=int, help="for each target; else a number of runs")
    parser.add_argument("--runs", type=int, default=30_000, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--new", type=Path, help="folder that keeps what it finds interesting")
    parser.add_argument("--run", choices=NAMES, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.run is not None:
        return fuzz(options.run, rest)
    failed = 0
    with tempfile.TemporaryDirectory() as elsewhere:
        for name in options.only or NAMES:
            found = (options.new or Path(elsewhere)) / name  # the first folder takes what is new
            found.mkdir(parents=True, exist_ok=True)
            length = (
                f"-runs={options.runs}"
                if options.seconds is None
                else f"-max_total_time={options.seconds}"
            )
            limits = [length, f"-seed={options.seed}", "-max_len=20000", "-timeout=10"]
            command = [sys.executable, "-m", "tests.fuzz", "--run", name, *limits]
            done = subprocess.run(
                [*command, str(found), str(CORPUS / name)],
                env={**os.environ, "PYTHONHASHSEED": "0"},
                check=False,
            )
            print(f"{name}: {'broken' if done.returncode else 'held'}", flush=True)
            failed += bool(done.returncode)
    return 1 if failed else 0


def fuzz(name: str, arguments: list[str]) -> int:
    """Run one target until its time is over or it breaks."""
    import atheris

    with atheris.instrument_imports(include=["prefixroute"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
