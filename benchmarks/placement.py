"""Placement against its goals: ``python -m benchmarks.placement [--json]``.

Six workloads and six settings, several seeds; in each, mean time to first token relative to a
prefix tree that sees all traffic (the rule of SGLang's router), as a geometric mean over the
workloads. The prototype of the placement and, if asked for, other rules run beside the product's.

The traces of Mooncake are read from ``--traces``, or from $PREFIXROUTE_TRACES: see docs/ for where
to get them. Without them workloads a, b and c are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.prototype import PROTOTYPE
from prefixroute import Nested
from prefixroute.simulator import (
    CacheReport,
    PolicyFactory,
    ReplicaModel,
    Trace,
    chats,
    pooled_hit_rate,
    popular_prefixes,
    read_trace,
    system_prompts,
)
from prefixroute.simulator.policies import policy_factory
from prefixroute.simulator.report import PolicyResult
from prefixroute.simulator.run import Setting, run

TRACES: Final = Path(os.environ.get("PREFIXROUTE_TRACES", "../shared/traces"))
REPLICAS: Final[Mapping[str, tuple[int, int]]] = {
    "a": (8, 4000),
    "b": (16, 2000),
    "c": (8, 2500),
    "d": (8, 400),
    "e": (8, 1500),
    "f": (32, 400),
}
"""Replicas of each workload, and blocks in the cache of each."""

YARDSTICK: Final = "prefix-tree"
Row: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A trace and the replicas that it is replayed on."""

    name: str
    trace: Trace
    replicas: int
    cache_blocks: int

    @property
    def models(self) -> list[ReplicaModel]:
        """The replicas."""
        return [ReplicaModel(cache_blocks=self.cache_blocks)] * self.replicas

    @property
    def pooled(self) -> float:
        """Hit rate of one cache as large as all."""
        return pooled_hit_rate(self.trace, self.replicas * self.cache_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A setting, what the prototype reached in it, and what is wanted."""

    setting: Setting
    prototype: float | None
    goal: float


def setting(
    routers: int, every: float | None = None, after: int | None = None, *, cached: bool = True
) -> Setting:
    """Return a setting of the table."""
    return Setting(
        routers=routers,
        report_every_s=every,
        replace_after=after,
        cache_report=CacheReport.START if cached else CacheReport.NEVER,
    )


GOALS: Final[Mapping[str, Goal]] = {
    "1": Goal(setting=setting(1), prototype=0.44, goal=0.42),
    "32": Goal(setting=setting(32), prototype=0.75, goal=0.70),
    "32 counts": Goal(setting=setting(32, 1.0), prototype=0.59, goal=0.56),
    "64 counts": Goal(setting=setting(64, 1.0), prototype=0.60, goal=0.57),
    "32 replaced": Goal(setting=setting(32, after=50), prototype=0.83, goal=0.75),
    "32 no cached": Goal(setting=setting(32, cached=False), prototype=None, goal=0.85),
}


HIT_GOAL: Final = 0.96
"""Of 32 routers that share nothing: hit rate over that of one pooled cache, (a) to (d)."""
EVEN_GOALS: Final[Mapping[str, float]] = {"a": 1.12, "b": 1.12, "c": 1.12, "d": 1.20}
"""Of 32 routers that share nothing: requests of the fullest endpoint over the mean."""
MEMORY_GOAL: Final = 0.03
"""How much longer the TTFT may be with bounded tables than with unbounded ones."""
UNBOUNDED: Final = "unbounded"
"""Nested with tables that forget nothing; by default they hold 262,144 prefixes, about 32 MB."""
PLACEMENTS: Final[Mapping[str, PolicyFactory]] = {
    PROTOTYPE.name: PROTOTYPE,
    UNBOUNDED: policy_factory(Nested(max_prefixes=2**40)),
}


def workload(name: str, seed: int, traces: Path) -> Workload | None:
    """Return a workload; ``None``: its trace is not there."""
    replicas, blocks = REPLICAS[name]
    file = traces / f"mooncake_{'synthetic' if name == 'c' else 'conversation'}.jsonl"
    match name:
        case "a" | "b" | "c":
            if not file.exists():
                return None
            trace = read_trace(file).spread(seed)
            trace = trace.faster(3.0) if name == "b" else trace
        case "d":
            trace = system_prompts(seed=seed)
        case "e":
            trace = chats(seed=seed)
        case _:
            trace = popular_prefixes(seed=seed)
    return Workload(name=name, trace=trace, replicas=replicas, cache_blocks=blocks)


def measure(
    task: tuple[str, int], *, traces: Path, policies: Sequence[str], settings: Sequence[str]
) -> dict[tuple[str, str, str, int], Row]:
    """Return figures of one workload and seed: (policy, setting, workload, seed) -> figures."""
    name, seed = task
    load = workload(name, seed, traces)
    if load is None:
        return {}
    base = result(load, YARDSTICK, setting(1), seed).ttft_mean_s
    pooled = load.pooled
    rows: dict[tuple[str, str, str, int], Row] = {}
    for policy in policies:
        for label in settings:
            got = result(load, policy, GOALS[label].setting, seed)
            rows[policy, label, name, seed] = {
                "ttft": got.ttft_mean_s / base,
                "ttft_s": got.ttft_mean_s,
                "hit": got.hit_rate / pooled,
                "max_over_mean": got.requests_max_over_mean,
                "decisions_per_s": got.decisions_per_s,
            }
            print(f"{policy} {label} {name}{seed} {got.ttft_mean_s / base:.3f}", file=sys.stderr)
    return rows


def result(load: Workload, policy: str, how: Setting, seed: int) -> PolicyResult:
    """Return the result of one run."""
    factory = PLACEMENTS.get(policy) or policy_factory(policy)
    seeded = Setting(
        routers=how.routers,
        replace_after=how.replace_after,
        report_every_s=how.report_every_s,
        cache_report=how.cache_report,
        seed=seed,
    )
    outcome = run(load.trace, factory, load.models, seeded)
    return PolicyResult.of(factory.name, how.routers, outcome)


Rows: TypeAlias = Mapping[tuple[str, str, str, int], Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One policy in one setting: geometric means over the workloads, of all seeds."""

    policy: str
    setting: str
    means: Sequence[float]
    workloads: Mapping[str, Row]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return sum(self.means) / len(self.means)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON has it, with the goal."""
        goal = GOALS[self.setting]
        return {
            "policy": self.policy,
            "setting": self.setting,
            "ttft": self.mean,
            "ttft_min": min(self.means),
            "ttft_max": max(self.means),
            "prototype_reported": goal.prototype,
            "goal": goal.goal,
            "workloads": self.workloads,
        }

    def __str__(self) -> str:
        """Return a line for people."""
        cells = " ".join(
            f"{name}:{row['ttft']:.3f}/{row['hit']:.3f}/{row['max_over_mean']:.2f}"
            for name, row in self.workloads.items()
        )
        spread = f"[{min(self.means):.3f}-{max(self.means):.3f}]"
        goal = GOALS[self.setting].goal
        return (
            f"{self.policy:10} {self.setting:13} {self.mean:.3f} {spread} goal {goal:.2f}  {cells}"
        )


def summary(rows: Rows) -> list[Entry]:
    """Return an entry for each policy and setting."""
    entries = []
    for policy, label in dict.fromkeys(key[:2] for key in rows):
        part = {key[2:]: row for key, row in rows.items() if key[:2] == (policy, label)}
        means = [
            _geometric(row["ttft"] for (_, s), row in part.items() if s == seed)
            for seed in dict.fromkeys(seed for _, seed in part)
        ]
        workloads = dict(_per_workload(part))
        entries.append(Entry(policy=policy, setting=label, means=means, workloads=workloads))
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One goal, and how near it is: the mean over the seeds, with the lowest and the highest."""

    what: str
    goal: float
    reached: float
    lowest: float
    highest: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the mean, as it is shown, is good enough."""
        reached = round(self.reached, 2)
        return reached >= self.goal if self.at_least else reached <= self.goal

    def __str__(self) -> str:
        """Return a line for people."""
        sign = ">=" if self.at_least else "<="
        spread = f"({self.lowest:.3f} to {self.highest:.3f})"
        return (
            f"{self.what:42} {self.reached:.3f} {spread:18} {sign} {self.goal:.2f}  "
            f"{'met' if self.met else 'missed'}"
        )


def goals(rows: Rows) -> list[Reached]:
    """Return each goal that was measured, of the product's placement."""
    found = [
        _reached(f"TTFT: {entry.setting}", GOALS[entry.setting].goal, entry.means)
        for entry in summary(rows)
        if entry.policy == "nested"
    ]
    alone = {key[2:]: row for key, row in rows.items() if key[:2] == ("nested", "32")}
    for name, most in EVEN_GOALS.items():
        of_one = [row for (workload, _), row in alone.items() if workload == name]
        if of_one:
            hits, evens = [r["hit"] for r in of_one], [r["max_over_mean"] for r in of_one]
            what = f"32: hit rate over pooled, ({name})"
            found.append(_reached(what, HIT_GOAL, hits, at_least=True))
            found.append(_reached(f"32: max/mean requests, ({name})", most, evens))
    for label in GOALS:
        costs = [
            row["ttft"] / rows[UNBOUNDED, label, name, seed]["ttft"] - 1.0
            for (policy, label_, name, seed), row in rows.items()
            if policy == "nested" and label_ == label and (UNBOUNDED, label, name, seed) in rows
        ]
        if costs:
            what = f"{label}: TTFT lost to bounded tables"
            found.append(_reached(what, MEMORY_GOAL, costs))
    return found


def _reached(what: str, goal: float, values: Sequence[float], *, at_least: bool = False) -> Reached:
    return Reached(
        what=what,
        goal=goal,
        reached=sum(values) / len(values),
        lowest=min(values),
        highest=max(values),
        at_least=at_least,
    )


def _per_workload(part: Mapping[tuple[str, int], Row]) -> Iterator[tuple[str, Row]]:
    for name in dict.fromkeys(name for name, _ in part):
        seen = [row for (n, _), row in part.items() if n == name]
        yield name, {key: sum(row[key] for row in seen) / len(seen) for key in seen[0]}


def _geometric(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds")
    parser.add_argument("--quick", action="store_true", help="one seed, settings 1 and 32")
    parser.add_argument("--workloads", default="a,b,c,d,e,f", help="which of them")
    parser.add_argument("--settings", default=",".join(GOALS), help="which of them")
    parser.add_argument("--policies", default="nested,prototype", help="which rules")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where Mooncake's traces are")
    options = parser.parse_args()
    settings = ["1", "32"] if options.quick else options.settings.split(",")
    seeds = 1 if options.quick else options.seeds
    tasks = [(name, seed) for name in options.workloads.split(",") for seed in range(seeds)]
    policies = options.policies.split(",")
    work = partial(measure, traces=options.traces, policies=policies, settings=settings)
    rows: dict[tuple[str, str, str, int], Row] = {}
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            for part in pool.map(work, tasks):
                rows |= part
    else:
        for task in tasks:
            rows |= work(task)
    entries = summary(rows)
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        table = [entry.to_dict() for entry in entries]
        met = [{**asdict(goal), "met": goal.met} for goal in goals(rows)]
        print(json.dumps({"seeds": seeds, **machine, "goals": met, "table": table}))
        return
    print("TTFT relative to a prefix tree that sees all traffic.")
    print("Per workload: TTFT / hit rate over that of one pooled cache / max over mean requests")
    for entry in entries:
        print(entry)
    for goal in goals(rows):
        print(goal)


if __name__ == "__main__":
    main()
