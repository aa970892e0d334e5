"""Real vLLM replicas through the router: `pytest -m nightly` (minutes, 12 GB of memory)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from prefixroute import Nested, Random, Router
from tests.engines.placements import run_placement
from tests.engines.replica import MODEL_NAME
from tests.engines.vllm import BLOCK_TOKENS, VllmReplicas
from tests.engines.workload import QUICK

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

REPLICAS = 3
MESSAGES: Any = [
    {"role": "system", "content": "You are a careful assistant of a small library. " * 8},
    {"role": "user", "content": "Who are you?"},
]


@pytest.fixture(scope="module")
def running() -> Iterator[VllmReplicas]:
    with VllmReplicas(REPLICAS) as replicas:
        yield replicas


@pytest.fixture
def replicas(running: VllmReplicas) -> VllmReplicas:
    running.clear()
    return running


@pytest.fixture
def router(replicas: VllmReplicas) -> Iterator[Router]:
    with Router(list(replicas.urls)) as made:
        yield made


@pytest.fixture
def client(router: Router) -> Iterator[OpenAI]:
    with OpenAI(api_key="-", max_retries=0) as plain, router.wrap(plain) as wrapped:
        yield wrapped


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 4, "temperature": 0, **fields}
    )


def assert_second_of_two_was_cached(router: Router, prompt_tokens: int | None = None) -> None:
    """All whole blocks of the prompt, but for its last token, which is always computed."""
    stats = router.stats()
    assert stats.in_flight == 0
    assert stats.requests == 2
    each = stats.prompt_tokens // 2
    assert prompt_tokens in (None, each)
    assert stats.cached_tokens == (each - 1) // BLOCK_TOKENS * BLOCK_TOKENS > BLOCK_TOKENS


def test_cached_tokens_of_a_reply_are_learned(client: OpenAI, router: Router) -> None:
    first, second = chat(client), chat(client)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == router.stats().cached_tokens
    assert_second_of_two_was_cached(router, second.usage.prompt_tokens)


def test_cached_tokens_of_a_stream_are_learned(client: OpenAI, router: Router) -> None:
    for _ in range(2):
        chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert_second_of_two_was_cached(router, chunks[-1].usage.prompt_tokens)


def test_hidden_usage_is_learned(replicas: VllmReplicas) -> None:
    with (
        Router(list(replicas.urls), inject_usage=True) as router,
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
    ):
        for _ in range(2):
            chunks = list(chat(client, stream=True))
            assert chunks
            assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        assert_second_of_two_was_cached(router)


def test_without_usage_a_stream_tells_nothing(client: OpenAI, router: Router) -> None:
    for _ in range(2):
        list(chat(client, stream=True))
    stats = router.stats()
    assert stats.requests == 2
    assert stats.hit_rate is None
    assert "inject_usage" in stats.advice[0]


def metric(http: httpx.Client, name: str) -> float:
    """The sum of a metric over its labels, read through the transport."""
    reply = http.get("/metrics")
    reply.raise_for_status()
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", reply.text, re.MULTILINE)
    assert values, f"{name} is not in /metrics"
    return sum(float(value) for value in values)


@pytest.fixture
def alone(replicas: VllmReplicas) -> Iterator[Router]:
    """A router of one endpoint: what it says is of that one."""
    with Router([replicas.urls[0]]) as made:
        yield made


def test_metrics_are_readable_through_the_transport(alone: Router) -> None:
    with httpx.Client(base_url=alone.root_url, transport=alone.transport(), timeout=60) as http:
        before = metric(http, "vllm:prefix_cache_hits_total")
        for _ in range(2):
            body = {"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 1}
            http.post("/v1/chat/completions", json=body).raise_for_status()
        found = metric(http, "vllm:prefix_cache_hits_total") - before
        assert metric(http, "vllm:num_requests_waiting") == 0
    assert found == alone.stats().cached_tokens > 0


def test_a_stream_cut_by_the_client_ends_in_the_engine_too(alone: Router) -> None:
    with httpx.Client(base_url=alone.root_url, transport=alone.transport(), timeout=60) as http:
        tokens = metric(http, "vllm:generation_tokens_total")
        body = {
            "model": MODEL_NAME,
            "messages": MESSAGES,
            "max_tokens": 800,
            "ignore_eos": True,
            "stream": True,
        }
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            assert next(response.iter_lines()).startswith("data: ")
            assert alone.stats().in_flight == 1
        assert alone.stats().in_flight == 0
        eventually(lambda: metric(http, "vllm:num_requests_running") == 0)
        assert metric(http, "vllm:generation_tokens_total") - tokens < 400
    assert alone.stats().endpoints[0].failures == 0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it didn't come true in 30 s"
        time.sleep(0.05)


def test_an_unknown_model_is_the_callers_mistake(client: OpenAI, router: Router) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        chat(client, model="no-such-model")
    stats = router.stats()
    assert stats.in_flight == 0
    assert stats.requests == 1
    assert all(endpoint.failures == 0 for endpoint in stats.endpoints)


def test_routing_beats_random_and_comes_near_to_a_perfect_placement(
    replicas: VllmReplicas,
) -> None:
    at_random = run_placement(replicas, Random(), QUICK)
    nested = run_placement(replicas, Nested(), QUICK)
    print(f"random {at_random}\nnested {nested}")
    assert nested.hit_rate >= at_random.hit_rate + 0.15
    assert nested.hit_rate >= nested.ceiling - 0.05


def test_what_the_engine_does_not_report_is_unknown() -> None:
    with (
        VllmReplicas(1, reports=False) as replicas,
        Router(list(replicas.urls)) as router,
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
    ):
        for _ in range(2):
            reply = chat(client)
        assert reply.usage.prompt_tokens > BLOCK_TOKENS
        stats = router.stats()
    assert stats.requests == 2
    assert (stats.prompt_tokens, stats.cached_tokens, stats.hit_rate) == (0, 0, None)
    assert "--enable-prompt-tokens-details" in stats.advice[0]
