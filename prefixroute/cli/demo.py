"""``prefixroute demo``: the same chats spread at random and then routed, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from prefixroute.cli.workload import Outcome, Workload, run_workload
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Random_
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.errors import ConfigurationError
from prefixroute.router import Router

__all__ = ["run_demo"]

_REPLICAS: Final = 4
_CACHED_PROMPTS: Final = 8
"""System prompts that a simulated replica's cache holds: more than its share of the assistants,
fewer than all of them, as with a real service whose prompts outgrow one GPU's memory."""

_BLOCK_TOKENS: Final = 16


def run_demo(workload: Workload, *, endpoints: list[str], model: str | None, as_json: bool) -> None:
    """Run the workload at random and routed, and print the comparison."""
    if find_spec("openai") is None:
        sys.exit("prefixroute demo: openai is missing: pip install 'prefixroute[demo]'")
    console = Console(stderr=as_json, highlight=False)
    try:
        with _replicas(workload, endpoints, console) as replicas:
            name = model or _served_model(replicas[0].url)
            outcomes = _both(workload, replicas, name, console, quiet=as_json)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--endpoint") from None
    if as_json:
        print(json.dumps({phase: _as_dict(outcome) for phase, outcome in outcomes.items()}))
    else:
        _print_table(console, outcomes)
    failed = [error for outcome in outcomes.values() for error in outcome.errors]
    if failed:
        console.print(f"{len(failed)} requests failed, the first with {failed[0]}", markup=False)
        raise typer.Exit(1)


@contextmanager
def _replicas(workload: Workload, urls: list[str], console: Console) -> Iterator[list[Endpoint]]:
    """Give the real replicas, or simulated ones for as long as they are needed."""
    if urls:
        console.print(f"{len(urls)} replicas: {', '.join(urls)}", markup=False)
        yield [Endpoint(url) for url in urls]
        return
    from prefixroute.testing import EngineModel, FakeCluster  # noqa: PLC0415 - only the demo's

    tokens = workload.system_tokens * _CACHED_PROMPTS
    engine = EngineModel(
        block_tokens=_BLOCK_TOKENS,
        cache_blocks=tokens // _BLOCK_TOKENS,
        prefill_tokens_per_s=8000.0,
        request_overhead_s=0.005,
        decode_s_per_token=0.01,
    )
    console.print(
        f"{_REPLICAS} simulated engines on loopback (no model runs): each prefills 8,000 tokens/s "
        f"and caches {tokens:,} tokens, "
        f"about {_CACHED_PROMPTS} of {workload.assistants} system prompts."
    )
    with FakeCluster(_REPLICAS, model=engine, seed=workload.seed).serve() as served:
        # Their ports are drawn anew each time; a name has the same place on the ring every time.
        yield [Endpoint(url, id=f"replica-{index}") for index, url in enumerate(served)]


def _served_model(url: str) -> str:
    from openai import OpenAI, OpenAIError  # noqa: PLC0415 - an extra

    try:
        with OpenAI(base_url=url, api_key="-") as client:
            return next(iter(client.models.list())).id
    except (OpenAIError, StopIteration) as error:
        raise ConfigurationError(
            f"{url} does not list its models ({error}): give --model"
        ) from None


def _both(
    workload: Workload, replicas: list[Endpoint], model: str, console: Console, *, quiet: bool
) -> dict[str, Outcome]:
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[seen]}"),
    )
    placements: dict[str, Placement] = {"random": Random_(), "routed": Nested()}
    outcomes = {}
    with Progress(*columns, console=console, disable=quiet) as progress:
        for phase, placement in placements.items():
            task = progress.add_task(phase, total=workload.requests, seen="")

            def show(outcome: Outcome, task: Any = task) -> None:
                seen = f"hit rate {_percent(outcome.hit_rate)}"
                progress.update(task, completed=outcome.requests, seen=seen)

            outcomes[phase] = _run(workload, replicas, model, phase, placement, show)
    return outcomes


def _run(
    workload: Workload,
    replicas: list[Endpoint],
    model: str,
    phase: str,
    placement: Placement,
    show: Any,
) -> Outcome:
    from openai import OpenAI  # noqa: PLC0415 - an extra

    with (
        Router(replicas, placement=placement, peers=1, seed=workload.seed) as router,
        OpenAI(api_key="-", max_retries=0) as plain,
        router.wrap(plain) as client,
    ):
        return run_workload(
            client,
            model,
            workload,
            phase=phase,
            endpoint_of=lambda response: response.extensions["prefixroute"].endpoint.id,
            progress=show,
        )


def _as_dict(outcome: Outcome) -> dict[str, object]:
    return {
        "hit_rate": outcome.hit_rate,
        "ttft_p50_s": outcome.quantile_s(0.5),
        "ttft_p95_s": outcome.quantile_s(0.95),
        "requests": outcome.requests,
        "requests_per_endpoint": dict(sorted(outcome.per_endpoint.items())),
        "failed": len(outcome.errors),
        "seconds": outcome.seconds,
    }


def _print_table(console: Console, outcomes: dict[str, Outcome]) -> None:
    random, routed = outcomes["random"], outcomes["routed"]
    table = Table(title="The same chats, spread at random and routed by prefixroute")
    table.add_column("")
    for name in ("random", "routed", "change"):
        table.add_column(name, justify="right")
    table.add_row(
        "token hit rate",
        _percent(random.hit_rate),
        _percent(routed.hit_rate),
        _points(random, routed),
    )
    for name, q in (("TTFT P50", 0.5), ("TTFT P95", 0.95)):
        before, after = random.quantile_s(q), routed.quantile_s(q)
        change = f"{(after - before) / before:+.0%}" if before else "-"
        table.add_row(name, f"{before * 1000:.0f} ms", f"{after * 1000:.0f} ms", change)
    table.add_row("requests per endpoint", _spread(random), _spread(routed), "")
    console.print(table)
    if random.unreported:
        console.print(
            "Some replies did not say how many tokens were cached: vLLM says it with "
            "--enable-prompt-tokens-details, SGLang with --enable-cache-report."
        )


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _points(before: Outcome, after: Outcome) -> str:
    if before.hit_rate is None or after.hit_rate is None:
        return "-"
    return f"{(after.hit_rate - before.hit_rate) * 100:+.0f} points"


def _spread(outcome: Outcome) -> str:
    return " / ".join(str(count) for _, count in sorted(outcome.per_endpoint.items()))
