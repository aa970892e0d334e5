"""The commands and their options; each command's work is in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefixroute.errors import ConfigurationError

__all__ = ["app"]

app = typer.Typer(
    name="prefixroute",
    help="Send each LLM request to the replica that already holds its prompt's prefix.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        "-e",
        help="Base URL of a replica, such as http://gpu-0:8000/v1; give one for each.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.callback()
def _root() -> None:
    """Take no options of its own; makes every command a subcommand."""


@app.command()
def demo(
    endpoint: Endpoints = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for; default: the first that is served.")
    ] = None,
    assistants: Annotated[
        int, typer.Option(min=1, help="Assistants, each its system prompt.")
    ] = 25,
    system_tokens: Annotated[
        int, typer.Option(min=8, help="About how long a system prompt is.")
    ] = 2000,
    chats: Annotated[int, typer.Option(min=1, help="Chats with each assistant.")] = 4,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each chat.")] = 3,
    rate: Annotated[float, typer.Option(min=0.01, help="Chats that start in a second.")] = 5.5,
    seed: Annotated[int, typer.Option(help="Of the workload: prompts, order, times.")] = 0,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way to say an option
) -> None:
    """Send a chat workload to 4 replicas, spread at random and then routed, and compare.

    Without --endpoint the replicas are simulated (no GPU, no download) and served on loopback.
    """
    from prefixroute.cli.demo import run_demo  # noqa: PLC0415 - loads the SDK
    from prefixroute.cli.workload import Workload  # noqa: PLC0415

    workload = Workload(
        assistants=assistants,
        system_tokens=system_tokens,
        chats=chats,
        turns=turns,
        chats_per_s=rate,
        seed=seed,
    )
    run_demo(workload, endpoints=endpoint or [], model=model, as_json=as_json)


@app.command()
def route(
    body: Annotated[
        str, typer.Argument(help="File with a request body as JSON; - reads standard input.")
    ],
    endpoint: Endpoints = None,
    placement: Annotated[str, typer.Option(help="nested or fixed.")] = "nested",
    path: Annotated[
        str | None, typer.Option(help="The request's path; default: told from the body's fields.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="As x-session-id would give it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the ring.")] = None,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way to say an option
) -> None:
    """Show where a request would go, and why. Nothing is sent.

    A fresh router has seen no traffic, so this shows the placement by hash alone.
    """
    from prefixroute.cli.route import run_route  # noqa: PLC0415

    try:
        data = typer.get_binary_stream("stdin").read() if body == "-" else Path(body).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{body}: {error.strerror}", param_hint="BODY") from None
    try:
        run_route(
            data,
            endpoints=endpoint or [],
            placement=placement,
            path=path,
            session=session,
            seed=seed,
            as_json=as_json,
        )
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def analyze(
    log: Annotated[
        Path,
        typer.Argument(help="Log of request bodies or Mooncake trace, JSON lines; .gz, .zst too."),
    ],
    replicas: Annotated[int, typer.Option(min=1, help="Replicas that are simulated.")] = 4,
    routers: Annotated[
        int, typer.Option(min=1, help="Processes that send, each with a router of its own.")
    ] = 1,
    cache_tokens: Annotated[
        int, typer.Option(min=0, help="Size of each replica's prefix cache, tokens.")
    ] = 500_000,
    prefill_rate: Annotated[
        float, typer.Option(min=1.0, help="What each replica prefills, tokens per second.")
    ] = 8000.0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests that are read of a longer log.")
    ] = 100_000,
    show_text: Annotated[  # noqa: FBT002 - typer's way to say an option
        bool, typer.Option("--show-text", help="Show prompt text and literal values.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002 - as above
) -> None:
    """Tell what your traffic has to gain from routing by prefix, and what spoils its prefixes.

    Nothing is sent, and no prompt text is shown unless you ask for it.
    """
    from prefixroute.cli.analyze import run_analyze  # noqa: PLC0415 - loads the simulator

    try:
        run_analyze(
            log,
            replicas=replicas,
            routers=routers,
            cache_tokens=cache_tokens,
            prefill_tokens_per_s=prefill_rate,
            max_requests=max_requests,
            show_text=show_text,
            as_json=as_json,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise typer.BadParameter(f"{log}: {reason}", param_hint="LOG") from None
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
