"""``prefixroute simulate``: a trace through the product's placements and others' rules."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from prefixroute.errors import ConfigurationError
from prefixroute.simulator import (
    CacheReport,
    Change,
    PolicyResult,
    ReplicaModel,
    Simulation,
    Trace,
    agents,
    chats,
    policy_names,
    popular_prefixes,
    read_trace,
    simulate,
    system_prompts,
)
from prefixroute.simulator.plots import routers_text, seconds

__all__ = ["GENERATORS", "Source", "Wanted", "run_simulate"]

_Tell: TypeAlias = Callable[[str, int, int, int], None]

GENERATORS: Final[Mapping[str, Callable[..., Trace]]] = {
    "agents": agents,
    "chats": chats,
    "popular-prefixes": popular_prefixes,
    "system-prompts": system_prompts,
}
"""Traces that are made; a file of such a name is given as ``./chats``."""

_CACHE_REPORTS: Final = ", ".join(report.value for report in CacheReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the trace comes from.

    Args:
        trace: A file, or one of :data:`GENERATORS`.
        rate: Requests (of agents: tasks) per second that a generator makes.
        duration_s: Length of what a generator makes, seconds.
        block_tokens: Size of a block, tokens.
        speed: All times are divided by it.
        leave: Replicas that leave, as ``SECOND:REPLICA``.
        join: Replicas that join, as ``SECOND:REPLICA``.
    """

    trace: str
    rate: float | None = None
    duration_s: float | None = None
    block_tokens: int | None = None
    speed: float = 1.0
    leave: Sequence[str] = ()
    join: Sequence[str] = ()

    def load(self, seed: int) -> Trace:
        """Return the trace.

        Raises:
            ConfigurationError: It cannot be read or made, or an option does not fit.
        """
        trace = self._made(seed) if self.trace in GENERATORS else self._read()
        trace = trace if self.speed == 1.0 else trace.faster(self.speed)
        changes = [_change("--leave", said, joins=False) for said in self.leave]
        changes += [_change("--join", said, joins=True) for said in self.join]
        if not changes:
            return trace
        ordered = sorted([*trace.changes, *changes], key=lambda change: change.at_s)
        return replace(trace, changes=tuple(ordered))

    def _made(self, seed: int) -> Trace:
        rate = "tasks_per_s" if self.trace == "agents" else "requests_per_s"
        options = {
            rate: self.rate,
            "duration_s": self.duration_s,
            "block_tokens": self.block_tokens,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return GENERATORS[self.trace](**given, seed=seed)

    def _read(self) -> Trace:
        for option, value in (("--rate", self.rate), ("--duration", self.duration_s)):
            if value is not None:
                raise ConfigurationError(
                    f"{option}={value:g} is for generated traces ({', '.join(GENERATORS)}), and "
                    f"{self.trace!r} is a file; leave it out, or use --speed"
                )
        path = Path(self.trace)
        if not path.exists():
            raise ConfigurationError(
                f"TRACE {self.trace!r} must be a file or one of: {', '.join(GENERATORS)}"
            )
        try:
            return read_trace(path, block_tokens=self.block_tokens)
        except OSError as error:
            raise ConfigurationError(f"TRACE {self.trace!r}: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be simulated; see :func:`prefixroute.simulator.simulate`.

    Args:
        policies: Names of rules; none: all.
        replicas: How many there are.
        model: What they are like.
        routers: Numbers of routers, separated by commas.
        replace_after: A router is replaced after this many requests.
        report_every_s: Interval of load reports, seconds.
        cache_report: ``start``, ``end`` or ``never``.
        stream: Whether replies are streamed.
        seed: Of all that is random.
        jobs: Processes.
    """

    policies: Sequence[str]
    replicas: int
    model: ReplicaModel
    routers: str
    replace_after: int | None
    report_every_s: float | None
    cache_report: str
    stream: bool
    seed: int
    jobs: int

    def run(self, trace: Trace, progress: _Tell | None) -> Simulation:
        """Simulate."""
        return simulate(
            trace,
            policies=self.policies or None,
            replicas=self.replicas,
            model=self.model,
            routers=_counts(self.routers),
            replace_after=self.replace_after,
            report_every_s=self.report_every_s,
            cache_report=_cache_report(self.cache_report),
            stream=self.stream,
            seed=self.seed,
            jobs=self.jobs,
            progress=progress,
        )


def run_simulate(source: Source, wanted: Wanted, *, html: Path | None, as_json: bool) -> None:
    """Simulate, and print a table or one JSON object; write a page if one is asked for.

    Raises:
        ConfigurationError: Something that cannot be simulated.
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise ConfigurationError(
            f"--html {str(html)!r} must be in a folder that exists: make it first"
        )
    counts = _counts(wanted.routers)  # what is wrong is said before the trace is read
    _cache_report(wanted.cache_report)
    trace = source.load(wanted.seed)
    runs = len(wanted.policies or policy_names()) * len(counts)
    with _progress(runs, len(trace), whole_runs=wanted.jobs > 1) as tell:
        simulation = wanted.run(trace, tell)
    command = shlex.join(["prefixroute", *sys.argv[1:]])
    if html is not None:
        html.write_text(simulation.to_html(command=command), encoding="utf-8")
    if as_json:
        print(json.dumps({"command": command, **simulation.to_dict()}))
        return
    console = Console(highlight=False)
    for routers in simulation.routers:
        console.print(_table(simulation, routers), "")
    console.print(
        "TTFT in seconds, then its quantiles; requests, work: the busiest replica over the mean. "
        f"Bound: what one cache as large as all finds, {simulation.pooled_hit_rate:.1%} of the "
        f"prompt tokens. {simulation.requests:,} requests in {simulation.duration_s:,.0f} s, "
        f"{simulation.replicas} replicas."
    )
    if html is not None:
        console.print(f"Written: {html}", markup=False)


# -- options ---------------------------------------------------------------------------


def _counts(routers: str) -> list[int]:
    try:
        return [int(count) for count in routers.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"--routers {routers!r} must be whole numbers separated by commas, such as 1,32"
        ) from None


def _cache_report(name: str) -> CacheReport:
    try:
        return CacheReport(name)
    except ValueError:
        raise ConfigurationError(
            f"--cache-report {name!r} must be one of: {_CACHE_REPORTS}"
        ) from None


def _change(option: str, said: str, *, joins: bool) -> Change:
    at_s, _, replica = said.partition(":")
    try:
        change = Change(at_s=float(at_s), replica=int(replica), joins=joins)
    except ValueError:
        change = None
    if change is None or not change.at_s >= 0.0 or change.replica < 0:
        raise ConfigurationError(
            f"{option} {said!r} must be SECOND:REPLICA, such as 120:3 for replica 3 at 120 s"
        )
    return change


# -- what is shown ---------------------------------------------------------------------


@contextmanager
def _progress(runs: int, requests: int, *, whole_runs: bool) -> Iterator[_Tell | None]:
    """Show how far it is, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description:30}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("requests", total=runs * requests)
        done: dict[tuple[str, int], int] = {}

        def tell(policy: str, routers: int, sent: int, total: int) -> None:
            del total
            done[policy, routers] = sent
            said = f"{policy}, routers: {routers}" if not whole_runs else f"done: {len(done)} runs"
            progress.update(task, completed=sum(done.values()), description=said)

        yield tell


def _table(simulation: Simulation, routers: int) -> Table:
    """Return the results with one number of routers, narrow enough for 80 columns."""
    moved = simulation.keys_moved
    title = f"{simulation.trace}, {routers_text(routers)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("\npolicy", no_wrap=True)
    names = ["hit\nrate", "of\nbound", "TTFT\nmean", "\nP50", "\nP90", "\nP99"]
    for name in [*names, "re-\nquests", "\nwork", *(["keys\nmoved"] if moved else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for result in simulation.with_routers(routers):
        table.add_row(*_cells(simulation, result, moved=moved))
    return table


def _cells(simulation: Simulation, result: PolicyResult, *, moved: bool) -> list[str]:
    times = (result.ttft_mean_s, result.ttft_p50_s, result.ttft_p90_s, result.ttft_p99_s)
    keys = "" if result.keys_moved is None else f"{result.keys_moved:.1%}"
    return [
        result.policy,
        f"{result.hit_rate:.1%}",
        f"{simulation.of_bound(result):.0%}",
        *(seconds(value) for value in times),
        f"{result.requests_max_over_mean:.2f}",
        f"{result.work_max_over_mean:.2f}",
        *([keys] if moved else []),
    ]
