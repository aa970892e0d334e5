"""Foreseen and reported: ``python -m benchmarks.prediction --engine llama|vllm --json``.

How many tokens of each prompt a decision expected to be cached, beside how many the engine
reported, for each way to count tokens. Three kinds of prompts: the chats of ``benchmarks.engines``;
questions about long texts; and these as token ids. Run it from a checkout, as that one.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any, Final

from benchmarks.fleets import FLEETS, Fleet, machine, packages
from prefixroute import Endpoint, Nested, Router
from prefixroute.core.events import Event, RequestDone
from prefixroute.tokenizers import (
    EngineTokenizer,
    HuggingFaceTokenizer,
    TiktokenTokenizer,
    Tokenizer,
)
from tests.engines.placements import run_placement
from tests.engines.replica import MODEL_NAME, Replica, Replicas
from tests.engines.texts import system_prompts, user_message
from tests.engines.workload import WorkloadSpec
from tests.tokenizers.models import vocabulary_file

TEXTS: Final = 6
"""Of about 280 tokens each."""

QUESTIONS: Final = 4
"""About each text."""

Counting = Callable[[Replicas[Replica]], AbstractContextManager[Tokenizer | None]]


class Watch:
    """An observer that keeps what was expected and what was reported."""

    def __init__(self) -> None:
        self.done: list[RequestDone] = []

    def on_event(self, event: Event) -> None:
        """Keep the end of a request."""
        if isinstance(event, RequestDone):
            self.done.append(event)


def countings(fleet: Fleet) -> Mapping[str, Counting]:
    """Return the ways to count tokens, by name."""
    own = HuggingFaceTokenizer(str(fleet.tokenizer()))
    public = TiktokenTokenizer("o200k_base", vocabulary=vocabulary_file("o200k_base"))
    return {
        "bytes": lambda _: nullcontext(None),
        "tiktoken o200k_base": lambda _: nullcontext(public),
        "the model's own": lambda _: nullcontext(own),
        "the engine's": lambda replicas: EngineTokenizer(replicas.urls[0], timeout_s=10.0),
    }


def judge(done: Sequence[RequestDone], block_tokens: int) -> Mapping[str, float]:
    """Return how far what was expected is from what was reported; positive: expected too much."""
    errors = [
        e.expected_cached_tokens - e.cached_tokens for e in done if e.cached_tokens is not None
    ]
    far = sorted(abs(error) for error in errors)
    quantiles = {
        name: far[max(0, math.ceil(part * len(far)) - 1)]
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("max", 1.0))
    }
    return {
        "requests": len(errors),
        "unreported": len(done) - len(errors),
        "mean_cached_tokens": statistics.mean(e.cached_tokens or 0 for e in done),
        "mean_error_tokens": statistics.mean(errors),
        **{f"{name}_tokens": value for name, value in quantiles.items()},
        **{f"{name}_blocks": value / block_tokens for name, value in quantiles.items()},
        "within_one_block": sum(error <= block_tokens for error in far) / len(far),
    }


def prompts(seed: int) -> Iterator[str]:
    """Yield questions about texts; about each text in turn."""
    rng = random.Random(seed)
    parts = system_prompts(rng, 2 * TEXTS)
    texts = [" ".join(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    for _ in range(QUESTIONS):
        for text in texts:
            yield f"{text} {user_message(rng)}"


def complete(
    replicas: Replicas[Replica],
    tokenizer: Tokenizer | None,
    watch: Watch,
    sent: Sequence[str | Sequence[int]],
) -> None:
    """Send prompts to ``/v1/completions``, one after another."""
    replicas.clear()
    endpoints = [Endpoint(url, id=f"replica-{i}") for i, url in enumerate(replicas.urls)]
    with (
        Router(
            endpoints, placement=Nested(), seed=0, peers=1, tokenizer=tokenizer, observers=[watch]
        ) as router,
        router.client() as client,
    ):
        for prompt in sent:
            body: dict[str, Any] = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 2}
            reply = client.post(f"{router.base_url}/completions", json=body, timeout=300)
            reply.raise_for_status()


def run(fleet: Fleet, sets: int, spec: WorkloadSpec) -> dict[str, dict[str, Mapping[str, float]]]:
    """Return the errors for each kind of prompt and each way to count."""
    found: dict[tuple[str, str], Watch] = {}
    own = HuggingFaceTokenizer(str(fleet.tokenizer()))
    with fleet.replicas() as replicas:
        for name, counting in countings(fleet).items():
            chats = found["chats", name] = Watch()
            texts = found["texts", name] = Watch()
            for seed in range(sets):
                print(f"set {seed}, {name}", file=sys.stderr, flush=True)
                with counting(replicas) as tokenizer:
                    run_placement(
                        replicas,
                        Nested(),
                        replace(spec, seed=seed),
                        tokenizer=tokenizer,
                        peers=1,
                        observers=[chats],
                    )
                    complete(replicas, tokenizer, texts, list(prompts(seed)))
        ids = found["token ids", "as they are"] = Watch()
        for seed in range(sets):
            encoded = [list(own.encode_prompt(text)) for text in prompts(seed)]
            complete(replicas, None, ids, encoded)
    judged: dict[str, dict[str, Mapping[str, float]]] = {}
    for (kind, name), watch in found.items():
        judged.setdefault(kind, {})[name] = judge(watch.done, fleet.block_tokens)
    return judged


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return the errors of one kind of prompt as a table in Markdown."""
    lines = [
        "| counted by | requests | mean | P50 | P90 | P95 | largest | within one block |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        cells = (f"{row[f'{part}_tokens']:.1f}" for part in ("p50", "p90", "p95", "max"))
        lines.append(
            f"| {name} | {row['requests']} | {row['mean_error_tokens']:+.1f} "
            f"| {' | '.join(cells)} | {row['within_one_block']:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print tables, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=FLEETS, default="llama")
    parser.add_argument("--sets", type=int, default=5, help="sets of prompts")
    parser.add_argument("--turns", type=int, default=6, help="turns of each chat")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    fleet = FLEETS[options.engine]
    spec = replace(fleet.spec, turns=options.turns)
    judged = run(fleet, options.sets, spec)
    if not options.json:
        for kind, rows in judged.items():
            print(f"{kind}, errors in tokens:\n\n{table(rows)}\n")
        return
    report = {
        "engine": {"name": options.engine, "replicas": fleet.count, **fleet.versions()},
        "packages": packages("prefixroute", "openai", "httpx", "tiktoken", "transformers"),
        "machine": machine(),
        "sets": options.sets,
        "workload": asdict(spec),
        "block_tokens": fleet.block_tokens,
        "errors": judged,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
