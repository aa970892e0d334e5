"""Makes the environments that scenarios run in, with uv, and keeps them in a cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.sdk.matrix import AS_OF, Entry

__all__ = ["ROOT", "SetupError", "cache_folder", "environment", "newest", "uv"]

ROOT: Final = Path(__file__).resolve().parents[2]
"""The checkout: prefixroute and the scenarios are imported from here."""


class SetupError(Exception):
    """An environment could not be made; the message says what uv said."""


def cache_folder(shelf: str = "sdk") -> Path:
    """Where environments are kept. Remove it to make them anew."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prefixroute" / shelf


def newest(entry: Entry, as_of: str = AS_OF) -> Path:
    """Return the Python of an SDK's newest version, as of a day; see :func:`environment`."""
    return environment(f"{entry.name}-newest", entry.newest, as_of)


def environment(
    name: str,
    requirements: Iterable[str],
    as_of: str,
    *,
    options: Sequence[str] = (),
    shelf: str = "sdk",
    bare: bool = False,
) -> Path:
    """Return the Python of an environment with these requirements and with prefixroute's own.

    It is made where it isn't there yet, in a folder of its own that is renamed when it is finished:
    whatever is found in the cache is complete, and two runs at once don't disturb each other.

    Args:
        name: The environment's, for people.
        requirements: What is installed.
        as_of: Only what was published up to the end of this day (UTC) is taken.
        options: More of ``uv pip install``, such as ``--resolution``.
        shelf: The folder of the cache that it lies in.
        bare: Without what prefixroute needs.

    Raises:
        SetupError: uv is missing, or says no.
    """
    wanted = [*requirements, *([] if bare else _dependencies())]
    identity = json.dumps([wanted, as_of, sys.version_info[:3], sys.base_prefix, *options])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = cache_folder(shelf) / f"{name}-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            uv("venv", "--python", sys.executable, "--clear", str(made))
            install = ("pip", "install", "--python", str(made), *options)
            uv(*install, "--exclude-newer", f"{as_of}T23:59:59Z", *wanted)
            _rename(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder / "bin" / "python"


def _dependencies() -> list[str]:
    """What prefixroute needs; with an own httpx or httpx2 beside it, whatever that is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed: list[str] = project["dependencies"]
    return needed


def _rename(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():  # else another run was faster
            raise


def uv(*arguments: str) -> None:
    """Run uv.

    Raises:
        SetupError: It is missing, or says no.
    """
    if (found := shutil.which("uv")) is not None:
        command = [found]
    elif importlib.util.find_spec("uv") is not None:
        command = [sys.executable, "-m", "uv"]
    else:
        raise SetupError("uv is not installed: pip install uv")
    done = subprocess.run(
        [*command, *arguments, "--quiet"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SetupError(f"uv {' '.join(arguments)}: {done.stderr.strip()}")
