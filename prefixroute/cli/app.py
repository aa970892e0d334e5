"""The commands and their options; each command's work is in a module of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from prefixroute.cli.config import config
from prefixroute.errors import ConfigurationError

__all__ = ["app"]

app = typer.Typer(
    name="prefixroute",
    help="Send each LLM request to the replica that already holds its prompt's prefix.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.add_typer(config, name="config")

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
def check(
    url: Annotated[
        list[str] | None, typer.Argument(help="Base URLs, such as http://gpu-0:8000/v1.")
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="Check the endpoints of this file of settings, too.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable that has the URLs' key.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for; default: the first that each serves.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=100, help="About how long the prompt is.")] = 2000,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="For each step of a request, seconds.")
    ] = 60.0,
    no_generate: Annotated[
        bool, typer.Option("--no-generate", help="Send no prompts: only ask what they are.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is behind each URL: engine, models, prefix cache, what it reports, TTFT.

    Sends each a short prompt, and a long one twice. Exit status 1: one cannot be reached, or does
    not answer prompts.
    """
    from prefixroute.cli.check import Wanted, endpoints_of, run_check  # noqa: PLC0415

    wanted = Wanted(model=model, tokens=tokens, timeout_s=timeout, generate=not no_generate)
    try:
        endpoints = endpoints_of(url or [], config=config, api_key_env=api_key_env)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    run_check(endpoints, wanted, as_json=as_json)


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


@app.command()
def simulate(  # noqa: PLR0913 - one parameter for each option
    trace: Annotated[
        str,
        typer.Argument(
            help="Trace file (Mooncake's or a log of request bodies, JSON lines, may be .gz or "
            ".zst), or one to make: agents, chats, popular-prefixes, system-prompts."
        ),
    ],
    *,
    policy: Annotated[
        list[str] | None, typer.Option(help="Rule to simulate; give one for each; default: all.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many replicas there are.")] = 8,
    routers: Annotated[
        str, typer.Option(help="Routers that share nothing; several numbers, by commas.")
    ] = "1,32",
    cache_blocks: Annotated[
        int, typer.Option(min=0, help="Each replica's cache, blocks of the trace.")
    ] = 4000,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Cache this many whole prompts instead: llama.cpp.")
    ] = None,
    prefill_tokens_per_s: Annotated[float, typer.Option(help="Of each replica.")] = 8000.0,
    request_cost_ms: Annotated[float, typer.Option(help="Added to every prefill.")] = 20.0,
    token_ms: Annotated[float, typer.Option(help="Time per output token.")] = 20.0,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Prefill in chunks of so many tokens, between decoding steps."),
    ] = None,
    decode_slowdown: Annotated[
        float, typer.Option(help="With chunks: of --token-ms, for each further request.")
    ] = 0.02,
    max_running: Annotated[
        int, typer.Option(min=1, help="With chunks: most requests in a batch.")
    ] = 256,
    report_every: Annotated[
        float | None, typer.Option(help="Tell routers the engines' queues every so many seconds.")
    ] = None,
    cache_report: Annotated[
        str, typer.Option(help="When replies tell cached tokens: start, end or never.")
    ] = "end",
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Replies come whole: no first token is seen.")
    ] = False,
    replace_after: Annotated[
        int | None, typer.Option(min=1, help="A new router after so many requests of one.")
    ] = None,
    leave: Annotated[
        list[str] | None, typer.Option(help="SECOND:REPLICA, a replica that leaves.")
    ] = None,
    join: Annotated[
        list[str] | None, typer.Option(help="SECOND:REPLICA, a replica that joins, empty.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Of a made trace: requests (agents: tasks) per second.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Of a made trace, seconds.")] = None,
    speed: Annotated[float, typer.Option(help="Divide all times by this.")] = 1.0,
    block_tokens: Annotated[
        int | None, typer.Option(min=1, help="Size of a block; default: 512, of bodies 256.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals, the ring and ties.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one for each core.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with table and plots here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace on simulated replicas, through this library's placements and others' rules.

    Shows hit rates beside their bound, times to first token, and how even the load is.
    """
    from prefixroute.cli.simulate import Source, Wanted, run_simulate  # noqa: PLC0415
    from prefixroute.simulator import ReplicaModel  # noqa: PLC0415

    try:
        source = Source(
            trace=trace,
            rate=rate,
            duration_s=duration,
            block_tokens=block_tokens,
            speed=speed,
            leave=leave or [],
            join=join or [],
        )
        wanted = Wanted(
            policies=policy or [],
            replicas=replicas,
            model=ReplicaModel(
                cache_blocks=cache_blocks,
                slots=slots,
                prefill_tokens_per_s=prefill_tokens_per_s,
                fixed_s=request_cost_ms / 1e3,
                decode_s=token_ms / 1e3,
                chunk_tokens=chunk_tokens,
                decode_slowdown=decode_slowdown,
                max_running=max_running,
            ),
            routers=routers,
            replace_after=replace_after,
            report_every_s=report_every,
            cache_report=cache_report,
            stream=not no_stream,
            seed=seed,
            jobs=jobs or os.cpu_count() or 1,
        )
        run_simulate(source, wanted, html=html, as_json=as_json)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def watch(
    url: Annotated[
        str,
        typer.Argument(
            help="An application's metrics, http://127.0.0.1:9100/metrics, or the server of a "
            "fleet, redis://cache-0:6379/0."
        ),
    ],
    *,
    interval: Annotated[float, typer.Option(min=0.05, help="Between two reads, seconds.")] = 2.0,
    window: Annotated[
        float, typer.Option(min=0.05, help="Rates and counts are of the last so many seconds.")
    ] = 30.0,
    namespace: Annotated[
        str, typer.Option(help="First part of the metrics' names, or of the keys in Redis.")
    ] = "prefixroute",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="The Redis server is one of a cluster.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once; of metrics, what an interval brings.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a line for each view, and nothing else.")
    ] = False,
) -> None:
    """Show endpoints as they are: load, hit rates, TTFT, spills, failures, what is hot.

    Reads only. Of a source that is lost the last view stays, with its age.

    Exit status 1: it was to be shown once, and cannot be read.
    """
    from prefixroute.cli.watch import Wanted, run_watch  # noqa: PLC0415

    wanted = Wanted(
        interval_s=interval,
        window_s=window,
        namespace=namespace,
        cluster=cluster,
        once=once,
        as_json=as_json,
    )
    try:
        run_watch(url, wanted)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
