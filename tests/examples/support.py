"""Runs examples as their readers do, against simulated replicas on sockets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from prefixroute.testing import FakeCluster

__all__ = ["EXAMPLES", "ROOT", "environment_of", "metadata", "run"]

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "examples"

_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")
_METADATA: Final = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""As `inline script metadata`_ defines it.

.. _inline script metadata: https://packaging.python.org/specifications/inline-script-metadata/
"""


def environment_of(cluster: FakeCluster) -> dict[str, str]:
    """The variables of an example: the cluster's URLs, but no keys, addresses and proxies of ours.

    It finds this checkout's prefixroute also where none is installed.
    """
    urls = ",".join(str(replica.served_url) for replica in cluster.replicas)
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**variables, "ENDPOINTS": urls, "PYTHONPATH": str(ROOT)}


def run(
    name: str,
    cluster: FakeCluster,
    *,
    python: Path | str = sys.executable,
    ignored: str | None = None,
    timeout_s: float = 150.0,
) -> str:
    """Run an example to its end; return what it printed.

    Args:
        name: Its file's.
        cluster: Where it sends its requests.
        python: Runs it, with all warnings as errors...
        ignored: ...but those of this category.
        timeout_s: It fails if it takes longer, seconds.
    """
    excepted = () if ignored is None else ("-W", f"ignore::{ignored}")
    done = subprocess.run(
        [python, "-W", "error", *excepted, EXAMPLES / name],
        env=environment_of(cluster),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def metadata(script: Path) -> dict[str, Any] | None:
    """The inline metadata (PEP 723) of a script; ``None``: it has none."""
    found = _METADATA.search(script.read_text(encoding="utf-8"))
    if found is None:
        return None
    lines = found["content"].splitlines()
    return tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
