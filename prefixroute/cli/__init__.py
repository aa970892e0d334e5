"""The ``prefixroute`` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; says which extra is missing, if one is."""
    try:
        from prefixroute.cli.app import app  # noqa: PLC0415 - typer and rich are an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(f"prefixroute: {error.name} is missing: pip install 'prefixroute[cli]'")
    app()
