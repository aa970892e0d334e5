"""A thousand streams at once in one process: ``python -m benchmarks.scale --json``.

Streams of server-sent events from a transport in memory, all on one event loop, with and without
the router. While they run, a task looks how late the loop wakes it; with the router, another
compares the in-flight counts with the streams that are open.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

from benchmarks.bodies import chat, encoded
from benchmarks.measuring import Row, by_turns, options, packages, ratio_row, show
from prefixroute import Router

STREAMS: Final = 1000
CHUNKS: Final = 20
EVERY_S: Final = 0.25
"""Between the chunks of a stream."""

SPREAD_S: Final = 4.0
"""Time over which the streams start."""

LOOK_EVERY_S: Final = 0.002
ENDPOINTS: Final = tuple(f"http://gpu-{number}:8000/v1" for number in range(8))


class Engines(httpx.AsyncBaseTransport):
    """Streams that know how many of them are open at each host."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Open a stream."""
        engines, host = self, request.url.host

        class Events(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                for number in range(CHUNKS):
                    await asyncio.sleep(EVERY_S)
                    yield b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number

            async def aclose(self) -> None:
                engines.open[host] -= 1

        self.open[host] += 1
        kind = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=kind, stream=Events())


class Run:
    """One run: its lags, and how often a count was wrong."""

    def __init__(self, router: Router | None) -> None:
        self._router, self._engines = router, Engines()
        self.lags_s: list[float] = []
        self.wrong = self.most = 0

    async def go(self, bodies: list[bytes]) -> None:
        """Run all streams to their end."""
        if self._router is None:
            client = httpx.AsyncClient(base_url=ENDPOINTS[0], transport=self._engines)
        else:
            transport = self._router.async_transport(self._engines)
            client = httpx.AsyncClient(base_url=self._router.base_url, transport=transport)
        looking = asyncio.create_task(self._look())
        async with client, asyncio.TaskGroup() as group:
            for number, body in enumerate(bodies):
                group.create_task(self._stream(client, body, number * SPREAD_S / len(bodies)))
        looking.cancel()
        self._compare()

    async def _stream(self, client: httpx.AsyncClient, body: bytes, after_s: float) -> None:
        await asyncio.sleep(after_s)
        async with client.stream("POST", "/chat/completions", content=body) as reply:
            async for _ in reply.aiter_bytes():
                pass

    async def _look(self) -> None:
        while True:
            due = time.perf_counter() + LOOK_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)
            self.lags_s.append(time.perf_counter() - due)
            if len(self.lags_s) % 50 == 0:
                self._compare()

    def _compare(self) -> None:
        """Compare counts; between two steps of the loop they have to be the same."""
        self.most = max(self.most, self._engines.open.total())
        if self._router is not None:
            for endpoint in self._router.stats().endpoints:
                host = httpx.URL(endpoint.url).host
                self.wrong += endpoint.in_flight != self._engines.open[host]


def p99_ms(lags_s: list[float]) -> float:
    """Return the 99th percentile, milliseconds."""
    return 1000 * statistics.quantiles(lags_s, n=100)[98]


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    chosen = options(__doc__, repeats=5)
    bodies = [encoded(chat(number, 8_000)) for number in range(STREAMS)]
    wrong: list[int] = []
    most: list[int] = []

    def lag_ms(router: Router | None) -> float:
        run: Any = Run(router)
        asyncio.run(run.go(bodies))
        if router is not None:
            wrong.append(run.wrong)
            most.append(run.most)
        return p99_ms(run.lags_s)

    found = by_turns(
        {"plain": lambda: lag_ms(None), "routed": lambda: lag_ms(Router(ENDPOINTS, seed=0))},
        chosen.repeats,
    )
    added = [a - b for a, b in zip(found["routed"], found["plain"], strict=True)]
    medians = {name: statistics.median(figures) for name, figures in found.items()}
    rows = [
        Row(
            what=f"wrong in-flight counts, {STREAMS} streams",
            unit="counts",
            goal=0,
            reached=sum(wrong),
            low=min(wrong),
            high=max(wrong),
            note=f"{min(most)} open at once",
        ),
        ratio_row(
            "event-loop lag that routing adds, P99",
            added,
            [1.0] * len(added),
            unit="ms",
            goal=1.0,
            note=f"{medians['routed']:.2f} ms against {medians['plain']:.2f} ms",
        ),
    ]
    show(rows, packages("prefixroute", "httpx"), as_json=chosen.json)


if __name__ == "__main__":
    main()
