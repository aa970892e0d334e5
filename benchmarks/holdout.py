"""Does a holdout tell the truth? ``python -m benchmarks.holdout --json``, on real llama.cpp.

The same chats three times, on emptied caches: all placed by ``Nested``, all placed round robin, and
by ``Router(holdout=...)``, which places a part of the conversations round robin. The difference of
the first two runs is what two fleets differ by; the third reports a gain with an interval. Run it
from a checkout, after ``python -m tests.engines.setup``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import msgspec
from openai import OpenAI

from benchmarks.fleets import FLEETS, machine, packages
from prefixroute import Gain, HoldoutStats, Nested, RoundRobin, Router
from tests.engines.chat import Message, Reply, openai_chat
from tests.engines.placements import endpoint_of, named_endpoints, run_placement
from tests.engines.replica import Replica, Replicas
from tests.engines.workload import WorkloadResult, WorkloadSpec, run_workload

SPEC: Final = WorkloadSpec(conversations=8, turns=4)
"""96 conversations: enough for a part of them to be compared with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One set of prompts: two whole runs, and what a holdout in a third reported."""

    routed: WorkloadResult
    baseline: WorkloadResult
    holdout: HoldoutStats

    @property
    def hit_rate_gain(self) -> float:
        """By which the runs differ."""
        return self.routed.hit_rate - self.baseline.hit_rate

    @property
    def ttft_gain_s(self) -> float:
        """By which the runs' mean times to first token differ, seconds."""
        return _mean_ttft_s(self.baseline) - _mean_ttft_s(self.routed)

    def row(self) -> Mapping[str, object]:
        """Return the figures."""
        held = self.holdout
        return {
            "ab": {
                "hit_rate": {
                    "routed": self.routed.hit_rate,
                    "baseline": self.baseline.hit_rate,
                    "gain": self.hit_rate_gain,
                },
                "ttft_mean_s": {
                    "routed": _mean_ttft_s(self.routed),
                    "baseline": _mean_ttft_s(self.baseline),
                    "gain": self.ttft_gain_s,
                },
            },
            "holdout": {
                "hit_rate_gain": _of(held.hit_rate_gain, self.hit_rate_gain),
                "ttft_gain_s": _of(held.ttft_gain_s, self.ttft_gain_s),
                **msgspec.to_builtins(held),
                "sentence": held.sentence,
            },
        }


def _of(gain: Gain | None, ab: float) -> Mapping[str, object] | None:
    return (
        None
        if gain is None
        else {**msgspec.to_builtins(gain), "holds_ab": gain.low <= ab <= gain.high}
    )


def _mean_ttft_s(result: WorkloadResult) -> float:
    return statistics.fmean(exchange.reply.ttft_s for exchange in result.exchanges)


def run_holdout(replicas: Replicas[Replica], share: float, spec: WorkloadSpec) -> HoldoutStats:
    """Send the chats through a router that holds a share of them out; return what it reports."""
    replicas.clear()
    with (
        Router(named_endpoints(replicas.urls), holdout=share, seed=spec.seed) as router,
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
    ):

        def send(messages: Sequence[Message]) -> Reply:
            return openai_chat(client, messages, endpoint_of=endpoint_of)

        run_workload(send, spec, block_tokens=replicas.block_tokens)
        holdout = router.stats().holdout
    if holdout is None:
        raise TypeError("the router was made with a holdout")
    return holdout


def compare(replicas: Replicas[Replica], share: float, spec: WorkloadSpec) -> Comparison:
    """Run one set of prompts."""
    routed = run_placement(replicas, Nested(), spec)
    print(f"set {spec.seed} routed   {routed}", file=sys.stderr, flush=True)
    baseline = run_placement(replicas, RoundRobin(), spec)
    print(f"set {spec.seed} baseline {baseline}", file=sys.stderr, flush=True)
    holdout = run_holdout(replicas, share, spec)
    print(f"set {spec.seed} {holdout.sentence}", file=sys.stderr, flush=True)
    return Comparison(routed=routed, baseline=baseline, holdout=holdout)


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the gains as a table in Markdown."""
    lines = [
        "| set | cached tokens, A/B | holdout (95 %) | mean TTFT, A/B | holdout (95 %) |",
        "|---|---|---|---|---|",
    ]
    for one in comparisons:
        hits, times = one.holdout.hit_rate_gain, one.holdout.ttft_gain_s
        points = "" if hits is None else f"{hits.value:+.3f} ({hits.low:+.3f} to {hits.high:+.3f})"
        seconds = (
            "" if times is None else f"{times.value:+.3f} s ({times.low:+.3f} to {times.high:+.3f})"
        )
        lines.append(
            f"| {one.routed.spec.seed} | {one.hit_rate_gain:+.3f} | {points} "
            f"| {one.ttft_gain_s:+.3f} s | {seconds} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=int, default=3, help="sets of prompts")
    parser.add_argument("--share", type=float, default=0.25, help="of conversations held out")
    parser.add_argument("--conversations", type=int, default=SPEC.conversations)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    fleet = FLEETS["llama"]
    spec = replace(SPEC, conversations=options.conversations)
    with fleet.replicas() as replicas:
        found = [
            compare(replicas, options.share, replace(spec, seed=seed))
            for seed in range(options.sets)
        ]
    if not options.json:
        print(table(found))
        return
    report: dict[str, Any] = {
        "engine": {"name": "llama", "replicas": fleet.count, **fleet.versions()},
        "packages": packages("prefixroute", "openai", "httpx2"),
        "machine": machine(),
        "share": options.share,
        "workload": asdict(spec),
        "sets": [one.row() for one in found],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
