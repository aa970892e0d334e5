"""The workload through the product: an OpenAI client, a router, and one placement after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openai import OpenAI

from prefixroute import Endpoint, Fixed, Nested, Placement, Random, RoundRobin, Router
from prefixroute.core.events import Observer
from prefixroute.tokenizers import Tokenizer
from tests.engines.chat import Message, Reply, openai_chat
from tests.engines.replica import Replica, Replicas
from tests.engines.workload import WorkloadResult, WorkloadSpec, run_workload

PLACEMENTS: Mapping[str, Placement] = {
    "random": Random(),
    "round robin": RoundRobin(),
    "fixed": Fixed(),
    "nested": Nested(),
}


def endpoint_of(extensions: Mapping[str, Any]) -> str:
    """Who answered, as the router noted it on the response."""
    return str(extensions["prefixroute"].endpoint.id)


Watch = Callable[[float, Sequence[Message], Reply], None]
"""Told of each request: when it was sent (monotonic seconds), its messages, what it came to."""


def named_endpoints(urls: Iterable[str]) -> list[Endpoint]:
    """Endpoints "replica-0", "replica-1" and so on.

    Ports are drawn anew for each run; named endpoints have the same place on the ring every time.
    """
    return [Endpoint(url, id=f"replica-{i}") for i, url in enumerate(urls)]


def run_placement(
    replicas: Replicas[Replica],
    placement: Placement,
    spec: WorkloadSpec,
    *,
    tokenizer: Tokenizer | None = None,
    peers: int | None = None,
    observers: Sequence[Observer] = (),
    watch: Watch | None = None,
) -> WorkloadResult:
    """Sends the workload through a new router; the caches are empty before.

    Args:
        replicas: they run.
        placement: of the router.
        spec: the chats.
        tokenizer, peers, observers: of the router.
        watch: is told of each request.
    """
    replicas.clear()
    with (
        Router(
            named_endpoints(replicas.urls),
            placement=placement,
            seed=spec.seed,
            tokenizer=tokenizer,
            peers=peers,
            observers=observers,
        ) as router,
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
    ):

        def send(messages: Sequence[Message]) -> Reply:
            began = time.monotonic()
            reply = openai_chat(client, messages, endpoint_of=endpoint_of)
            if watch is not None:
                watch(began, messages, reply)
            return reply

        result = run_workload(send, spec, block_tokens=replicas.block_tokens)
        assert router.stats().in_flight == 0
        return result
