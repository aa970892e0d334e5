"""Nothing lost, nothing sent twice, nothing leaked: ``python -m benchmarks.soak --minutes 10``.

Eight simulated engines on sockets, in a process of their own, and 300 streams at once through one
router, while engines are killed, hang, refuse, answer 429, 500 and 503, cut streams and close idle
connections, endpoints are drained, removed and added again, and callers leave. The exit code is 1
if a request is unaccounted for, was sent twice, or if anything is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import multiprocessing
import os
import platform
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import httpx

from prefixroute import Nested, Router
from prefixroute.testing import (
    CutAfter,
    Disconnect,
    EngineModel,
    ErrorFirst,
    FakeCluster,
    Fault,
    Hang,
    Loading,
    RateLimited,
    Refuse,
    StaleConnection,
    Status,
)

REPLICAS: Final = 8
STREAMS: Final = 300
TABLE: Final = 2048
"""Prefixes that the router remembers: full within the first quarter even of a short run."""
ASSISTANTS: Final = 60
READ_TIMEOUT_S: Final = 5.0
HUNG_S: Final = 120.0
"""A call that takes longer is lost."""
WARM_UP: Final = 0.25
"""Share of the time after which memory is looked at for the first time."""

LASTING: Final[tuple[Fault, ...]] = (Refuse(), Hang(), Loading(), Status(code=500), ErrorFirst())
COUNTED: Final[tuple[Fault, ...]] = (
    RateLimited(retry_after_s=0.1),
    Status(code=503),
    Status(code=502),
    CutAfter(chunks=2),
    CutAfter(chunks=1, reset=True),
    Disconnect(),
    Disconnect(reset=True),
    StaleConnection(),
)


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of all calls, and what was left over.

    Attributes:
        minutes: How long it ran.
        calls: How many were made.
        ends: How they ended, as their callers saw it.
        lost: Calls with no end: no whole answer, no error, not left by their caller.
        duplicated: Calls sent again although an endpoint may have begun to answer.
        disturbances: What was done to the engines and the membership.
        generations: How many calls reached an engine that began to answer them.
        in_flight: Requests that the router still counts at the end.
        tasks: Tasks of the event loop that are left.
        threads: Threads more than at the start.
        descriptors: Open files and sockets more than at the start.
        memory_mb: Resident memory of the client's process, after the warm-up and at the end.
        memory_growth: From the one to the other, as a share.
        objects: Blocks of memory that Python holds for objects, at the same two times.
    """

    minutes: float
    calls: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    duplicated: int = 0
    disturbances: dict[str, int] = field(default_factory=dict)
    generations: int = 0
    in_flight: int = 0
    tasks: int = 0
    threads: int = 0
    descriptors: int = 0
    memory_mb: tuple[float, float] = (0.0, 0.0)
    memory_growth: float = 0.0
    objects: tuple[int, int] = (0, 0)

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, sent twice or leaked."""
        left = (self.in_flight, self.tasks, self.threads, self.descriptors)
        return not (self.lost or self.duplicated or any(left)) and self.memory_growth < 0.05


# -- the engines, in a process of their own ------------------------------------------------------


def serve(control: Connection) -> None:
    """Serve the engines and do to them what the other side says."""
    model = EngineModel(
        prefill_tokens_per_s=20_000,
        request_overhead_s=0.002,
        decode_s_per_token=0.002,
        output_tokens=12,
        max_running=256,
        cache_blocks=4000,
    )
    cluster = FakeCluster(REPLICAS, model=model, max_recorded=0)
    with cluster.serve():
        control.send([str(replica.served_url) for replica in cluster.replicas])
        while True:
            name, *arguments = control.recv()
            if name == "end":
                stats = [replica.stats() for replica in cluster.replicas]
                control.send(sum(one.requests for one in stats))
                return
            match name:
                case "fail":
                    index, fault, times = arguments
                    cluster.fail(index, fault, times=times)
                case "heal":
                    cluster.heal(arguments[0])
                case "stop":
                    cluster.stop(arguments[0])
                case "start":
                    cluster.start(arguments[0])


# -- what is sent ----------------------------------------------------------------------------------


class Recording(httpx.AsyncBaseTransport):
    """Sends attempts, and notes which call each belongs to and how far it got."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
        self.begun: dict[str, int] = {}  # by call: attempts that an endpoint may have begun

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one attempt."""
        opened, told = False, request.extensions["trace"]

        async def trace(event: str, info: Any) -> None:
            nonlocal opened
            opened |= event == "connection.connect_tcp.complete"
            await told(event, info)

        request.extensions["trace"] = trace
        call = request.headers["x-call"]
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise
        except httpx.TransportError as error:
            # On an idle connection that the peer has closed it reached nobody.
            if opened or isinstance(error, httpx.TimeoutException):
                count(self.begun, call)
            raise
        if response.status_code < 300:
            count(self.begun, call)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class Callers:
    """Keeps calling until the time is over."""

    def __init__(self, client: httpx.AsyncClient, sent: Recording, result: Result) -> None:
        self._client, self._sent, self._result = client, sent, result
        self._random = random.Random(0)
        self.until = 0.0

    async def caller(self, number: int) -> None:
        """Make one call after the other."""
        turn = 0
        while time.monotonic() < self.until:
            turn += 1
            await self._call(f"{number}-{turn}")

    async def _call(self, name: str) -> None:
        result = self._result
        result.calls += 1
        task = asyncio.ensure_future(self._stream(name))
        if self._random.random() < 0.05:
            await asyncio.sleep(self._random.random() * 0.3)
            task.cancel()
        try:
            end = await asyncio.wait_for(task, HUNG_S)
        except asyncio.CancelledError:
            end = "cancelled"
        except TimeoutError:
            end = "lost: hung"
        except httpx.TransportError as error:
            end = type(error).__name__
        result.lost += end.startswith("lost")
        count(result.ends, end)
        result.duplicated += self._sent.begun.pop(name, 0) > 1

    async def _stream(self, name: str) -> str:
        body = self._body()
        headers = {"x-call": name}
        async with self._client.stream(
            "POST", "/chat/completions", json=body, headers=headers
        ) as response:
            if response.status_code != 200:
                await response.aread()
                return f"status {response.status_code}"
            leaves_after = 2 if self._random.random() < 0.03 else None
            tail = b""
            count = 0
            async for chunk in response.aiter_bytes():
                tail = (tail + chunk)[-4096:]
                count += 1
                if count == leaves_after:
                    return "left early"
            if b"[DONE]" in tail:
                return "answered"
            return "error event" if b'"error"' in tail else "lost: cut short without an error"

    def _body(self) -> dict[str, Any]:
        assistant = self._random.randrange(ASSISTANTS)
        return {
            "model": "simulated-model",
            "stream": True,
            "messages": [
                {"role": "system", "content": f"You are assistant {assistant}. " * 60},
                {"role": "user", "content": f"Question {self._random.random()}"},
            ],
        }


class Disturber:
    """Does to engines and membership what happens to them in the world, one thing at a time."""

    def __init__(self, control: Connection, router: Router, result: Result) -> None:
        self._control, self._router, self._result = control, router, result
        self._random = random.Random(1)
        self._things: tuple[Callable[[int], Awaitable[None]], ...] = (
            self._kill, self._lasting, self._counted, self._counted, self._drain, self._replace,
            self._reweigh,
        )  # fmt: skip

    async def run(self, until: float) -> None:
        """Disturb until then, and put everything right."""
        while time.monotonic() < until:
            thing = self._random.choice(self._things)
            count(self._result.disturbances, thing.__name__.strip("_"))
            await thing(self._random.randrange(REPLICAS))
            await asyncio.sleep(self._random.random() * 0.3)

    async def _while(self) -> None:
        await asyncio.sleep(0.2 + self._random.random())

    async def _kill(self, index: int) -> None:
        self._control.send(("stop", index))
        await self._while()
        self._control.send(("start", index))

    async def _lasting(self, index: int) -> None:
        self._control.send(("fail", index, self._random.choice(LASTING), None))
        await self._while()
        self._control.send(("heal", index))

    async def _counted(self, index: int) -> None:
        times = self._random.randrange(1, 20)
        self._control.send(("fail", index, self._random.choice(COUNTED), times))

    async def _drain(self, index: int) -> None:
        endpoint = self._router.endpoints[index]
        self._router.start_drain(endpoint)
        await self._while()
        self._router.readmit(endpoint)

    async def _replace(self, index: int) -> None:
        endpoint = self._router.endpoints[index]
        self._router.remove(endpoint)
        await self._while()
        self._router.add(endpoint)

    async def _reweigh(self, index: int) -> None:
        endpoints = list(self._router.endpoints)
        weight = self._random.choice([0.5, 1.0, 1.0, 2.0])
        endpoints[index] = type(endpoints[index])(endpoints[index].url, weight=weight)
        self._router.set_endpoints(endpoints)


def count(counts: dict[str, int], what: str) -> None:
    """Count one more."""
    counts[what] = counts.get(what, 0) + 1


# -- what is left over -----------------------------------------------------------------------------


def descriptors() -> int:
    """Return how many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


def memory_mb() -> float:
    """Return the resident memory of this process, without what it has freed and not given back."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def soak(minutes: float, urls: list[str], control: Connection) -> Result:
    """Run it, and return what came of it."""
    result = Result(minutes=minutes)
    tasks, threads, files = len(asyncio.all_tasks()), threading.active_count(), descriptors()
    # Tables that are full after the warm-up: what grows then is a leak, and no table filling.
    router, sent = Router(urls, placement=Nested(max_prefixes=TABLE)), Recording()
    transport = router.async_transport(sent)
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=2.0)
    async with httpx.AsyncClient(
        base_url=router.base_url, transport=transport, timeout=timeout
    ) as client:
        callers = Callers(client, sent, result)
        began = time.monotonic()
        callers.until = began + 60 * minutes
        calling = [asyncio.ensure_future(callers.caller(number)) for number in range(STREAMS)]
        disturbing = asyncio.ensure_future(
            Disturber(control, router, result).run(callers.until - 1.0)
        )
        await asyncio.sleep(60 * minutes * WARM_UP)
        warm, objects = memory_mb(), sys.getallocatedblocks()
        await asyncio.gather(disturbing, *calling)
    await sent.aclose()
    result.memory_mb = (warm, memory_mb())
    result.memory_growth = result.memory_mb[1] / warm - 1.0
    result.objects = (objects, sys.getallocatedblocks())
    result.in_flight = router.stats().in_flight
    await router.aclose()
    result.tasks = len(asyncio.all_tasks()) - tasks
    result.threads = threading.active_count() - threads
    del calling, disturbing, client, transport, callers
    gc.collect()
    result.descriptors = descriptors() - files
    return result


def run(minutes: float) -> Result:
    """Start the engines, soak, and stop them."""
    context = multiprocessing.get_context("spawn")
    control, far = context.Pipe()
    engines = context.Process(target=serve, args=(far,))
    engines.start()
    try:
        urls = control.recv()
        result = asyncio.run(soak(minutes, urls, control))
        control.send(("end",))
        result.generations = control.recv()
    finally:
        engines.join(timeout=10)
        if engines.is_alive():
            engines.kill()
    return result


def main() -> int:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = run(options.minutes)
    versions = {"python": platform.python_version(), "httpx": httpx.__version__}
    if options.json:
        print(json.dumps({**asdict(result), **versions, "sound": result.sound}, indent=2))
    else:
        for name, value in asdict(result).items():
            print(f"{name:14} {value}")
        print("sound" if result.sound else "NOT SOUND")
    return 0 if result.sound else 1


if __name__ == "__main__":
    sys.exit(main())
