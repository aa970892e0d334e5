# /// script
# requires-python = ">=3.11"
# dependencies = ["prefixroute", "openai", "pydantic", "pydantic-ai-slim[openai]>=1"]
#
# [tool.uv.sources]
# prefixroute = { path = "..", editable = true }
# ///
"""Pydantic AI: its OpenAI provider takes a wrapped client. Three chats of two turns at once."""

import asyncio
import os

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
COMPLAINTS = ("The engine knocks. " * 40, "The brakes squeal. " * 40, "The heater is cold. " * 40)


class Diagnosis(BaseModel):
    """What is wrong with a car."""

    cause: str
    urgent: bool


def price_of(part: str) -> str:
    """Look up what a part costs."""
    return f"{part}: 120 euros"


async def diagnose(agent: Agent[None, Diagnosis], complaint: str) -> list[Diagnosis]:
    """Two turns: the second carries the first, and so extends its prefix."""
    first = await agent.run(complaint)
    second = await agent.run("And if that is not it?", message_history=first.all_messages())
    return [first.output, second.output]


async def main() -> None:
    async with Router(ENDPOINTS) as router, router.wrap(AsyncOpenAI(api_key="-")) as client:
        agent = Agent(
            OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client)),
            instructions="You are the foreman of a garage. Name the likeliest cause. " * 20,
            tools=[price_of],  # simulated replicas never call it; a model may
            output_type=NativeOutput(Diagnosis),
        )
        for diagnoses in await asyncio.gather(*(diagnose(agent, c) for c in COMPLAINTS)):
            print(*diagnoses)
        for endpoint in router.stats().endpoints:
            print(endpoint.url, endpoint.requests, "requests, hit rate", endpoint.hit_rate)


asyncio.run(main())
