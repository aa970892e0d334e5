"""Placements on four real llama.cpp replicas: ``python -m benchmarks.engines``.

The same chats at random, round robin, ``Fixed`` and ``Nested``, over several sets of prompts; all
of them in one run, in turn, on emptied caches. Run it from a checkout: it uses the replicas of
``tests.engines`` (``python -m tests.engines.setup`` builds them).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.engines.llama import LlamaReplicas
from tests.engines.placements import PLACEMENTS, run_placement
from tests.engines.workload import FULL, REPLICAS, SLOTS, WorkloadResult


def run(sets: int, turns: int) -> dict[str, list[WorkloadResult]]:
    """Return the results of each placement, one for each set of prompts."""
    results: dict[str, list[WorkloadResult]] = {name: [] for name in PLACEMENTS}
    with LlamaReplicas(REPLICAS, slots=SLOTS) as replicas:
        for seed in range(sets):
            for name, placement in PLACEMENTS.items():
                result = run_placement(replicas, placement, replace(FULL, seed=seed, turns=turns))
                print(f"set {seed} {name:12} {result}", file=sys.stderr)
                results[name].append(result)
    return results


def summary(results: Sequence[WorkloadResult]) -> Mapping[str, object]:
    """Return the means over sets of prompts, with the spread of the hit rate."""
    rates = [result.hit_rate for result in results]
    counts = [list(result.requests_per_endpoint.values()) for result in results]
    return {
        "hit_rate": statistics.mean(rates),
        "hit_rate_min": min(rates),
        "hit_rate_max": max(rates),
        "ceiling": statistics.mean(result.ceiling for result in results),
        "ttft_p50_s": statistics.mean(result.ttft_s(0.5) for result in results),
        "ttft_p95_s": statistics.mean(result.ttft_s(0.95) for result in results),
        "max_over_mean_requests": statistics.mean(max(c) * REPLICAS / sum(c) for c in counts),
    }


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=int, default=5, help="sets of prompts")
    parser.add_argument("--turns", type=int, default=FULL.turns, help="turns of each chat")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    table = {name: summary(r) for name, r in run(options.sets, options.turns).items()}
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({"sets": options.sets, "turns": options.turns, **machine, **table}))
        return
    for name, row in table.items():
        print(name, {key: round(float(str(value)), 3) for key, value in row.items()})


if __name__ == "__main__":
    main()
