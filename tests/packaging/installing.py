"""Environments that have the built wheel: what it needs is cached, the wheel is installed anew."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tests.sdk.environments import ROOT, environment, uv
from tests.sdk.matrix import AS_OF

__all__ = ["End", "install", "project", "requirements"]

End: TypeAlias = Literal["lowest", "newest"]

_OPTIONS: Final[Mapping[End, tuple[str, ...]]] = {
    "lowest": ("--resolution", "lowest-direct"),
    "newest": (),
}
_OWN_EXTRA: Final = re.compile(r"prefixroute\[([a-z0-9,-]+)\]")
_BASE: Final = "base"


def project() -> dict[str, Any]:
    """Return the table ``[project]`` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def requirements(extra: str, extras: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield what an extra needs, other extras that it names resolved.

    Args:
        extra: Its name; ``base`` needs nothing more.
        extras: The table of all extras.
    """
    for requirement in extras.get(extra, ()):
        if (named := _OWN_EXTRA.fullmatch(requirement)) is None:
            yield requirement
        else:
            for name in named[1].split(","):
                yield from requirements(name, extras)


def install(
    wheel: Path, folder: Path, *, extra: str = _BASE, end: End = "newest", also: Sequence[str] = ()
) -> Path:
    """Return the Python of an environment with the wheel and what it and one extra need.

    Args:
        wheel: The wheel.
        folder: Becomes the environment.
        extra: The extra; ``base``: none.
        end: Whether all that is named in pyproject.toml is as old as it says, or the newest.
        also: What else is installed.

    Raises:
        SetupError: uv says no.
    """
    needed = [*requirements(extra, project()["optional-dependencies"]), *also]
    below = environment(f"{extra}-{end}", needed, AS_OF, options=_OPTIONS[end])
    uv("venv", "--python", sys.executable, "--clear", str(folder))
    uv("pip", "install", "--python", str(folder), "--no-deps", str(wheel))
    (_packages(folder) / "below.pth").write_text(f"{_packages(below.parents[1])}\n", "utf-8")
    return folder / "bin" / "python"


def _packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))
