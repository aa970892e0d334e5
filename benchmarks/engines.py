"""Placements on real engines: ``python -m benchmarks.engines --engine llama|vllm --json``.

The same chats at random, round robin, through LiteLLM's Router, ``Fixed`` and ``Nested``, over
several sets of prompts; all of them in one run, in turn, on emptied caches. Run it from a checkout:
it uses the replicas of ``tests.engines`` (``python -m tests.engines.setup`` builds llama.cpp,
``python -m tests.engines.vllm_setup`` installs vLLM), and makes LiteLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final, TypeAlias

from benchmarks.fleets import FLEETS, Fleet, machine, packages
from benchmarks.litellm_peer import VARIANTS, Variant, litellm_version, run_litellm
from prefixroute import Placement
from tests.engines.placements import PLACEMENTS, run_placement
from tests.engines.replica import Replica, Replicas
from tests.engines.workload import WorkloadResult, WorkloadSpec

Policy: TypeAlias = Callable[[Replicas[Replica], WorkloadSpec], WorkloadResult]
"""Sends the chats of a spec to replicas whose caches it has emptied."""

Results: TypeAlias = Mapping[str, Sequence[WorkloadResult]]


def _placed(placement: Placement) -> Policy:
    return lambda replicas, spec: run_placement(replicas, placement, spec)


def _by_litellm(variant: Variant) -> Policy:
    return lambda replicas, spec: run_litellm(replicas, variant, spec)


POLICIES: Final[Mapping[str, Policy]] = {
    **{name: _placed(placement) for name, placement in PLACEMENTS.items()},
    **{name: _by_litellm(variant) for name, variant in VARIANTS.items()},
}


def run(fleet: Fleet, policies: Iterable[str], sets: int, spec: WorkloadSpec) -> Results:
    """Return the results of each policy, one for each set of prompts."""
    results: dict[str, list[WorkloadResult]] = {name: [] for name in policies}
    with fleet.replicas() as replicas:
        for seed in range(sets):
            for name, found in results.items():
                result = POLICIES[name](replicas, replace(spec, seed=seed))
                print(f"set {seed} {name:32} {result}", file=sys.stderr, flush=True)
                found.append(result)
    return results


def spread(values: Iterable[float]) -> Mapping[str, float]:
    """Return mean and range over the sets of prompts."""
    each = list(values)
    return {"mean": statistics.mean(each), "min": min(each), "max": max(each)}


def summary(results: Sequence[WorkloadResult], replicas: int) -> Mapping[str, object]:
    """Return what one policy came to over all sets of prompts."""
    counts = [result.requests_per_endpoint.values() for result in results]
    return {
        "hit_rate": spread(result.hit_rate for result in results),
        "ceiling": spread(result.ceiling for result in results),
        "ttft_p50_s": spread(result.ttft_s(0.5) for result in results),
        "ttft_p95_s": spread(result.ttft_s(0.95) for result in results),
        "max_over_mean_requests": spread(max(c) * replicas / sum(c) for c in counts),
        "longest_prompt_tokens": max(e.reply.prompt_tokens for r in results for e in r.exchanges),
    }


def table(policies: Mapping[str, Mapping[str, object]]) -> str:
    """Return the figures as a table in Markdown; means, the hit rate and P50 with their range."""
    lines = [
        "| policy | cached of prompt tokens | at most | TTFT P50 | TTFT P95 | max/mean requests |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in policies.items():
        cells = {key: value for key, value in row.items() if isinstance(value, Mapping)}
        hits, p50 = cells["hit_rate"], cells["ttft_p50_s"]
        lines.append(
            f"| {name} | {hits['mean']:.1%} ({hits['min']:.1%} to {hits['max']:.1%}) "
            f"| {cells['ceiling']['mean']:.1%} "
            f"| {p50['mean']:.2f} s ({p50['min']:.2f} to {p50['max']:.2f}) "
            f"| {cells['ttft_p95_s']['mean']:.2f} s "
            f"| {cells['max_over_mean_requests']['mean']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=FLEETS, default="llama")
    parser.add_argument("--sets", type=int, default=5, help="sets of prompts")
    parser.add_argument("--turns", type=int, help="turns of each chat")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    fleet = FLEETS[options.engine]
    spec = replace(fleet.spec, turns=options.turns or fleet.spec.turns)
    results = run(fleet, options.policies, options.sets, spec)
    policies = {name: summary(found, fleet.count) for name, found in results.items()}
    if not options.json:
        print(table(policies))
        return
    report = {
        "engine": {"name": options.engine, "replicas": fleet.count, **fleet.versions()},
        "packages": {**packages("prefixroute", "openai", "httpx2"), "litellm": litellm_version()},
        "machine": machine(),
        "sets": options.sets,
        "workload": asdict(spec),
        "policies": policies,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
