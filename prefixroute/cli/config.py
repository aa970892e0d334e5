"""``prefixroute config``: check a file of settings, and its JSON Schema for editors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from prefixroute.errors import ConfigurationError

__all__ = ["config"]

config = typer.Typer(help="Settings in a file: check one, or print their JSON Schema.")


class _Every(Mapping[str, str]):
    """An environment in which every variable is set."""

    def __getitem__(self, name: str) -> str:
        return "-"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@config.command()
def check(
    file: Annotated[Path, typer.Argument(help="Settings: .toml, .json, .yaml or .yml.")],
    no_env: Annotated[  # noqa: FBT002 - typer's way to say an option
        bool, typer.Option("--no-env", help="The variables that it names need not be set here.")
    ] = False,
    as_json: Annotated[  # noqa: FBT002 - as above
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Read a file as Router.from_file does; exit status 1 says that something cannot work."""
    from prefixroute.configuration import read_file  # noqa: PLC0415 - not for other commands
    from prefixroute.router import Router  # noqa: PLC0415

    try:
        found = read_file(file, _Every() if no_env else os.environ)
        router = found.make(Router)
    except ConfigurationError as error:
        if as_json:
            print(json.dumps({"file": str(file), "ok": False, "error": str(error)}))
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    endpoints = [endpoint.without_secrets() for endpoint in router.endpoints]
    placement = "Nested" if found.placement is None else type(found.placement).__name__.strip("_")
    if as_json:
        said = {
            "file": str(file),
            "ok": True,
            "endpoints": [{"id": one.id, "url": one.url} for one in endpoints],
            "placement": placement,
            "fingerprint": router.fingerprint,
        }
        print(json.dumps(said))
        return
    print(f"{file}: {len(endpoints)} endpoints, {placement}, fingerprint {router.fingerprint}")
    for endpoint in endpoints:
        print(f"  {endpoint!r}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of such a file, which editors complete and check by."""
    from prefixroute.configuration import schema as made  # noqa: PLC0415 - as above

    print(json.dumps(made(), indent=2))
