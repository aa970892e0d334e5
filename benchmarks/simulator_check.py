"""The simulator against real engines: ``python -m benchmarks.simulator_check [--json]``.

The same chats at random, round robin, ``Fixed`` and ``Nested`` on four real llama.cpp replicas; the
requests of the run at random are then a trace, which the simulator replays under each of the four
rules on replicas modelled like these: slots of whole prompts, and the prefill rate seen in that
run. So the simulator is shown one rule's traffic and has to foretell what the others do.

Run it from a checkout: it uses the replicas of ``tests.engines`` (``python -m tests.engines.setup``
builds them). ``--keep FOLDER`` writes what the engines did, and ``--from FOLDER`` reads it again.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import httpx
import msgspec

from prefixroute.core.request import read_prompt
from prefixroute.simulator import ReplicaModel, Request, Trace, block_prompt, simulate
from tests.engines.chat import Message, Reply
from tests.engines.llama import LlamaReplicas
from tests.engines.placements import PLACEMENTS, run_placement
from tests.engines.workload import FULL, REPLICAS, SLOTS

RECORDED: Final = "random"
"""The placement whose run becomes the trace."""

SIMULATED: Final[Mapping[str, str]] = {name: name.replace(" ", "-") for name in PLACEMENTS}
SEEDS: Final = 5
"""Simulations of each trace: what is left to chance is averaged."""

WITHIN: Final = 0.05
"""How close a hit rate is to come."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was sent, and what came of it.

    Attributes:
        at_s: When, seconds after the first.
        messages: The chat.
        token_ids: The prompt as the engine sees it.
        cached_tokens: Found in its cache.
        reply_tokens: Length of the reply.
        ttft_s: Time to its first token, seconds.
        endpoint: Who answered.
    """

    at_s: float
    messages: list[dict[str, str]]
    token_ids: list[int]
    cached_tokens: int
    reply_tokens: int
    ttft_s: float
    endpoint: str

    @property
    def uncached_tokens(self) -> int:
        """What had to be computed."""
        return len(self.token_ids) - self.cached_tokens


Log: TypeAlias = Sequence[Sent]
Logs: TypeAlias = Mapping[tuple[str, int], Log]
"""(placement, set of prompts) -> its requests."""


def measure(sets: int, turns: int) -> Logs:
    """Send the chats through each placement on real replicas."""
    logs: dict[tuple[str, int], Log] = {}
    with LlamaReplicas(REPLICAS, slots=SLOTS) as replicas:
        for seed in range(sets):
            for name, placement in PLACEMENTS.items():
                seen: list[tuple[float, Sequence[Message], Reply]] = []
                spec = replace(FULL, seed=seed, turns=turns)
                result = run_placement(
                    replicas, placement, spec, watch=lambda *one, seen=seen: seen.append(one)
                )
                print(f"set {seed} {name:12} {result}", file=sys.stderr)
                logs[name, seed] = _log(seen, replicas.urls[0].removesuffix("/v1"))
    return logs


def _log(seen: Sequence[tuple[float, Sequence[Message], Reply]], root: str) -> Log:
    """Return the requests in order of time, with their prompts as the engine's own token ids."""
    start, log = min(began for began, _, _ in seen), []
    with httpx.Client(base_url=root, trust_env=False) as client:
        for began, messages, reply in sorted(seen, key=lambda one: one[0]):
            applied = client.post("/apply-template", json={"messages": list(messages)}).json()
            wanted = {"content": applied["prompt"], "add_special": True, "parse_special": True}
            token_ids = client.post("/tokenize", json=wanted).json()["tokens"]
            if len(token_ids) != reply.prompt_tokens:
                raise ValueError(
                    f"the engine counted {reply.prompt_tokens} tokens and tokenizes to "
                    f"{len(token_ids)}: its template is not that of /apply-template"
                )
            log.append(
                Sent(
                    at_s=began - start,
                    messages=[{"role": m["role"], "content": m["content"]} for m in messages],
                    token_ids=token_ids,
                    cached_tokens=reply.cached_tokens,
                    reply_tokens=reply.completion_tokens,
                    ttft_s=reply.ttft_s,
                    endpoint=reply.endpoint,
                )
            )
    return log


def trace_of(log: Log) -> Trace:
    """Return a log as a trace: placement reads the chats, caches compare the engine's tokens."""
    requests = []
    for sent in log:
        body = {"messages": sent.messages, "stream": True}
        requests.append(
            Request(
                at_s=sent.at_s,
                prompt=read_prompt(body),
                body=body,
                output_tokens=sent.reply_tokens,
                cached_as=block_prompt(sent.token_ids, block_tokens=1),
            )
        )
    return Trace.of("recorded chats", requests, block_tokens=1)


def prefill_rate(log: Log) -> float:
    """Return uncached tokens per second of those requests that had their replica to themselves."""
    tokens, seconds = 0, 0.0
    for sent in log:
        alone = all(
            other is sent
            or other.endpoint != sent.endpoint
            or other.at_s + other.ttft_s <= sent.at_s
            or sent.at_s + sent.ttft_s <= other.at_s
            for other in log
        )
        if alone:
            tokens += sent.uncached_tokens
            seconds += sent.ttft_s
    return tokens / seconds


def simulated(logs: Logs, seed: int) -> dict[str, list[tuple[float, float]]]:
    """Return hit rates and mean times to first token that are foretold for a set of prompts."""
    log = logs[RECORDED, seed]
    model = ReplicaModel(slots=SLOTS, prefill_tokens_per_s=prefill_rate(log), fixed_s=0.0)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SIMULATED}
    for chance in range(SEEDS):
        made = simulate(
            trace_of(log),
            policies=list(SIMULATED.values()),
            replicas=REPLICAS,
            model=model,
            seed=chance,
        )
        for name, result in zip(SIMULATED, made.results, strict=True):
            found[name].append((result.hit_rate, result.ttft_mean_s))
    return found


def compare(logs: Logs) -> dict[str, dict[str, float]]:
    """Return for each placement what was measured and what was foretold."""
    seeds = sorted({seed for _, seed in logs})
    foretold = [simulated(logs, seed) for seed in seeds]
    table = {}
    for name in PLACEMENTS:
        real = [logs[name, seed] for seed in seeds]
        pairs = [pair for one in foretold for pair in one[name]]
        table[name] = {
            "hit_rate": statistics.mean(_hit_rate(log) for log in real),
            "hit_rate_simulated": statistics.mean(hit for hit, _ in pairs),
            "ttft_mean_s": statistics.mean(sent.ttft_s for log in real for sent in log),
            "ttft_mean_s_simulated": statistics.mean(ttft_s for _, ttft_s in pairs),
        }
    return table


def _hit_rate(log: Log) -> float:
    cached = sum(sent.cached_tokens for sent in log)
    return cached / sum(len(sent.token_ids) for sent in log)


def verdict(table: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    """Return how far hit rates are off, and whether both rank the placements alike."""
    off = max(abs(row["hit_rate"] - row["hit_rate_simulated"]) for row in table.values())

    def ranked(figure: str) -> list[str]:
        return sorted(table, key=lambda name: table[name][figure])

    return {
        "hit_rate_off_by": off,
        "within": off <= WITHIN,
        "same_ranking_by_ttft": ranked("ttft_mean_s") == ranked("ttft_mean_s_simulated"),
        "ranking_by_hit_rate": ranked("hit_rate"),
        "ranking_by_hit_rate_simulated": ranked("hit_rate_simulated"),
    }


def _keep(logs: Logs, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for (name, seed), log in logs.items():
        (folder / f"{SIMULATED[name]}-{seed}.json").write_bytes(msgspec.json.encode(log))


def _kept(folder: Path, sets: int) -> Logs:
    return {
        (name, seed): msgspec.json.decode(
            (folder / f"{file}-{seed}.json").read_bytes(), type=list[Sent]
        )
        for seed in range(sets)
        for name, file in SIMULATED.items()
    }


def main() -> None:
    """Run the comparison and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=int, default=3, help="sets of prompts")
    parser.add_argument("--turns", type=int, default=FULL.turns, help="turns of each chat")
    parser.add_argument("--keep", type=Path, help="folder to write what the engines did to")
    parser.add_argument("--from", dest="kept", type=Path, help="folder to read that from")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.kept is not None:
        logs = _kept(options.kept, options.sets)
    else:
        logs = measure(options.sets, options.turns)
    if options.keep is not None:
        _keep(logs, options.keep)
    table = compare(logs)
    found = verdict(table)
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({"sets": options.sets, **machine, "table": table, **found}))
        return
    for name, row in table.items():
        print(name, {key: round(value, 3) for key, value in row.items()})
    print(found)


if __name__ == "__main__":
    main()
