"""An endpoint joins in the middle: ``python -m benchmarks.scale_out --json``, on real llama.cpp.

Three servers and a fourth that joins after a third of the chats, on emptied caches: with
``Router(remember_bodies=...)``, which primes the newcomer, and without. Told are the hit rate of
the newcomer's first requests, of everybody else's meanwhile, and how soon the newcomer had them.
Run it from a checkout, after ``python -m tests.engines.setup``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from openai import OpenAI

from benchmarks.fleets import FLEETS, machine, packages
from prefixroute import Event, Router
from prefixroute.core.events import EndpointPrimed
from tests.engines.chat import Message, Reply, openai_chat
from tests.engines.placements import endpoint_of, named_endpoints
from tests.engines.replica import Replica, Replicas
from tests.engines.workload import WorkloadSpec, run_workload

SPEC: Final = WorkloadSpec(conversations=6, turns=6)
FIRST: Final = 50
"""Requests of the newcomer that are looked at."""
REMEMBERED: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request: when it was begun, and what it came to."""

    began: float
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What became of one run.

    Attributes:
        before: Requests begun before the newcomer joined.
        newcomer: Its first requests.
        others: The others' while it had those.
        joined: When it joined, monotonic seconds.
        primed: Prefixes that it was primed with.
        primed_s: How long that took, seconds; 0: it was not primed.
    """

    before: Sequence[Sent]
    newcomer: Sequence[Sent]
    others: Sequence[Sent]
    joined: float
    primed: int
    primed_s: float

    def row(self) -> Mapping[str, object]:
        """Return the figures."""
        last = self.newcomer[-1].began - self.joined if self.newcomer else None
        return {
            "newcomer": _figures(self.newcomer),
            "others": _figures(self.others),
            "everybody": _figures([*self.newcomer, *self.others]),
            "before": _figures(self.before),
            "newcomers_last_of_these_s": last,
            "primed": self.primed,
            "primed_s": self.primed_s,
        }


def _figures(sent: Iterable[Sent]) -> Mapping[str, float | int | None]:
    replies = [one.reply for one in sent]
    if not replies:
        return {"requests": 0, "hit_rate": None, "ttft_mean_s": None}
    return {
        "requests": len(replies),
        "hit_rate": sum(r.cached_tokens for r in replies) / sum(r.prompt_tokens for r in replies),
        "ttft_mean_s": statistics.fmean(r.ttft_s for r in replies),
        "first_hit_rate": replies[0].cached_tokens / replies[0].prompt_tokens,
    }


class _Priming:
    """Notes what the newcomer was primed with."""

    def __init__(self) -> None:
        self.event: EndpointPrimed | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, EndpointPrimed):
            self.event = event


def grow(replicas: Replicas[Replica], spec: WorkloadSpec, *, remembered: int) -> Growth:
    """Send the chats, and let the last replica join after a third of them."""
    replicas.clear()
    *early, newcomer = named_endpoints(replicas.urls)
    total = spec.assistants * spec.conversations * spec.turns
    priming, sent, lock = _Priming(), list[Sent](), threading.Lock()
    begun, joined = 0, 0.0
    with (
        Router(early, seed=spec.seed, remember_bodies=remembered, observers=[priming]) as router,
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
    ):

        def send(messages: Sequence[Message]) -> Reply:
            nonlocal begun, joined
            with lock:
                begun += 1
                if begun == total // 3:
                    joined = time.monotonic()
                    router.add(newcomer)
            began = time.monotonic()
            reply = openai_chat(client, messages, endpoint_of=endpoint_of)
            with lock:
                sent.append(Sent(began=began, reply=reply))
            return reply

        run_workload(send, spec, block_tokens=replicas.block_tokens)
    sent.sort(key=lambda one: one.began)
    own = [one for one in sent if one.reply.endpoint == newcomer.id][:FIRST]
    until = own[-1].began if own else sent[-1].began
    others = [one for one in sent if one.reply.endpoint != newcomer.id]
    return Growth(
        before=[one for one in others if one.began < joined],
        newcomer=own,
        others=[one for one in others if joined <= one.began <= until],
        joined=joined,
        primed=priming.event.prefixes if priming.event is not None else 0,
        primed_s=priming.event.took_s if priming.event is not None else 0.0,
    )


def run(sets: int, spec: WorkloadSpec) -> Mapping[str, Sequence[Growth]]:
    """Return the runs of each way, one for each set of prompts."""
    ways = {"cold": 0, "primed": REMEMBERED}
    found: dict[str, list[Growth]] = {name: [] for name in ways}
    with FLEETS["llama"].replicas() as replicas:
        for seed in range(sets):
            for name, remembered in ways.items():
                growth = grow(replicas, replace(spec, seed=seed), remembered=remembered)
                print(f"set {seed} {name:7} {growth.row()}", file=sys.stderr, flush=True)
                found[name].append(growth)
    return found


def table(ways: Mapping[str, Sequence[Growth]]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        f"| set | way | newcomer's first {FIRST} | its first of all | the others meanwhile "
        "| everybody | primed | its last of these after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in ways.items():
        for seed, growth in enumerate(runs):
            row: Mapping[str, Any] = growth.row()
            new, others, every = row["newcomer"], row["others"], row["everybody"]
            lines.append(
                f"| {seed} | {name} | {new['hit_rate']:.1%} of {new['requests']} requests "
                f"| {new['first_hit_rate']:.1%} | {others['hit_rate']:.1%} "
                f"| {every['hit_rate']:.1%} | {growth.primed} in {growth.primed_s:.1f} s "
                f"| {row['newcomers_last_of_these_s']:.0f} s |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=int, default=3, help="sets of prompts")
    parser.add_argument("--conversations", type=int, default=SPEC.conversations)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    spec = replace(SPEC, conversations=options.conversations)
    ways = run(options.sets, spec)
    if not options.json:
        print(table(ways))
        return
    fleet = FLEETS["llama"]
    report = {
        "engine": {"name": "llama", "replicas": fleet.count, **fleet.versions()},
        "packages": packages("prefixroute", "openai", "httpx2"),
        "machine": machine(),
        "workload": asdict(spec),
        "first": FIRST,
        "ways": {name: [growth.row() for growth in runs] for name, runs in ways.items()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
