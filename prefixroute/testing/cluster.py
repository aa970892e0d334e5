"""FakeCluster: several simulated engines, on mock transports or on loopback sockets."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from prefixroute.testing.call import Call, IdleConnections
from prefixroute.testing.clock import Clock
from prefixroute.testing.engine import EngineStats
from prefixroute.testing.faults import Fault, Refuse
from prefixroute.testing.libraries import AnyRequest, library_error, library_of
from prefixroute.testing.model import EngineModel
from prefixroute.testing.replica import Replica
from prefixroute.testing.server import ClusterServer
from prefixroute.testing.transports import AsyncFakeTransport, FakeTransport
from prefixroute.testing.wire import ReceivedRequest

__all__ = ["FakeCluster"]


class FakeCluster:
    """Simulated engines to test an application with. See `prefixroute.testing` for what they model.

    Every method may be called from any thread, also while requests are running.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        model: EngineModel | Sequence[EngineModel] | None = None,
        time_scale: float = 1.0,
        seed: int = 0,
        max_recorded: int = 10_000,
    ) -> None:
        """Start the engines.

        Args:
            n: How many; 4, or as many as there are models.
            model: What they are like: one for all, or one for each.
            time_scale: Real seconds that a simulated second takes: 1 is real time, 0.1 is ten
                times faster. With 0 nothing sleeps and simulated time jumps to whatever is waited
                for; timeouts of the mock transports are then counted in simulated seconds.
            seed: Another seed gives other answers and ids.
            max_recorded: How many of the last requests are kept in `requests`.

        Raises:
            ValueError: There would be no engine, the models are not `n`, the scale is negative or
                `max_recorded` is.
        """
        models = _models(n, model)
        if max_recorded < 0:
            raise ValueError(f"max_recorded={max_recorded!r} must be at least 0: 0 keeps none")
        self._clock = Clock(time_scale)
        self._seed = seed
        self._lock = threading.Lock()
        self._requests: deque[ReceivedRequest] = deque(maxlen=max_recorded)
        self._replicas: tuple[Replica, ...] = ()
        self._server: ClusterServer | None = None
        for one in models:
            self.add(one)

    def __repr__(self) -> str:
        stats = [replica.stats() for replica in self._replicas]
        down = sum(not replica.accepts for replica in self._replicas)
        running = sum(one.running for one in stats)
        waiting = sum(one.waiting for one in stats)
        return (
            f"<FakeCluster {len(stats)} replicas, {down} down,"
            f" {running} running, {waiting} waiting, hit rate {self.hit_rate:.2f}>"
        )

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas, in order of their index."""
        return self._replicas

    @property
    def urls(self) -> list[str]:
        """Where the mock transports find the replicas, as `base_url` of an SDK would have it."""
        return [replica.url for replica in self._replicas]

    @property
    def requests(self) -> tuple[ReceivedRequest, ...]:
        """What has arrived, in order, at whichever replica, whatever became of it.

        Refused connections brought no request.
        """
        with self._lock:
            return tuple(self._requests)

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that came from a prefix cache; 0.0 before any."""
        stats = [replica.stats() for replica in self._replicas]
        prompt_tokens = sum(one.prompt_tokens for one in stats)
        return sum(one.cached_tokens for one in stats) / prompt_tokens if prompt_tokens else 0.0

    @property
    def now_s(self) -> float:
        """Simulated seconds since the cluster was made."""
        return self._clock.now_s()

    def advance(self, seconds: float) -> None:
        """Let simulated time pass at once, at any `time_scale`.

        Raises:
            ValueError: The step is negative or not finite.
        """
        self._clock.advance(seconds)

    def stats(self) -> tuple[EngineStats, ...]:
        """The stats of each replica."""
        return tuple(replica.stats() for replica in self._replicas)

    def transport(self) -> FakeTransport:
        """A transport for sync clients of httpx and httpx2 that reaches the replicas by `urls`."""
        return FakeTransport(self._make_call)

    def async_transport(self) -> AsyncFakeTransport:
        """The same for async clients, on asyncio and trio."""
        return AsyncFakeTransport(self._make_call)

    def serve(self, *, keep_alive_s: float | None = None) -> ClusterServer:
        """Serve the replicas on loopback sockets, from a thread of their own.

        Args:
            keep_alive_s: Idle connections are closed after so many real seconds; None: never.

        Returns:
            A context manager, sync and async, that gives the URLs; or call its `start` and `close`.

        Raises:
            ValueError: `keep_alive_s` is not above 0, or refusals are counted (`fail`).
        """
        return ClusterServer(
            replicas=lambda: self._replicas,
            attach=self._attach,
            clock=self._clock,
            keep_alive_s=keep_alive_s,
        )

    def add(self, model: EngineModel | None = None) -> Replica:
        """Start one more replica, at the next index; if the cluster is served, so is this one.

        Args:
            model: What it is like; None: like the first.
        """
        with self._lock:
            replica = Replica(
                index=len(self._replicas),
                model=model or self._replicas[0].model,
                clock=self._clock,
                seed=self._seed,
                record=self._record,
            )
            self._replicas = (*self._replicas, replica)
        self._apply(replica)
        return replica

    def fail(self, index: int, fault: Fault, *, times: int | None = None) -> None:
        """Switch a fault of one replica on.

        Args:
            index: Which replica.
            fault: What goes wrong.
            times: For how many of the requests that it applies to. Counted faults happen in the
                order in which they were set, before the lasting one. None: for all of them until
                healed, in place of the lasting fault set before.

        Raises:
            ValueError: `times` is below 1, or refusals are counted on sockets: nobody can say how
                often a closed port was tried.
        """
        if isinstance(fault, Refuse) and times is not None and self._server is not None:
            raise ValueError(
                f"times={times!r} refusals can't be counted on sockets: use Refuse() without"
                " `times` and heal() later, or a mock transport"
            )
        replica = self._replicas[index]
        replica.faults.set(fault, times)
        if isinstance(fault, Refuse) and times is None:
            replica.close_idle()
        self._apply(replica)

    def heal(self, index: int | None = None) -> None:
        """Switch all faults off, of one replica or of all. It does not start a stopped one."""
        for replica in self._replicas if index is None else (self._replicas[index],):
            replica.faults.heal()
            self._apply(replica)

    def stop(self, index: int) -> None:
        """Let a replica die: its streams break, its cache is lost, it refuses connections."""
        replica = self._replicas[index]
        replica.stop()
        self._apply(replica)

    def start(self, index: int) -> None:
        """Start a stopped replica again, with an empty cache, at the same URL."""
        replica = self._replicas[index]
        replica.start()
        self._apply(replica)

    def restart(self, index: int) -> None:
        """Stop a replica and start it at once."""
        self.stop(index)
        self.start(index)

    def reset(self) -> None:
        """Empty all caches, counts and `requests`. Faults and stopped replicas stay as they are."""
        with self._lock:
            self._requests.clear()
        for replica in self._replicas:
            replica.reset()

    def _record(self, request: ReceivedRequest) -> None:
        with self._lock:
            self._requests.append(request)

    def _make_call(self, request: AnyRequest, idle: IdleConnections) -> Call:
        library_of(request)
        host = request.url.host
        digits = host.removeprefix("replica-").removesuffix(".test")
        index = int(digits) if digits.isdecimal() else -1
        if not 0 <= index < len(self._replicas) or host != f"replica-{index}.test":
            raise library_error(request, "ConnectError", "[Errno -2] Name or service not known")
        return Call(request=request, replica=self._replicas[index], clock=self._clock, idle=idle)

    def _apply(self, replica: Replica) -> None:
        server = self._server
        if server is not None:
            server.apply(replica)

    def _attach(self, server: ClusterServer | None) -> None:
        if server is not None and self._server is not None:
            raise RuntimeError("this cluster is served already: leave the first serve() before")
        self._server = server


def _models(
    n: int | None, model: EngineModel | Sequence[EngineModel] | None
) -> Sequence[EngineModel]:
    if model is None or isinstance(model, EngineModel):
        models: Sequence[EngineModel] = [model or EngineModel()] * (4 if n is None else n)
    else:
        models = list(model)
    if not models or (n is not None and len(models) != n):
        raise ValueError(
            f"n={n!r} and {len(models)} models don't make a cluster:"
            " ask for at least one replica, and give one model for all or one for each"
        )
    return models
