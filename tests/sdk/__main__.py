"""The SDK matrix: every SDK at its lowest and its newest version, in environments of their own.

    python -m tests.sdk                         all of them
    python -m tests.sdk --only openai,litellm   some of them
    python -m tests.sdk --newest                one end of the supported versions
    python -m tests.sdk --latest                the newest as of today, not as of the recorded day
    python -m tests.sdk --here --only openai    in the environment that this runs in
    python -m tests.sdk --json                  for programs

Prints what works: ✓, a dash where an SDK has no such thing, ✗ with the reasons below. The exit code
is 1 if anything does not work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tests.sdk.environments import ROOT, SetupError, environment, newest
from tests.sdk.matrix import AS_OF, ENTRIES, Entry
from tests.sdk.support import COLUMNS, Column

__all__ = ["main"]

End: TypeAlias = Literal["lowest", "newest", "here"]

_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")
_TIMEOUT_S: Final = 300.0
_NOTHING: Final = "–"  # noqa: RUF001 - a dash


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came out for one version of an SDK.

    Attributes:
        sdk: The entry's name.
        end: Which version.
        versions: Of the SDK and of what it is built on.
        columns: What is wrong in each column, "" if nothing is, None where there is nothing.
        error: Why nothing could be run; None: it was.
        seconds: Real seconds that it took, making the environment included.
    """

    sdk: str
    end: End
    versions: dict[str, str] = field(default_factory=dict)
    columns: dict[Column, str | None] = field(default_factory=dict)
    error: str | None = None
    seconds: float

    @property
    def wrong(self) -> list[str]:
        """What does not work, and why."""
        reasons = [f"{column}: {reason}" for column, reason in self.columns.items() if reason]
        return [*reasons, *([self.error] if self.error is not None else [])]

    @property
    def signs(self) -> list[str]:
        """A sign for each column."""
        if self.error is not None:
            return ["✗"] * len(COLUMNS)
        signs = {None: _NOTHING, "": "✓"}
        return [signs.get(self.columns[column], "✗") for column in COLUMNS]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix and print it; return the exit code."""
    options = _parser().parse_args(arguments)
    entries = [entry for entry in ENTRIES if not options.only or entry.name in options.only]
    ends: list[End] = options.ends or ["lowest", "newest"]
    as_of = datetime.datetime.now(datetime.UTC).date().isoformat() if options.latest else AS_OF
    with ThreadPoolExecutor(options.jobs) as pool:
        cells = [(entry, end) for entry in entries for end in ends]
        rows = list(pool.map(lambda cell: _run(cell[0], cell[1], as_of), cells))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False))
    else:
        print("\n".join(_table(rows)))
    return 1 if any(row.wrong for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.sdk",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("--only", type=_names, metavar="NAMES", help=f"of {', '.join(names)}")
    ends = parser.add_mutually_exclusive_group()
    for end, what in (
        ("lowest", "only the lowest versions"),
        ("newest", "only the newest versions"),
        ("here", "what is installed here; makes no environment"),
    ):
        ends.add_argument(f"--{end}", dest="ends", action="store_const", const=[end], help=what)
    parser.add_argument("--latest", action="store_true", help="the newest as of today")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows at once")
    return parser


def _names(text: str) -> set[str]:
    names = set(text.split(","))
    unknown = names - {entry.name for entry in ENTRIES}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}")
    return names


def _run(entry: Entry, end: End, as_of: str) -> Row:
    began = time.monotonic()
    try:
        result = _result(_python(entry, end, as_of), entry.scenario)
    except (SetupError, subprocess.TimeoutExpired) as error:
        result = {"error": str(error)}
    seconds = round(time.monotonic() - began, 1)
    print(f"{entry.name} ({end}): {seconds} s", file=sys.stderr)
    return Row(sdk=entry.name, end=end, seconds=seconds, **result)


def _python(entry: Entry, end: End, as_of: str) -> Path:
    match end:
        case "here":
            return Path(sys.executable)
        case "lowest":
            return environment(f"{entry.name}-lowest", entry.lowest, entry.lowest_as_of)
        case "newest":
            return newest(entry, as_of)


def _result(python: Path, scenario: str) -> dict[str, Any]:
    """Run a scenario by a Python, unaware of keys, addresses and proxies in our environment."""
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="prefixroute-sdk-") as folder:
        file = Path(folder) / "result.json"
        done = subprocess.run(
            [python, "-m", "tests.sdk.scenario", scenario, file],
            cwd=ROOT,
            env={**variables, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not file.exists():
            raise SetupError(f"{scenario} ended with {done.returncode}: {done.stdout[-2000:]}")
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def _table(rows: Sequence[Row]) -> Iterator[str]:
    lines = [("SDK", "versions", *COLUMNS)]
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        lines.append((f"{row.sdk} ({row.end})", versions, *row.signs))
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
    for row in rows:
        if row.wrong:
            yield "\n✗ " + "\n".join((f"{row.sdk} ({row.end})", *row.wrong))
    failed = sum(bool(row.wrong) for row in rows)
    yield f"\n{len(rows) - failed} passed, {failed} failed"


if __name__ == "__main__":
    sys.exit(main())
