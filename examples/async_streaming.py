"""AsyncOpenAI: many streams at once, grouped by the system prompt that they share."""

import asyncio
import os
from collections import Counter

from openai import AsyncOpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
PROMPTS = {
    "translator": "Translate what you are given into French. " * 40,
    "editor": "Correct the grammar of what you are given. " * 40,
    "critic": "Name the weakest argument in what you are given. " * 40,
}


async def ask(client: AsyncOpenAI, role: str, text: str) -> tuple[str, str]:
    """Stream one answer; return the role and the endpoint that gave it."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": PROMPTS[role]}, {"role": "user", "content": text}],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},  # tells the router what was cached
    )
    async for _ in stream:
        pass
    return role, stream.response.extensions["prefixroute"].endpoint.id


async def main() -> None:
    async with Router(ENDPOINTS) as router, router.wrap(AsyncOpenAI(api_key="-")) as client:
        calls = [ask(client, role, f"Sentence number {i}.") for i in range(10) for role in PROMPTS]
        for (role, endpoint), count in sorted(Counter(await asyncio.gather(*calls)).items()):
            print(f"{role:12} {endpoint} {count}")
        print("hit rate", router.stats().hit_rate)


asyncio.run(main())
