"""What a wheel and a source distribution hold, against what they should."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any, Final

from tests.sdk.environments import ROOT, SetupError, uv

__all__ = ["Release", "build", "tracked", "wrong_in_metadata", "wrong_in_sdist", "wrong_in_wheel"]

_PACKAGES: Final = ("prefixroute/", "prefixroute_pytest/")
_NEEDED: Final = (
    "prefixroute/py.typed",
    "prefixroute/signals/beat.lua",
    "prefixroute/simulator/page.css",
    "prefixroute_pytest/py.typed",
)
"""What is no module and easily left behind: should it be renamed, this list has to follow."""

_DIST_INFO: Final = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
_SDIST: Final = (
    "prefixroute/", "prefixroute_pytest/", "tests/", "examples/", "docs/", "docs_site/",
    "benchmarks/", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md",
    "pyproject.toml", "zensical.toml",
)  # fmt: skip
_MADE: Final = ("PKG-INFO", ".gitignore")
"""What the build adds to a source distribution."""

_SCRIPTS: Final = {
    "console_scripts": {"prefixroute": "prefixroute.cli:main"},
    "pytest11": {"prefixroute": "prefixroute_pytest"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is uploaded, as files, and what is in them.

    Args:
        wheel: The wheel.
        sdist: The source distribution.
    """

    wheel: Path
    sdist: Path

    def wheel_names(self) -> list[str]:
        """Return the names of the wheel's files."""
        with zipfile.ZipFile(self.wheel) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]

    def wheel_text(self, name: str) -> str:
        """Return a file of the wheel's ``dist-info``."""
        with zipfile.ZipFile(self.wheel) as archive:
            found = next(n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
            return archive.read(found).decode("utf-8")

    def sdist_names(self) -> list[str]:
        """Return the names of the source distribution's files, below its one folder."""
        with tarfile.open(self.sdist) as archive:
            return [m.name.partition("/")[2] for m in archive.getmembers() if not m.isdir()]


def build(folder: Path) -> Release:
    """Build the source distribution, and of that the wheel: so that it is known to be whole.

    Raises:
        SetupError: That failed, or there are others in the folder.
    """
    uv("build", "--out-dir", str(folder), str(ROOT))
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if (len(wheels), len(sdists)) != (1, 1):
        raise SetupError(f"{folder} must hold one wheel and one source distribution; empty it")
    return Release(wheel=wheels[0], sdist=sdists[0])


def tracked() -> frozenset[str]:
    """Return the checkout's files, those that are new included and those ignored left out.

    Raises:
        SetupError: There is no checkout.
    """
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SetupError(f"what belongs into a release is what git knows: {done.stderr.strip()}")
    return frozenset(name for name in done.stdout.split("\0") if (ROOT / name).is_file())


def wrong_in_wheel(names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """Yield what is missing in a wheel, and what is too much.

    Args:
        names: Of its files.
        known: Of the checkout's files.
    """
    inside = {re.sub(r"^prefixroute-[^/]+\.dist-info/", "dist-info/", name) for name in names}
    wanted = {name for name in known if name.startswith(_PACKAGES)}
    wanted |= {f"dist-info/{name}" for name in _DIST_INFO} | set(_NEEDED)
    yield from _apart("the wheel", inside, wanted)


def wrong_in_sdist(names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """Yield what is missing in a source distribution, and what is too much; see the other."""
    wanted = {name for name in known if name.startswith(_SDIST)}
    yield from _apart("the sdist", set(names), wanted | set(_MADE) | set(_NEEDED))


def _apart(what: str, inside: set[str], wanted: set[str]) -> Iterator[str]:
    yield from (f"{what} lacks {name}" for name in sorted(wanted - inside))
    yield from (f"{what} should not have {name}" for name in sorted(inside - wanted))


def wrong_in_metadata(
    metadata: str, entry_points: str, project: Mapping[str, Any]
) -> Iterator[str]:
    """Yield where a wheel's metadata says something else than the project's settings.

    Args:
        metadata: The file ``METADATA``.
        entry_points: The file ``entry_points.txt``.
        project: The table ``[project]`` of pyproject.toml.
    """
    said = message_from_string(metadata)
    extras = project["optional-dependencies"]
    needed = [r for r in said.get_all("Requires-Dist", []) if "extra ==" not in r]
    for name, found, wanted in (
        ("Name", said["Name"], project["name"]),
        ("Version", said["Version"], project["version"]),
        ("Requires-Python", said["Requires-Python"], project["requires-python"]),
        ("License-Expression", said["License-Expression"], project["license"]),
        ("Provides-Extra", sorted(said.get_all("Provides-Extra", [])), sorted(extras)),
        ("Requires-Dist", sorted(needed), sorted(project["dependencies"])),
        ("README", said.get_payload(), (ROOT / project["readme"]).read_text("utf-8")),
    ):
        if found != wanted:
            yield f"METADATA: {name} is {str(found)[:200]!r}, not {str(wanted)[:200]!r}"
    parser = ConfigParser()
    parser.read_string(entry_points)
    groups = {section: dict(parser[section]) for section in parser.sections()}
    if groups != _SCRIPTS:
        yield f"entry_points.txt: {groups}, not {_SCRIPTS}"
