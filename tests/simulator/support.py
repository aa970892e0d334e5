from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixroute.simulator import ReplicaModel, Request, Trace, block_prompt
from prefixroute.simulator.policies import PolicyFactory
from prefixroute.simulator.routers import Setup, SimulatedRouter

BLOCK = 100


def request(
    at_s: float, blocks: Iterable[int], *, tokens: int | None = None, out: int = 10
) -> Request:
    prompt = block_prompt(blocks, block_tokens=BLOCK, tokens=tokens)
    return Request(at_s=at_s, prompt=prompt, output_tokens=out)


def trace(*requests: Request, name: str = "test") -> Trace:
    return Trace.of(name, requests, block_tokens=BLOCK)


def model(**settings: object) -> ReplicaModel:
    """1,000 tokens/s, nothing fixed, 10 tokens/s of output: figures to compute by hand."""
    figures: dict[str, object] = {
        "cache_blocks": 100, "prefill_tokens_per_s": 1000.0, "fixed_s": 0.0, "decode_s": 0.1,
    }  # fmt: skip
    return ReplicaModel(**{**figures, **settings})  # type: ignore[arg-type]


class Script:
    """A router that sends each request where it is told to, and writes down what it hears."""

    def __init__(self, replicas: Sequence[int]) -> None:
        self.replicas = list(replicas)
        self.heard: list[tuple[object, ...]] = []
        self.members: list[int] = []

    def route(self, request: Request, now: float) -> tuple[int, object]:
        replica = self.replicas.pop(0) if len(self.replicas) > 1 else self.replicas[0]
        self.heard.append(("route", now))
        return replica, len(self.heard)

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:
        self.heard.append(("first", now, cached_tokens))

    def done(
        self, ticket: object, prompt_tokens: int, cached_tokens: int | None, now: float
    ) -> None:
        self.heard.append(("done", now, prompt_tokens, cached_tokens))

    def reported(self, counts: Sequence[tuple[int, int]], now: float) -> None:
        self.heard.append(("reported", now, *counts))

    def set_members(self, members: Sequence[int], now: float) -> None:
        self.members = list(members)

    def home(self, request: Request, now: float) -> int | None:
        return request.prompt.chain[0] % len(self.members) if self.members else 0

    def said(self, what: str) -> list[tuple[object, ...]]:
        return [one[1:] for one in self.heard if one[0] == what]


def scripted(*replicas: int) -> tuple[PolicyFactory, list[Script]]:
    """A factory of scripted routers, and the routers that it made."""
    made: list[Script] = []

    def start(setup: Setup) -> SimulatedRouter:
        made.append(Script(replicas))
        return made[-1]

    return PolicyFactory(name="scripted", start=start), made
