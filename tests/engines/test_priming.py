"""A real llama.cpp replica that joins is warmed, and finds what it was primed with."""

from __future__ import annotations

import random
import threading

import httpx
import pytest

from prefixroute import Event, RoundRobin, Router
from prefixroute.core.events import EndpointPrimed
from tests.engines.chat import Message, http_chat
from tests.engines.llama import LlamaReplicas
from tests.engines.placements import named_endpoints
from tests.engines.texts import system_prompts, user_message

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


class Priming:
    """Waits for the end of it."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def on_event(self, event: Event) -> None:
        if isinstance(event, EndpointPrimed):
            self.over.set()


def test_a_newcomer_holds_what_it_was_primed_with(
    replicas: LlamaReplicas, direct: httpx.Client
) -> None:
    replicas.restart_dead()
    replicas.clear()
    rng, priming = random.Random(1), Priming()
    (system,) = system_prompts(rng, 1)
    *early, newcomer = named_endpoints(replicas.urls)

    def chat() -> list[Message]:
        said = [("system", system), ("user", user_message(rng))]
        return [{"role": role, "content": content} for role, content in said]

    # Whoever does not look at the prompt gives everybody everything.
    settings = {"placement": RoundRobin(), "remember_bodies": 10**6, "observers": [priming]}
    with Router(early, **settings) as router, router.client() as client:  # type: ignore[arg-type]
        for _ in range(3):
            http_chat(client, router.base_url, chat())
        router.add(newcomer)
        assert priming.over.wait(60)
        assert router.stats().endpoints[2].primed == 1
        reply = http_chat(direct, newcomer.url, chat())
        assert reply.cached_tokens > 0.7 * reply.prompt_tokens
        assert router.stats().in_flight == 0
