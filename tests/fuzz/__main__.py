"""Fuzz with atheris: ``python -m tests.fuzz [--only prompt] [--seconds 10]``.

Starts from the corpus beside this file. An input that breaks a target is written to the current
folder and said; put it into the corpus with its fix.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
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
            limits = [f"-max_total_time={options.seconds}", "-max_len=20000", "-timeout=10"]
            command = [sys.executable, "-m", "tests.fuzz", "--run", name, *limits]
            done = subprocess.run([*command, str(found), str(CORPUS / name)], check=False)
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
