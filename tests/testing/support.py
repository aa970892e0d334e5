"""What the tests of the simulated engines share: clients of both libraries, and bodies."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import anyio
import httpx
import httpx2
import pytest

from prefixroute.testing import EngineModel, FakeCluster

LIBRARIES = [httpx, httpx2]
BACKENDS = ["asyncio", "trio"]
MODES = ["sync", *BACKENDS]

over_libraries = pytest.mark.parametrize("library", LIBRARIES, ids=["httpx", "httpx2"])
over_modes = pytest.mark.parametrize("mode", MODES)
over_backends = pytest.mark.parametrize("backend", BACKENDS)

INSTANT = EngineModel(
    prefill_tokens_per_s=1e9, request_overhead_s=0.0, decode_s_per_token=0.0, output_tokens=8
)


def chat(text: str = "Hello", **fields: object) -> dict[str, Any]:
    """A chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


class Caller:
    """Sends requests through a mock transport in any mode, and collects the reply."""

    def __init__(self, cluster: FakeCluster, library: ModuleType, mode: str) -> None:
        self._library = library
        self._mode = mode
        self._sync = cluster.transport()
        self._async = cluster.async_transport()

    def post(self, url: str, **fields: Any) -> tuple[Any, list[bytes]]:
        """The response and the chunks of its body."""
        return self.send("POST", url, **fields)

    def send(self, method: str, url: str, **fields: Any) -> tuple[Any, list[bytes]]:
        """The response and the chunks of its body."""
        if self._mode == "sync":
            return self._send(method, url, **fields)
        sent: tuple[Any, list[bytes]] = anyio.run(
            lambda: self._send_async(method, url, **fields), backend=self._mode
        )
        return sent

    def _send(self, method: str, url: str, **fields: Any) -> tuple[Any, list[bytes]]:
        chunks: list[bytes] = []
        with (
            self._library.Client(transport=self._sync) as client,
            client.stream(method, url, **fields) as response,
        ):
            chunks.extend(response.iter_raw())
        return response, chunks

    async def _send_async(self, method: str, url: str, **fields: Any) -> tuple[Any, list[bytes]]:
        chunks: list[bytes] = []
        async with (
            self._library.AsyncClient(transport=self._async) as client,
            client.stream(method, url, **fields) as response,
        ):
            chunks.extend([chunk async for chunk in response.aiter_raw()])
        return response, chunks


def run(backend: str, function: Callable[[], Awaitable[None]]) -> None:
    """Run an async function on asyncio or trio."""
    anyio.run(function, backend=backend)


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait until something is true."""
    ends_at_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_at_s, "it did not become true in time"
        time.sleep(0.005)
