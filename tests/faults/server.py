"""A server that does to its clients, byte for byte, what a script says.

It serves a few ports from one thread. What happens on ``faulty`` is told by the request's own
``x-fault`` header, which names a plan; ``good`` and ``spare`` answer every request unless there is
a plan of that name for them, such as ``good: x``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, Self

from tests.faults.wire import json_reply, stream_reply

__all__ = ["FaultServer", "Plan"]

_HOST: Final = "127.0.0.1"
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_TLS_GARBAGE: Final = b"\x00" * 16 + b"SSH-2.0-OpenSSH_9.6\r\n"
_WITHIN_S: Final = 10.0
_PORTS: Final = (
    *("faulty", "good", "spare", "closing", "resetting"),
    *("closing tls", "garbled tls"),
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]

Then = Literal["keep", "close", "reset", "stall", "junk", "trickle"]


@dataclass(frozen=True)
class Plan:
    """What is done with one request.

    ``reply``: what is sent; ``None``: a good reply to what was asked.
    ``then``: what follows. ``trickle`` sends the reply byte by byte, and keeps the connection.
    ``reused_only``: only to a request on a connection that has served one.
    ``after``: not before that port has been asked too.
    ``and_then``: what is sent when the test says ``go_on``.
    """

    reply: bytes | None = None
    then: Then = "keep"
    reused_only: bool = False
    after: str | None = None
    and_then: bytes = b""


class FaultServer:
    """The server; a context manager."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}
        self.received: list[tuple[str, str]] = []  # port, x-fault
        self.stalled = threading.Event()  # a plan has come to its stall
        self.go_on = threading.Event()
        self.replied = 0  # requests that got all they will get
        self.ports: dict[str, int] = {}
        self._refused = socket.socket()
        self._open: set[asyncio.StreamWriter] = set()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def url(self, port: str) -> str:
        scheme = "https" if port.endswith("tls") else "http"
        return f"{scheme}://{_HOST}:{self.ports[port]}/v1"

    def begin(self) -> None:
        """Forget what was before: a test begins."""
        self.received.clear()
        self.stalled.clear()
        self.go_on.clear()
        self.replied = 0
        self.plans.clear()

    def count(self, port: str) -> int:
        return sum(name == port for name, _ in self.received)

    def wait_until_replied(self, count: int) -> None:
        """Wait until so many requests got all they will get."""
        until = time.monotonic() + _WITHIN_S
        while self.replied < count and time.monotonic() < until:
            time.sleep(0.0005)

    def wait_until_left(self) -> None:
        """Wait until no client holds a connection."""
        until = time.monotonic() + _WITHIN_S
        while self._open:
            assert time.monotonic() < until, f"{len(self._open)} connections are left open"
            time.sleep(0.0005)

    def __enter__(self) -> Self:
        self._refused.bind((_HOST, 0))  # bound, but it does not listen
        self.ports["refused"] = self._refused.getsockname()[1]
        self._thread.start()
        self._ready.result(_WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_WITHIN_S)
        self._refused.close()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        servers = []
        for name in (
            "faulty",
            "good",
            "spare",
            "closing",
            "resetting",
            "garbled tls",
            "closing tls",
        ):
            server = await asyncio.start_server(self._handler(name), _HOST, 0)
            self.ports[name] = server.sockets[0].getsockname()[1]
            servers.append(server)
        self._ready.set_result(None)
        await self._stop.wait()
        for server in servers:
            server.close()
        for writer in list(self._open):
            writer.transport.abort()
        while self._open:  # noqa: ASYNC110 - each leaves in one of the loop's next turns
            await asyncio.sleep(0)

    def _handler(self, name: str) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open.add(writer)
            try:
                await self._connected(name, reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # the client has gone
            finally:
                writer.close()
                self._open.discard(writer)

        return handle

    async def _connected(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match name:
            case "closing":
                return
            case "resetting":
                self._reset(writer)
                return
            case "closing tls":
                await reader.read(1)
                return
            case "garbled tls":
                await reader.read(1)
                writer.write(_TLS_GARBAGE)
                await writer.drain()
                return
        served = 0
        while await self._serve(name, served, reader, writer):
            served += 1

    async def _serve(
        self, name: str, served: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        key = headers.get("x-fault", "")
        self.received.append((name, key))
        plan = self._plan(name, key)
        if plan.reused_only and not served:
            plan = Plan()
        reply = plan.reply
        if reply is None:
            streamed = bool(body) and json.loads(body).get("stream") is True
            reply = stream_reply() if streamed else json_reply()
        while plan.after is not None and not self.count(plan.after):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return await self._reply(plan, reply, reader, writer)

    def _plan(self, name: str, key: str) -> Plan:
        if name == "faulty" and key:
            return self.plans[key]
        return self.plans.get(f"{name}: {key}", Plan())

    async def _reply(
        self, plan: Plan, reply: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Carry out a plan; return whether the connection goes on."""
        if plan.then == "junk":
            reply += b"\x00 what is this\r\n\r\n"
        pieces = (bytes([byte]) for byte in reply) if plan.then == "trickle" else (reply,)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        self.replied += 1
        if plan.and_then:
            while not self.go_on.is_set():  # noqa: ASYNC110 - it is set by another thread
                await asyncio.sleep(0.001)
            writer.write(plan.and_then)
        match plan.then:
            case "keep" | "trickle":
                return True
            case "reset":
                self._reset(writer)
            case "stall":
                self.stalled.set()
                await reader.read()  # until the client leaves
        return False

    @staticmethod
    def _reset(writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
