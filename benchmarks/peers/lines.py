"""Processes that are told what to do in JSON lines and answer in JSON lines, from any environment.

Importable wherever there is a Python: the standard library alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["ROOT", "PeerError", "Worker", "ended", "environment_of", "guarded", "serve", "tail"]

ROOT: Final = Path(__file__).resolve().parents[2]
"""The checkout: workers are modules of it."""


class PeerError(Exception):
    """A peer could not be started, or did not do what it was asked; the message says why."""


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer what comes in, one line after the other, until the input ends.

    Args:
        handlers: What can be asked, by its name in ``op``; the line's other fields are arguments.
            What a handler raises is the answer, too.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what a library prints goes to standard error
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = {"said": handlers[asked.pop("op")](**asked)}
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=out, flush=True)


class Worker:
    """A process that serves; up from entering the ``with`` block until it is left.

    Args:
        python: The interpreter of its environment.
        module: What it runs; calls :func:`serve`.
        log: Where its standard error goes.
        variables: Added to its environment.
    """

    def __init__(
        self,
        python: Path | str,
        module: str,
        log: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [str(python), "-m", module]
        self._log = log
        self._environment = environment_of({"PYTHONPATH": str(ROOT), **(variables or {})})

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                guarded(self._command),
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ended(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def ask(self, op: str, **arguments: Any) -> Any:
        """Have something done, wait until it is, and return what it says.

        Raises:
            PeerError: It says that it failed, or it ended.
        """
        assert self._process.stdin is not None  # noqa: S101 - told to Popen
        assert self._process.stdout is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise PeerError(f"{' '.join(self._command[1:])} ended: {tail(self._log)}")
        said = json.loads(line)
        if "error" in said:
            raise PeerError(said["error"])
        return said["said"]


def guarded(command: Sequence[str]) -> list[str]:
    """Return a command that ends with the thread that starts it, where ``setpriv`` is there."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL", *command] if found else list(command)


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without proxies: all traffic stays on this machine."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**kept, **variables}


def ended(process: subprocess.Popen[Any]) -> None:
    """End a process: it is asked to, and made to if it takes too long."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path, lines: int = 5) -> str:
    """Return the end of a log, in one line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return " | ".join(text.split("\n")[-lines - 1 :]).strip(" |") or "it said nothing"
