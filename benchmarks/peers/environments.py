"""The environments that peers are installed in: one for each, made with uv, kept in the cache."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.sdk.environments import SetupError, environment
from tests.sdk.matrix import AS_OF

__all__ = ["SetupError", "python_with", "version"]


def python_with(name: str, requirements: Sequence[str]) -> Path:
    """Return the Python of an environment that has these alone.

    Raises:
        SetupError: It can't be made.
    """
    return environment(name, requirements, AS_OF, shelf="peers", bare=True)


def version(python: Path | str, package: str) -> str:
    """Return the version of a package in an environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return said.stdout.strip()
