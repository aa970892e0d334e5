# /// script
# requires-python = ">=3.11"
# dependencies = ["prefixroute", "litellm>=1.75", "openai"]
#
# [tool.uv.sources]
# prefixroute = { path = "..", editable = true }
# ///
"""LiteLLM: each call is given a wrapped client, sync or async."""

import asyncio
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import downloads prices

import litellm
from openai import AsyncOpenAI, OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = "openai/" + os.environ.get("MODEL", "simulated-model")  # "openai/": speaks its API
SYSTEM = {"role": "system", "content": "You name birds by what people say of them. " * 40}
SIGHTINGS = ("Small, brown, and loud.", "Red breast, tame.", "White, on a chimney.")


def ask(router: Router) -> None:
    """Two turns of a chat, the second one streamed."""
    with router.wrap(OpenAI(api_key="-")) as client:
        messages = [SYSTEM, {"role": "user", "content": "Black, and it sings at dusk."}]
        first = litellm.completion(MODEL, messages, client=client, max_tokens=32)
        messages += [first.choices[0].message, {"role": "user", "content": "In a city?"}]
        chunks = litellm.completion(
            MODEL,
            messages,
            client=client,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},  # tells the router what was cached
        )
        print("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))


async def ask_all(router: Router) -> None:
    """Many questions at once."""
    async with router.wrap(AsyncOpenAI(api_key="-")) as client:
        prompts = [[SYSTEM, {"role": "user", "content": seen}] for seen in SIGHTINGS]
        calls = [litellm.acompletion(MODEL, p, client=client, max_tokens=32) for p in prompts]
        for seen, reply in zip(SIGHTINGS, await asyncio.gather(*calls), strict=True):
            print(seen, "->", reply.choices[0].message.content)


with Router(ENDPOINTS) as router:
    ask(router)
    asyncio.run(ask_all(router))
    for endpoint in router.stats().endpoints:
        print(endpoint.url, endpoint.requests, "requests, hit rate", endpoint.hit_rate)
