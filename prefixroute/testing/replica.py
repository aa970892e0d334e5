"""A replica: one simulated engine with its address, its faults and its memory of what came."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import assert_never

from prefixroute.testing import disturbances
from prefixroute.testing.clock import Clock
from prefixroute.testing.dialects import DIALECTS
from prefixroute.testing.engine import Engine, EngineStats
from prefixroute.testing.faults import (
    CutAfter,
    Disconnect,
    ErrorFirst,
    Fault,
    FaultSwitch,
    Hang,
    Loading,
    RateLimited,
    Refuse,
    SlowHeaders,
    StaleConnection,
    Status,
)
from prefixroute.testing.model import EngineModel
from prefixroute.testing.service import EMBEDDINGS_PATH, Service, error_body, error_event, reply
from prefixroute.testing.wire import Head, ReceivedRequest, RequestError, Script

__all__ = ["Replica"]

_FAILURE = "The engine failed"
_GENERATING = frozenset({EMBEDDINGS_PATH, *DIALECTS})


class Replica:
    """One simulated engine of a cluster. Made by `FakeCluster`, which also switches its faults.

    Attributes:
        index: Its place in the cluster.
        model: What it is like.
        url: Where the mock transports find it: `http://replica-<index>.test/v1`.
        served_url: Where it listens while the cluster is served on sockets, else None.
        faults: What is wrong with it.
    """

    def __init__(
        self,
        *,
        index: int,
        model: EngineModel,
        clock: Clock,
        seed: int,
        record: Callable[[ReceivedRequest], None],
    ) -> None:
        """Start one.

        Args:
            index: Its place in the cluster.
            model: What it is like.
            clock: Tells the simulated time.
            seed: See `FakeCluster`.
            record: Is given every request that arrives.
        """
        self.index = index
        self.model = model
        self.url = f"http://replica-{index}.test/v1"
        self.served_url: str | None = None
        self.faults = FaultSwitch()
        self._clock = clock
        self._seed = seed
        self._record = record
        self._is_stopped = False
        self._lives = self._eras = 0
        self._boot()
        self._past = self._engine.stats(clock.now_s())

    def __repr__(self) -> str:
        stats = self.stats()
        state = ", stopped" if self._is_stopped else ", refusing" if self.faults.refuses else ""
        load = f"{stats.running} running, {stats.waiting} waiting"
        return f"<Replica {self.index}: {load}, hit rate {stats.hit_rate:.2f}{state}>"

    @property
    def accepts(self) -> bool:
        """Whether it accepts connections."""
        return not self._is_stopped and not self.faults.refuses

    @property
    def lives(self) -> int:
        """How often it was stopped: streams of an earlier life are broken."""
        return self._lives

    @property
    def eras(self) -> int:
        """How often its idle connections were closed."""
        return self._eras

    def close_idle(self) -> None:
        """Close idle connections."""
        self._eras += 1

    def stats(self) -> EngineStats:
        """Its load now, and what it has done since the cluster was made or reset.

        Unlike the counters of `/metrics`, these do not start again when it restarts.
        """
        now, past = self._engine.stats(self._clock.now_s()), self._past
        return replace(
            now,
            requests=past.requests + now.requests,
            finished=past.finished + now.finished,
            cancelled=past.cancelled + now.cancelled,
            prompt_tokens=past.prompt_tokens + now.prompt_tokens,
            cached_tokens=past.cached_tokens + now.cached_tokens,
            completion_tokens=past.completion_tokens + now.completion_tokens,
        )

    def stop(self) -> None:
        """Die: what is running is lost, and so is the cache; no connection is accepted."""
        self._is_stopped = True
        self._lives += 1
        self._eras += 1
        last = self.stats()
        self._past = replace(last, cancelled=last.cancelled + last.running + last.waiting)
        self._boot()

    def start(self) -> None:
        """Come back with an empty cache, and load for `loading_s`."""
        if self._is_stopped:
            self._boot()
        self._is_stopped = False

    def reset(self) -> None:
        """Empty the cache and the counters; requests that are running end as they would have."""
        self._boot()
        self._past = self._engine.stats(self._clock.now_s())

    def take_fault(self, *, method: str, path: str, reused_connection: bool) -> Fault | None:
        """Choose and count the fault of a request, as soon as its target is known."""
        generation = method == "POST" and path in _GENERATING
        return self.faults.take(generation=generation, reused_connection=reused_connection)

    def script(self, request: ReceivedRequest, fault: Fault | None) -> Script:
        """All that is done about one request.

        Args:
            request: What arrived.
            fault: What `take_fault` gave.
        """
        self._record(request)
        if fault is None and self._clock.now_s() < self._ready_at_s:
            fault = Loading()
        named = ("x-replica", str(self.index))
        with closing(self._script(request, fault)) as script:
            for action in script:
                match action:
                    case Head():
                        yield replace(action, headers=(*action.headers, named))
                    case _:
                        yield action

    def _boot(self) -> None:
        self._engine = Engine(self.model)
        self._ready_at_s = self._clock.now_s() + self.model.loading_s
        self._service = Service(
            index=self.index, engine=self._engine, clock=self._clock, seed=self._seed
        )

    def _script(  # noqa: C901, PLR0911 - one case for each fault
        self, request: ReceivedRequest, fault: Fault | None
    ) -> Script:
        answer, now_s = self._service.answer, self._clock.now_s
        match fault:
            case None:
                return answer(request)
            case Hang():
                return disturbances.hang(answer(request), self.faults)
            case Loading():
                return self._fail(request, 503, "Loading model", fault.retry_after_s)
            case RateLimited():
                return self._fail(request, 429, "Too many requests", fault.retry_after_s)
            case Status():
                return self._status(request, fault)
            case SlowHeaders():
                return disturbances.slow(answer(request), request.at_s + fault.delay_s)
            case CutAfter():
                return disturbances.cut(answer(request), fault, now_s)
            case ErrorFirst():
                failure = self._fail(request, 500, _FAILURE, None)
                event = error_event(request.path, _FAILURE)
                return disturbances.error_first(answer(request), failure, event, now_s)
            case Disconnect():
                return disturbances.drop(now_s(), fault)
            case Refuse() | StaleConnection():
                return disturbances.drop(now_s(), Disconnect())
            case _:
                assert_never(fault)

    def _fail(
        self, request: ReceivedRequest, status: int, message: str, retry_after_s: float | None
    ) -> Script:
        headers = () if retry_after_s is None else (("retry-after", f"{retry_after_s:g}"),)
        body = error_body(request.path, RequestError(status, message))
        return reply(self._clock.now_s(), status, body, headers=headers)

    def _status(self, request: ReceivedRequest, fault: Status) -> Script:
        body = fault.body
        if body is None:
            body = error_body(request.path, RequestError(fault.code, f"Status {fault.code}"))
        return reply(self._clock.now_s(), fault.code, body, headers=fault.headers.items())
