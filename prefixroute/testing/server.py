"""A cluster on real loopback sockets, served from a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType

from prefixroute.testing.clock import Clock
from prefixroute.testing.connection import Connection
from prefixroute.testing.replica import Replica

__all__ = ["ClusterServer"]

_HOST = "127.0.0.1"
_BACKLOG = 1024
_ANSWER_WITHIN_S = 10.0


class ClusterServer:
    """Serves every replica of a cluster on a port of its own while it is entered.

    `with cluster.serve() as urls:` gives what an SDK takes as `base_url`; `async with` does too.
    Without a `with`, call `start()` and, at the end, `close()`.
    """

    def __init__(
        self,
        *,
        replicas: Callable[[], tuple[Replica, ...]],
        attach: Callable[[ClusterServer | None], None],
        clock: Clock,
        keep_alive_s: float | None,
    ) -> None:
        """Made by `FakeCluster.serve()`."""
        if keep_alive_s is not None and not keep_alive_s > 0:
            raise ValueError(
                f"keep_alive_s={keep_alive_s!r} must be above 0: use None to keep connections open"
            )
        self._replicas = replicas
        self._attach = attach
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._ports: dict[int, _Port] = {}
        self._thread: threading.Thread | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs of all replicas, those added later included; none while it isn't started."""
        return [one.served_url for one in self._replicas() if one.served_url is not None]

    def start(self) -> list[str]:
        """Start to serve.

        Returns:
            The URLs, in the order of the replicas.

        Raises:
            RuntimeError: The cluster is served already.
            ValueError: A replica shall refuse a number of connections, which sockets can't count.
        """
        for replica in self._replicas():
            if replica.faults.counts_refusals:
                raise ValueError(
                    f"replica {replica.index} shall refuse a number of connections, which can't be"
                    " counted on sockets: heal() it, or set Refuse() without `times`"
                )
        self._attach(self)
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="fake-cluster", daemon=True
        )
        self._thread.start()
        try:
            ready.result(_ANSWER_WITHIN_S)
        except BaseException:
            self.close()
            raise
        return self.urls

    def close(self) -> None:
        """Break all connections, close all ports and end the thread. Twice does no harm."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        thread.join(_ANSWER_WITHIN_S)
        self._attach(None)

    def apply(self, replica: Replica) -> None:
        """Do on the sockets what was done to a replica: listen or not, break, close."""
        done = asyncio.run_coroutine_threadsafe(self._apply(replica), self._loop)
        done.result(_ANSWER_WITHIN_S)

    def __enter__(self) -> list[str]:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> list[str]:
        return self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            for replica in self._replicas():
                await self._apply(replica)
            ready.set_result(None)
            await self._stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            for replica in self._replicas():
                replica.served_url = None
            for port in self._ports.values():
                await port.close()
            self._ports.clear()

    async def _apply(self, replica: Replica) -> None:
        port = self._ports.get(replica.index)
        if port is None:
            port = self._ports[replica.index] = _Port(replica, self._clock, self._keep_alive_s)
        if replica.accepts:
            await port.listen()
        else:
            port.refuse()
        port.tidy()
        replica.served_url = f"http://{_HOST}:{port.number}/v1"


class _Port:
    """The port of one replica: bound all the time, listening only while the replica accepts."""

    def __init__(self, replica: Replica, clock: Clock, keep_alive_s: float | None) -> None:
        self.number = 0
        self._replica = replica
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._connections: set[Connection] = set()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        if self._server is not None:
            return
        self._free()
        self._server = await asyncio.get_running_loop().create_server(
            self._connect, _HOST, self.number, backlog=_BACKLOG
        )
        self.number = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Refuse connections, but keep the port: a socket that is bound and does not listen."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._reserved is None:
            self._reserved = socket.socket()
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._reserved.bind((_HOST, self.number))
            self.number = self._reserved.getsockname()[1]

    def tidy(self) -> None:
        """Break the connections of an earlier life, and the idle ones of an earlier era."""
        for connection in list(self._connections):
            connection.tidy()

    async def close(self) -> None:
        """Break all connections and give the port back."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._free()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:  # noqa: ASYNC110 - each leaves in one of the loop's next turns
            await asyncio.sleep(0)

    def _connect(self) -> Connection:
        return Connection(
            replica=self._replica,
            clock=self._clock,
            keep_alive_s=self._keep_alive_s,
            connections=self._connections,
        )

    def _free(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
