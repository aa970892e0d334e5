"""The page of the ``prefixroute`` command: what typer says of it."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["commands_page"]

_INTRODUCTION = """# Commands

`pip install 'prefixroute[cli]'`; `demo` needs `prefixroute[demo]`. Each command has
`--help`, and those that print figures have `--json`.
"""


def commands_page() -> str:
    """Return the options of every command, as Markdown."""
    typer = [sys.executable, "-m", "typer", "prefixroute.cli.app", "utils", "docs"]
    done = subprocess.run(  # noqa: S603 - what is run is named here
        [*typer, "--name", "prefixroute"], capture_output=True, text=True, check=True
    )
    _, start, commands = done.stdout.partition("\n## ")  # without the list of them
    return f"{_INTRODUCTION}{start}{commands.rstrip()}\n"
