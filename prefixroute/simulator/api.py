"""``simulate``: a trace, several rules, several numbers of routers, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Final, TypeAlias

from prefixroute.core.checks import check_int
from prefixroute.errors import ConfigurationError
from prefixroute.simulator.cache import pooled_hit_rate
from prefixroute.simulator.policies import PolicyLike, policy_factory, policy_names
from prefixroute.simulator.replica import ReplicaModel
from prefixroute.simulator.report import PolicyResult, Simulation
from prefixroute.simulator.run import CacheReport, Setting, run
from prefixroute.simulator.traces import Trace

__all__ = ["simulate"]

Watcher: TypeAlias = Callable[[str, int, int, int], None]
"""Told now and then: rule, routers, requests sent, requests in all."""

_MODEL: Final = ReplicaModel()


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
        progress: Told now and then how far it is.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.
    """
    models = _models(replicas, model)
    check_int("simulate", "jobs", jobs, 1)
    counts = [routers] if isinstance(routers, int) else list(routers)
    first = Setting(
        routers=counts[0] if counts else 1,
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
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(work, tasks))
    return Simulation(
        trace=trace.name,
        requests=len(trace),
        duration_s=spread.duration_s,
        prompt_tokens=trace.tokens,
        replicas=len(models),
        seed=seed,
        pooled_hit_rate=pooled_hit_rate(spread, sum(m.cache_blocks for m in models)),
        results=tuple(results),
    )


def _models(replicas: int | Sequence[ReplicaModel], model: ReplicaModel) -> list[ReplicaModel]:
    if isinstance(replicas, int):
        check_int("simulate", "replicas", replicas, 1)
        return [model] * replicas
    if not replicas:
        raise ConfigurationError("simulate(replicas=[]) must name at least one replica's model")
    return list(replicas)


def _one(
    trace: Trace,
    models: Sequence[ReplicaModel],
    task: tuple[PolicyLike, Setting],
    watcher: Watcher | None = None,
) -> PolicyResult:
    policy, setting = task
    factory = policy_factory(policy)
    tell = None if watcher is None else partial(watcher, factory.name, setting.routers)
    outcome = run(trace, factory, models, setting, progress=tell)
    return PolicyResult.of(factory.name, setting.routers, outcome)
