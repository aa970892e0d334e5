"""The release as its users get it: built, installed, used, typed.

    python -m tests.packaging                     all of it
    python -m tests.packaging --only redis,types  some of it
    python -m tests.packaging --dist dist         keep what was built, in an empty folder

What the wheel and the source distribution hold; what the base install pulls; each extra alone, with
the lowest and the newest versions of what it needs, and what is said where it is missing; users'
programs under mypy and pyright. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.packaging.artifacts import (
    Release,
    build,
    tracked,
    wrong_in_metadata,
    wrong_in_sdist,
    wrong_in_wheel,
)
from tests.packaging.installing import End, install, project
from tests.sdk.environments import ROOT, SetupError, cache_folder, environment
from tests.sdk.matrix import AS_OF

__all__ = ["main"]

_USES: Final = ROOT / "tests" / "packaging" / "uses.py"
_PROGRAMS: Final = ROOT / "tests" / "typing"
_TIMEOUT_S: Final = 300.0

_FOR_DEVELOPERS: Final = frozenset({"docs", "fuzz", "test"})
"""Extras that promise users nothing."""

_LACKED_IN: Final = {"demo": "cli", "all": None}
"""Where an extra is missing, if that is not the base install; ``None``: it has no error."""

_BASE: Final = frozenset(
    {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "mmh3", "msgspec", "prefixroute"}
    | {"tenacity", "typing_extensions"}
)
"""All that the base install pulls."""

_TRIO: Final = "trio>=0.27"
"""No extra: whoever runs on it has it. The oldest that Python 3.13 takes."""

_TYPED: Final = ("anthropic", "openai")
"""What users' programs import beside the extras."""

_LIST: Final = (
    "from importlib.metadata import distributions\n"
    "print(*sorted({one.name for one in distributions()}))"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold.

    Args:
        name: For people.
        group: What ``--only`` names.
        run: Yields what is wrong; raises ``SetupError`` where it cannot tell.
    """

    name: str
    group: str
    run: Callable[[], Iterable[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and print how they went; return the exit code."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="prefixroute-packaging-") as made:
        folder = Path(made)
        try:
            release = build(options.dist or folder / "dist")
        except SetupError as error:
            sys.exit(f"✗ build: {error}")
        checks = [one for one in _checks(release, folder) if _wanted(one, options.only)]
        with ThreadPoolExecutor(options.jobs) as pool:
            failed = sum(pool.map(_told, checks))
    print(f"\n{len(checks) - failed} passed, {failed} failed")
    return 1 if failed or not checks else 0


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.packaging",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=lambda names: set(names.split(",")),
        metavar="NAMES",
        help="of contents, upload, base, trio, types, and the extras",
    )
    parser.add_argument("--dist", type=Path, help="build into this folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="checks at once")
    return parser


def _wanted(check: Check, only: set[str] | None) -> bool:
    return only is None or check.group in only


def _told(check: Check) -> bool:
    """Run a check, print how it went, and return whether anything is wrong."""
    began = time.monotonic()
    try:
        wrong = list(check.run())
    except (SetupError, subprocess.TimeoutExpired) as error:
        wrong = [str(error)]
    line = f"{'✗' if wrong else '✓'} {check.name} ({time.monotonic() - began:.1f} s)"
    print("\n  ".join([line, *wrong]), flush=True)
    return bool(wrong)


def _checks(release: Release, folder: Path) -> Iterator[Check]:
    """Yield all checks, those that take long first."""
    wheel = release.wheel
    yield Check("users' programs: mypy --strict", "types", partial(_mypy, wheel, folder))
    yield Check("users' programs: pyright", "types", partial(_pyright, wheel, folder))
    extras = [name for name in project()["optional-dependencies"] if name not in _FOR_DEVELOPERS]
    ends: tuple[End, ...] = ("newest", "lowest")
    for extra in [*reversed(extras), "base"]:
        for end in ends:
            run = partial(_use, wheel, folder, extra, end)
            yield Check(f"{extra}, {end} versions", extra, run)
        if (lacked := _LACKED_IN.get(extra, "base")) is not None and extra != "base":
            run = partial(_lack, wheel, folder, extra, lacked)
            yield Check(f"without {extra}: the error names it", extra, run)
    for end in ends:
        run = partial(_use, wheel, folder, "trio", end)
        yield Check(f"on trio, {end} versions", "trio", run)
    yield Check("the base install pulls nothing more", "base", partial(_pulled, wheel, folder))
    yield Check("what the wheel and the sdist hold", "contents", partial(_contents, release))
    yield Check("twine check --strict", "upload", partial(_twine, release))


# -- the files -----------------------------------------------------------------------------


def _contents(release: Release) -> Iterator[str]:
    known = tracked()
    yield from wrong_in_wheel(release.wheel_names(), known)
    yield from wrong_in_sdist(release.sdist_names(), known)
    texts = release.wheel_text("METADATA"), release.wheel_text("entry_points.txt")
    yield from wrong_in_metadata(*texts, project())


def _twine(release: Release) -> Iterator[str]:
    python = environment("twine", ("twine",), AS_OF)
    yield from _failure(
        python, "-m", "twine", "check", "--strict", str(release.wheel), str(release.sdist)
    )


# -- what is installed -----------------------------------------------------------------------


def _use(wheel: Path, folder: Path, extra: str, end: End) -> Iterator[str]:
    # What others deprecate in old versions of others is nobody's concern.
    warnings = ("-W", "error") if end == "newest" else ()
    also = (_TRIO,) if extra == "trio" else ()
    with _installed(wheel, folder, extra, end, also=also) as python:
        yield from _failure(python, "-I", *warnings, str(_USES), extra)


def _lack(wheel: Path, folder: Path, extra: str, within: str) -> Iterator[str]:
    wanted = f"pip install 'prefixroute[{extra}]'"
    with _installed(wheel, folder, within, "newest") as python:
        done = _run(python, "-I", str(_USES), extra)
    if not done.returncode:
        yield f"it works without {extra}: does the extra promise anything?"
    elif wanted not in done.stdout.strip().rpartition("\n")[2]:
        yield f"the last line must say {wanted}: {done.stdout[-1000:]}"


def _pulled(wheel: Path, folder: Path) -> Iterator[str]:
    with _installed(wheel, folder, "base", "newest") as python:
        names = set(_run(python, "-I", "-c", _LIST).stdout.split())
    yield from (f"pulls {name}" for name in sorted(names - _BASE))
    yield from (f"does not pull {name}" for name in sorted(_BASE - names))


# -- types ---------------------------------------------------------------------------------


def _mypy(wheel: Path, folder: Path) -> Iterator[str]:
    with _programs(wheel, folder) as (python, programs):
        options = ("--strict", "--config-file=", "--cache-dir", str(cache_folder() / "mypy"))
        yield from _failure(
            Path(sys.executable), "-m", "mypy", *options, "--python-executable", str(python), ".",
            cwd=programs,
        )  # fmt: skip


def _pyright(wheel: Path, folder: Path) -> Iterator[str]:
    with _programs(wheel, folder) as (python, programs):
        yield from _failure(
            Path(sys.executable), "-m", "pyright", "--pythonpath", str(python), ".", cwd=programs
        )


@contextmanager
def _programs(wheel: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Give an environment with the SDKs, and the programs outside of the checkout."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as made,
        _installed(wheel, folder, "all", "newest", also=_TYPED) as python,
    ):
        programs = Path(made) / "programs"
        shutil.copytree(_PROGRAMS, programs, ignore=shutil.ignore_patterns("__pycache__"))
        yield python, programs


# -- running -------------------------------------------------------------------------------


@contextmanager
def _installed(
    wheel: Path, folder: Path, extra: str, end: End, also: Sequence[str] = ()
) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        yield install(wheel, Path(made), extra=extra, end=end, also=also)


def _failure(python: Path, *arguments: str, cwd: Path | None = None) -> Iterator[str]:
    """Run a Python; yield what it printed if it failed."""
    done = _run(python, *arguments, cwd=cwd)
    if done.returncode:
        yield done.stdout[-4000:].strip() or f"ended with {done.returncode}"


def _run(
    python: Path, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [python, *arguments],
        cwd=cwd or python.parent,
        env={**variables, "MPLBACKEND": "agg"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
