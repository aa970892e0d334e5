"""``simulate``: a trace, several rules, several numbers of routers, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Final, TypeAlias

from prefixroute.core.checks import check_int
from prefixroute.errors import ConfigurationError
from prefixroute.simulator.cache import hit_rate
from prefixroute.simulator.policies import PolicyLike, policy_factory, policy_names
from prefixroute.simulator.replica import ReplicaModel, make_cache
from prefixroute.simulator.report import PolicyResult, Simulation
from prefixroute.simulator.run import CacheReport, Setting, run
from prefixroute.simulator.traces import Trace

__all__ = ["simulate"]

Watcher: TypeAlias = Callable[[str, int, int, int], None]
"""Told now and then: rule, routers, requests sent, requests in all."""

_MODEL: Final = ReplicaModel()

_Task: TypeAlias = tuple[PolicyLike, Setting]
_Work: TypeAlias = Callable[[_Task], PolicyResult]

_work: ContextVar[_Work] = ContextVar("_work")
"""What a process of a pool does with a task; it holds the trace, which is sent there once."""


def simulate(  # noqa: PLR0913 - the settings of a run, all with defaults
    trace: Trace,
    *,
    policies: Iterable[PolicyLike] | None = None,
    replicas: int | Sequence[ReplicaModel] = 8,
    model: ReplicaModel = _MODEL,
    routers: int | Iterable[int] = 1,
    replace_after: int | None = None,
    report_every_s: float | None = None,
    cache_report: CacheReport = CacheReport.END,
    stream: bool = True,
    seed: int = 0,
    jobs: int = 1,
    progress: Watcher | None = None,
) -> Simulation:
    """Replay a trace on simulated replicas, through each rule.

    Args:
        trace: What comes; times that are given in steps are spread within these.
        policies: Names of :func:`policy_names`, placements of the product, or factories;
            default: all names.
        replicas: How many there are, all like ``model``, or one model for each.
        model: What the replicas are like.
        routers: Routers that share nothing, each request goes through a random one; several
            numbers are tried one after the other.
        replace_after: A router is replaced by a new one after this many requests.
        report_every_s: Interval at which the routers are told the replicas' running and waiting
            counts, seconds; ``None``: never.
        cache_report: When replies report how many prompt tokens were cached.
        stream: Whether replies are streamed; if not, no router sees a first token.
        seed: Of the arrivals within steps, the ring, and the routers' ties.
        jobs: Processes; more than one need policies that are names or placements.
        progress: Told now and then how far it is; with several processes, of each run's end.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.
    """
    models = _models(replicas, model)
    check_int("simulate", "jobs", jobs, 1)
    counts = [routers] if isinstance(routers, int) else list(routers)
    if not counts:
        raise ConfigurationError("simulate(routers=[]) must have at least one number of routers")
    first = Setting(
        routers=counts[0],
        replace_after=replace_after,
        report_every_s=report_every_s,
        cache_report=cache_report,
        stream=stream,
        seed=seed,
    )
    settings = [replace(first, routers=count) for count in counts]
    wanted = list(policies) if policies is not None else list(policy_names())
    for policy in wanted:
        policy_factory(policy)  # refuses a name before anything is run
    spread = trace.spread(seed)
    tasks = [(policy, setting) for setting in settings for policy in wanted]
    work = partial(_one, spread, models)
    if jobs == 1:
        results = [work(task, progress) for task in tasks]
    else:
        results = _in_processes(work, tasks, jobs, progress)
    return Simulation(
        trace=trace.name,
        requests=len(trace),
        duration_s=spread.duration_s,
        prompt_tokens=trace.tokens,
        replicas=len(models),
        seed=seed,
        pooled_hit_rate=hit_rate(spread, make_cache(models, spread.block_tokens)),
        results=tuple(results),
        block_tokens=spread.block_tokens,
        models=tuple(models),
        setting=first,
        changes=spread.changes,
    )


def _models(replicas: int | Sequence[ReplicaModel], model: ReplicaModel) -> list[ReplicaModel]:
    if isinstance(replicas, int):
        check_int("simulate", "replicas", replicas, 1)
        return [model] * replicas
    if not replicas:
        raise ConfigurationError("simulate(replicas=[]) must name at least one replica's model")
    return list(replicas)


def _in_processes(
    work: _Work, tasks: Sequence[_Task], jobs: int, watcher: Watcher | None
) -> list[PolicyResult]:
    """Return the results of all tasks, in their order."""
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)) or 1,
        mp_context=get_context("spawn"),
        initializer=_start,
        initargs=(work,),
    )
    with pool:
        futures = [pool.submit(_do, task) for task in tasks]
        for future in as_completed(futures):
            result = future.result()
            if watcher is not None:
                watcher(result.policy, result.routers, result.requests, result.requests)
        return [future.result() for future in futures]


def _start(work: _Work) -> None:
    _work.set(work)


def _do(task: _Task) -> PolicyResult:
    return _work.get()(task)


def _one(
    trace: Trace,
    models: Sequence[ReplicaModel],
    task: _Task,
    watcher: Watcher | None = None,
) -> PolicyResult:
    policy, setting = task
    factory = policy_factory(policy)
    tell = None if watcher is None else partial(watcher, factory.name, setting.routers)
    outcome = run(trace, factory, models, setting, progress=tell)
    return PolicyResult.of(factory.name, setting.routers, outcome, source=factory.source)
