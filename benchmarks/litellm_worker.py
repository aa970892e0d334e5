"""LiteLLM's Router as a process: chats come in as JSON lines, replies go out as JSON lines.

A script for ``benchmarks.litellm_peer``, which runs it in an environment that has litellm. The
first line in is the configuration, the first line out says that it is ready; then any number of
chats may be in flight.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any


def make_router(config: dict[str, Any]) -> Any:
    """Make a Router that knows the replicas as deployments of one model, by their names."""
    import httpx2  # noqa: PLC0415 - beside litellm
    import litellm  # noqa: PLC0415 - reads its settings when it is imported

    # llama-server closes a connection after each stream, against its own Keep-Alive header, and a
    # request that follows at once would be lost on it. prefixroute sends such a one again.
    litellm.disable_aiohttp_transport = True
    litellm.aclient_session = httpx2.AsyncClient(
        limits=httpx2.Limits(max_keepalive_connections=0), trust_env=False
    )
    random.seed(config["seed"])  # the draws of simple-shuffle
    return litellm.Router(
        model_list=[
            {
                "model_name": config["model"],
                "litellm_params": {
                    "model": f"openai/{config['model']}",
                    "api_base": url,
                    "api_key": "-",
                },
                "model_info": {"id": name},
            }
            for name, url in config["endpoints"].items()
        ],
        optional_pre_call_checks=config["checks"] or None,
    )


async def answer(router: Any, config: dict[str, Any], messages: list[Any]) -> dict[str, Any]:
    """Send one chat, streamed, and return the fields of its reply."""
    if config["checks"]:  # what isn't marked is not looked at
        messages = [*messages[:-1], {**messages[-1], "cache_control": {"type": "ephemeral"}}]
    text, ttft_s, usage = "", 0.0, None
    began = time.monotonic()
    stream = await router.acompletion(
        model=config["model"],
        messages=messages,
        max_tokens=config["max_tokens"],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        usage = getattr(chunk, "usage", None) or usage
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            if not ttft_s and (piece or choice.finish_reason):
                ttft_s = time.monotonic() - began
            text += piece
    if usage is None:
        raise ValueError("the reply has no usage")
    details = usage.prompt_tokens_details
    return {
        "cached_tokens": (details.cached_tokens if details is not None else None) or 0,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "ttft_s": ttft_s,
        "endpoint": stream._hidden_params["model_id"],  # noqa: SLF001 - LiteLLM's way to say so
        "text": text,
    }


async def serve(say: Callable[[dict[str, Any]], None]) -> None:
    """Answer what comes in until the input ends."""
    loop = asyncio.get_running_loop()
    config = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    router = make_router(config)
    say({"ready": True})

    async def one(number: int, messages: list[Any]) -> None:
        try:
            say({"id": number, "reply": await answer(router, config, messages)})
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
            say({"id": number, "error": f"{type(error).__name__}: {error}"})

    tasks = set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        task = asyncio.create_task(one(request["id"], request["messages"]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def main() -> None:
    """Keep the output for replies alone: what LiteLLM prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(serve(lambda message: print(json.dumps(message), file=out, flush=True)))


if __name__ == "__main__":
    main()
