"""The drop-in promise on real replicas: the SDKs through the router, and what it gains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from prefixroute import Router
from tests.engines.llama import MODEL_NAME, LlamaReplicas
from tests.engines.placements import PLACEMENTS, run_placement
from tests.engines.workload import QUICK, REPLICAS, SLOTS, WorkloadResult

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SYSTEM = "You are a careful assistant of a small library. " * 6


@pytest.fixture(scope="module")
def replicas() -> Iterator[LlamaReplicas]:
    with LlamaReplicas(REPLICAS, slots=SLOTS) as running:
        yield running


@pytest.fixture
def router(replicas: LlamaReplicas) -> Iterator[Router]:
    replicas.clear()
    with Router(list(replicas.urls)) as made:
        yield made


def chat(*turns: str) -> Any:
    roles = ["user", "assistant"]
    system = [{"role": "system", "content": SYSTEM}]
    return system + [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]


def served(router: Router) -> set[str]:
    """Which endpoints were used; the second call must have found the first one's prefix."""
    stats = router.stats()
    assert stats.in_flight == 0
    assert stats.requests == 2
    assert stats.cached_tokens > 60  # the system prompt and the first question
    return {endpoint.id for endpoint in stats.endpoints if endpoint.requests}


def test_openai(router: Router) -> None:
    with OpenAI(api_key="-") as plain, router.wrap(plain) as client:
        assert type(client) is OpenAI
        first = client.chat.completions.create(
            model=MODEL_NAME, messages=chat("Who are you?"), max_tokens=8
        )
        said = first.choices[0].message.content or ""
        client.chat.completions.create(
            model=MODEL_NAME, messages=chat("Who are you?", said, "And where?"), max_tokens=8
        )
    assert len(served(router)) == 1


def test_openai_streaming(router: Router) -> None:
    with OpenAI(api_key="-") as plain, router.wrap(plain) as client:
        said = ""
        for turns in (["Who are you?"], ["Who are you?", "I help.", "And where?"]):
            stream = client.chat.completions.create(
                model=MODEL_NAME,
                messages=chat(*turns),
                max_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
            )
            said += "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert said
    assert len(served(router)) == 1


def test_openai_async(router: Router) -> None:
    async def talk() -> None:
        async with AsyncOpenAI(api_key="-") as plain, router.wrap(plain) as client:
            assert type(client) is AsyncOpenAI
            await client.chat.completions.create(
                model=MODEL_NAME, messages=chat("Who are you?"), max_tokens=8
            )
            stream = await client.chat.completions.create(
                model=MODEL_NAME,
                messages=chat("Who are you?", "I help.", "And where?"),
                max_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
            )
            assert [chunk async for chunk in stream]

    asyncio.run(talk())
    assert len(served(router)) == 1


def test_anthropic(router: Router) -> None:
    with Anthropic(api_key="-") as plain, router.wrap(plain) as client:
        assert type(client) is Anthropic
        client.messages.create(
            model=MODEL_NAME, system=SYSTEM, max_tokens=8, messages=chat("Who are you?")[1:]
        )
        with client.messages.stream(
            model=MODEL_NAME,
            system=SYSTEM,
            max_tokens=8,
            messages=chat("Who are you?", "I help.", "And where?")[1:],
        ) as stream:
            assert stream.get_final_message().content
    assert len(served(router)) == 1


def test_anthropic_async(router: Router) -> None:
    async def talk() -> None:
        async with AsyncAnthropic(api_key="-") as plain, router.wrap(plain) as client:
            assert type(client) is AsyncAnthropic
            for turns in (["Who are you?"], ["Who are you?", "I help.", "And where?"]):
                await client.messages.create(
                    model=MODEL_NAME, system=SYSTEM, max_tokens=8, messages=chat(*turns)[1:]
                )

    asyncio.run(talk())
    assert len(served(router)) == 1


@pytest.fixture(scope="module")
def results(replicas: LlamaReplicas) -> dict[str, WorkloadResult]:
    found = {name: run_placement(replicas, p, QUICK) for name, p in PLACEMENTS.items()}
    for name, result in found.items():
        print(f"{name:12} {result}")
    return found


def test_routing_at_least_doubles_the_hit_rate_of_random(
    results: dict[str, WorkloadResult],
) -> None:
    assert results["nested"].hit_rate >= 2 * results["random"].hit_rate


def test_routing_comes_near_to_a_perfect_placement(results: dict[str, WorkloadResult]) -> None:
    assert results["nested"].hit_rate >= results["nested"].ceiling - 0.05


def test_a_fixed_key_beats_the_baselines(results: dict[str, WorkloadResult]) -> None:
    assert results["fixed"].hit_rate > results["random"].hit_rate
    assert results["fixed"].hit_rate > results["round robin"].hit_rate
