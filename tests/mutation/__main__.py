"""Mutation testing of the core: how many small faults do its tests find?

    python -m tests.mutation --sample 200 --seed 1

Each mutant is one small fault (see ``mutants``) in one module of ``prefixroute/core``; the tests
that run its line, as coverage has seen, are run on it in a child process until one fails. Mutants
that no test fails on are printed. Those that ``accepted.toml`` lists, with the reason, don't count.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.running import CORE, Seen, start, watch

ACCEPTED = Path(__file__).with_name("accepted.toml")


def accepted() -> dict[str, str]:
    """Return the reason for each mutant that may survive, by its name or its statement's."""
    listed = tomllib.loads(ACCEPTED.read_text("utf-8"))["accepted"]
    return {one["mutant"]: one["reason"] for one in listed}


def may_survive(mutant: Mutant) -> bool:
    """Return whether a mutant is accepted: it, or every mutant of its statement."""
    return not {mutant.name, mutant.name.partition("  ->  ")[0]}.isdisjoint(accepted())


def sampled(modules: Sequence[str], size: int, seed: int) -> list[Mutant]:
    """Return so many mutants, every one as likely as any other."""
    paths = [path for path in sorted(CORE.glob("*.py")) if not modules or path.stem in modules]
    every = [mutant for path in paths for mutant in mutants_of(path)]
    chosen = sorted(random.Random(seed).sample(range(len(every)), min(size, len(every))))
    print(f"{len(every)} mutants of {len(paths)} modules, {len(chosen)} of them tried", flush=True)
    return [every[at] for at in chosen]


def run(mutants: Sequence[Mutant], seen: Seen, *, jobs: int, budget_s: float) -> Counter[str]:
    """Try the mutants; print who survives, and return how many ended how."""
    ended: Counter[str] = Counter()
    running: deque[tuple[Mutant, Callable[[], str]]] = deque()

    def take() -> None:
        mutant, end = running.popleft()
        note(mutant, end())

    def note(mutant: Mutant, how: str) -> None:
        if how in ("survived", "not run") and may_survive(mutant):
            how = "accepted"
        ended[how] += 1
        if how in ("survived", "not run"):
            print(f"{how}: line {mutant.line} of {mutant.name}", flush=True)

    for mutant in mutants:
        tests = seen.tests(mutant, budget_s)
        if not tests:
            note(mutant, "not run")
            continue
        timeout_s = 30.0 + 5.0 * sum(seen.seconds[test] for test in tests)
        running.append((mutant, start(mutant, tests, timeout_s=timeout_s)))
        if len(running) >= jobs:
            take()
    while running:
        take()
    return ended


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--module", action="append", default=[], help="only of these, such as ring")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests per mutant")
    parser.add_argument("--floor", type=float, default=0.0, help="fail below this share of kills")
    parser.add_argument(
        "--tests", nargs="+", default=["tests/core", "tests/stateful", "tests/tokenizers"]
    )
    parser.add_argument("--seen", type=Path, help="file that keeps which tests run which line")
    given = parser.parse_args()
    began = time.monotonic()
    mutants = sampled(given.module, given.sample, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        out = given.seen or Path(folder) / "seen.json"
        seen = watch(given.tests, out)
    ended = run(mutants, seen, jobs=given.jobs, budget_s=given.budget)
    killed = ended["killed"] + ended["timed out"]
    share = killed / max(1, len(mutants) - ended["accepted"])
    counts = ", ".join(f"{count} {how}" for how, count in ended.most_common())
    print(f"{share:.1%} found, in {time.monotonic() - began:.0f} s: {counts}")
    return int(share < given.floor)


if __name__ == "__main__":
    raise SystemExit(main())
