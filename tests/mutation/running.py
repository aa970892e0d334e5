"""Runs tests in forked children: once to see who runs which line, then once for each mutant."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import coverage
import msgspec
import pytest

from tests.mutation.mutants import Mutant

__all__ = ["Seen", "start", "watch"]

ROOT: Final = Path(__file__).parents[2]
CORE: Final = ROOT / "prefixroute" / "core"
_QUIET: Final = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not engine"]


class Seen(msgspec.Struct):
    """Which tests run which line, and how long each takes.

    Args:
        seconds: By node id.
        lines: By the module's file name and line: node ids; line 0: of any line.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]

    def tests(self, mutant: Mutant, budget_s: float) -> list[str]:
        """Return the tests that can find a mutant, quickest first, up to so many seconds."""
        lines = self.lines.get(mutant.path.name, {})
        found = lines.get(0 if mutant.at_import else mutant.line, [])
        chosen, spent_s = [], 0.0
        for test in sorted(found, key=lambda one: (self.seconds[one], one)):
            spent_s += self.seconds[test]
            if spent_s > budget_s:
                break
            chosen.append(test)
        return chosen


@dataclass(slots=True)
class _Watcher:
    """Tells coverage which test runs, and takes its time."""

    coverage: Any
    seconds: dict[str, float] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - began
            self.coverage.switch_context("")


@dataclass(frozen=True, slots=True)
class _Only:
    """Runs these tests and no others, in this order."""

    tests: Sequence[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[test] for test in self.tests if test in by_id]


def watch(tests: Sequence[str], out: Path) -> Seen:
    """Run the tests as they are.

    Raises:
        RuntimeError: They fail.
    """

    def run() -> int:
        measured = coverage.Coverage(data_file=None, include=[f"{CORE}/*"], config_file=False)
        watcher = _Watcher(measured)
        measured.start()
        code = pytest.main([*_QUIET, *tests], plugins=[watcher])
        measured.stop()
        data, lines = measured.get_data(), {}
        for file in data.measured_files():
            ran = data.contexts_by_lineno(file)
            known = {line: [test for test in found if test] for line, found in ran.items()}
            known[0] = sorted({test for found in known.values() for test in found})
            lines[Path(file).name] = known
        out.write_bytes(msgspec.json.encode(Seen(watcher.seconds, lines)))
        return int(code)

    if _wait(_fork(run, quiet=False), until=None) != 0:
        raise RuntimeError("the tests fail as they are: there is nothing to compare mutants with")
    return msgspec.json.decode(out.read_bytes(), type=Seen)


def start(mutant: Mutant, tests: Sequence[str], *, timeout_s: float) -> Callable[[], str]:
    """Begin to run tests on a mutant; the function returned waits for the end and names it."""

    def run() -> int:
        sys.meta_path.insert(0, _Finder(mutant))
        files = sorted({test.partition("::")[0] for test in tests})
        return int(pytest.main([*_QUIET, *files], plugins=[_Only(tests)]))

    child, until = _fork(run, quiet=True), time.monotonic() + timeout_s

    def end() -> str:
        code = _wait(child, until=until)
        return "survived" if code == 0 else "timed out" if code is None else "killed"

    return end


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds one module mutated, all others as they are."""

    mutant: Mutant

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        where = self.mutant.path
        if name != f"prefixroute.core.{where.stem}":
            return None
        return spec_from_file_location(name, where, loader=_Loader(name, self.mutant))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.tree(), str(self._mutant.path), "exec")


def _fork(run: Callable[[], int], *, quiet: bool) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        os.setsid()
        if quiet:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
        code = run()
    finally:
        os._exit(code)


def _wait(child: int, *, until: float | None) -> int | None:
    """Return a child's exit status; ``None``: it was still running, and is no more."""
    while True:
        ended, status = os.waitpid(child, 0 if until is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if until is not None and time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
