"""One client under an open load, as a process: a script for ``benchmarks.outage``.

``python -m benchmarks.outage_load CLIENT``. The first line in is the configuration; the first line
out says that it is ready. The next line in is when to begin, by the machine's monotonic clock; the
next line out is what became of every call, and every attempt that went to an endpoint.
"""

# mypy: disable-error-code="import-not-found, unused-ignore"

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import httpx2

MODEL: Final = "simulated-model"
ASSISTANTS: Final = 64
WARM_UP: Final = 40
"""Calls before it is ready: they load what is loaded late, and open connections."""

Ask: TypeAlias = Callable[[list[dict[str, str]], dict[str, str]], Awaitable[Any]]
"""Sends messages with these headers, and returns when the whole answer is there."""


class Recording(httpx2.AsyncBaseTransport):
    """Sends attempts, and notes whose they were, where they went and how they ended.

    Args:
        urls: Of the endpoints: an attempt names its own by its position here.
    """

    def __init__(self, urls: list[str]) -> None:
        limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)  # as the SDK
        self._inner = httpx2.AsyncHTTPTransport(limits=limits)
        self._endpoints = {httpx2.URL(url).port: number for number, url in enumerate(urls)}
        self.attempts: list[list[Any]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one attempt."""
        began, end = time.monotonic(), "cancelled"
        try:
            response = await self._inner.handle_async_request(request)
            end = "" if response.status_code < 300 else f"status {response.status_code}"
        except Exception as error:
            end = type(error).__name__
            raise
        finally:
            call, endpoint = int(request.headers["x-call"]), self._endpoints[request.url.port]
            self.attempts.append([call, endpoint, began, time.monotonic(), end])
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


# -- the clients -----------------------------------------------------------------------------------


def _asks(client: Any) -> Ask:
    return lambda messages, headers: client.chat.completions.create(
        model=MODEL, messages=messages, extra_headers=headers
    )


def _openai(http: httpx2.AsyncClient, url: str, timeout_s: float) -> Any:
    from openai import AsyncOpenAI  # noqa: PLC0415 - only what is measured is loaded

    return AsyncOpenAI(base_url=url, api_key="-", timeout=timeout_s, http_client=http)


def prefixroute(http: httpx2.AsyncClient, urls: list[str], timeout_s: float) -> Ask:
    """The SDK's client behind a Router, all of it as it comes."""
    from prefixroute import Router  # noqa: PLC0415

    return _asks(Router(urls).wrap(_openai(http, urls[0], timeout_s)))


def probing(http: httpx2.AsyncClient, urls: list[str], timeout_s: float) -> Ask:
    """The same, and the Router asks every endpoint for its health once a second."""
    from prefixroute import HealthPolicy, Router  # noqa: PLC0415

    router = Router(urls, health=HealthPolicy(probe_every_s=1.0))
    return _asks(router.wrap(_openai(http, urls[0], timeout_s)))


def round_robin(http: httpx2.AsyncClient, urls: list[str], timeout_s: float) -> Ask:
    """A client of the SDK for each endpoint, in turn; each tries again by itself."""
    turns = itertools.cycle([_asks(_openai(http, url, timeout_s)) for url in urls])

    def ask(messages: list[dict[str, str]], headers: dict[str, str]) -> Awaitable[Any]:
        return next(turns)(messages, headers)

    return ask


def litellm(http: httpx2.AsyncClient, urls: list[str], timeout_s: float) -> Ask:
    """LiteLLM's Router as it comes, but for its HTTP client: attempts could not be seen else."""
    import litellm  # noqa: PLC0415

    litellm.disable_aiohttp_transport = True
    litellm.aclient_session = http
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": url, "api_key": "-"},
        }
        for url in urls
    ]
    router = litellm.Router(model_list=deployments, timeout=timeout_s)
    return lambda messages, headers: router.acompletion(
        model=MODEL, messages=messages, extra_headers=headers
    )


CLIENTS: Final = {
    "prefixroute": prefixroute,
    "prefixroute-probing": probing,
    "round-robin": round_robin,
    "litellm": litellm,
}
PACKAGES: Final = ("openai", "httpx2")


# -- the load --------------------------------------------------------------------------------------


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return when calls arrive, in seconds from the start: a Poisson process."""
    rng, at, times = random.Random(seed), 0.0, list[float]()
    while (at := at + rng.expovariate(rate)) < seconds:
        times.append(at)
    return times


def messages_of(number: int) -> list[dict[str, str]]:
    """Return the chat of a call: one of several system prompts, and a question of its own."""
    assistant = random.Random(number).randrange(ASSISTANTS)
    return [
        {"role": "system", "content": f"You are assistant {assistant}. " * 20},
        {"role": "user", "content": f"Question {number}"},
    ]


async def load(ask: Ask, began: float, times: list[float]) -> list[list[Any]]:
    """Make each call at its time, whatever became of the others; return what became of each.

    Returns:
        For each call: when it was due, was made and ended, by the monotonic clock, and the error
        that its caller saw; empty if there was none.
    """
    calls: list[list[Any]] = []

    async def one(number: int, due: float) -> None:
        made, end = time.monotonic(), ""
        try:
            await ask(messages_of(number), {"x-call": str(number)})
        except Exception as error:  # noqa: BLE001 - whatever the caller sees is counted
            end = type(error).__name__
        calls.append([number, due, made, time.monotonic(), end])

    async with asyncio.TaskGroup() as tasks:
        for number, at in enumerate(times):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            tasks.create_task(one(number, began + at))
    return calls


async def serve(name: str, say: Callable[[dict[str, Any]], None]) -> None:
    """Warm up, wait to be told when to begin, and say what came of it."""
    read = asyncio.get_running_loop().run_in_executor
    config = json.loads(await read(None, sys.stdin.readline))
    recording = Recording(config["urls"])
    async with httpx2.AsyncClient(transport=recording) as http:
        ask = CLIENTS[name](http, config["urls"], config["timeout_s"])
        for number in range(WARM_UP):
            await ask(messages_of(-1 - number), {"x-call": "-1"})
        recording.attempts.clear()
        packages = dict.fromkeys((*PACKAGES, name if name == "litellm" else "openai"))
        say({"versions": {package: version(package) for package in packages}})
        began = float(await read(None, sys.stdin.readline))
        times = arrivals(config["rate"], config["seconds"], config["seed"])
        calls = await load(ask, began, times)
        say({"calls": calls, "attempts": recording.attempts})


def main() -> None:
    """Keep the output for what is said: what a client prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(serve(sys.argv[1], lambda said: print(json.dumps(said), file=out, flush=True)))


if __name__ == "__main__":
    main()
