"""One run: a trace through the routers of one rule to simulated replicas."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from time import thread_time
from typing import Final, TypeAlias

from prefixroute.core.checks import check_int, check_number
from prefixroute.errors import ConfigurationError
from prefixroute.simulator.batched import make_replica
from prefixroute.simulator.policies import PolicyFactory
from prefixroute.simulator.replica import Events, Job, Replica, ReplicaModel
from prefixroute.simulator.routers import Setup, SimulatedRouter
from prefixroute.simulator.traces import Change, Request, Trace

__all__ = ["CacheReport", "Outcome", "Progress", "Setting", "run"]

_SAMPLES: Final = 240
"""How often in a run the replicas' loads are looked at, for pictures."""

_RECENT: Final = 500
"""Requests whose homes are compared before and after a change of the membership."""

_PROGRESS_EVERY: Final = 256

Progress: TypeAlias = Callable[[int, int], None]
"""Told now and then how many of how many requests were sent."""


class CacheReport(Enum):
    """When replies report how many prompt tokens were cached.

    ``START``: with the first token; ``END``: with the usage at the end of the reply, as the usual
    APIs do; ``NEVER``: not at all.
    """

    START = "start"
    END = "end"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the requests of a trace come to the replicas.

    Args:
        routers: Routers that share nothing; each request goes through a random one.
        replace_after: A router is replaced by a new one after this many requests; ``None``: never.
        report_every_s: Interval at which every router is told the replicas' running and waiting
            counts, seconds; ``None``: never.
        cache_report: When replies report how many prompt tokens were cached.
        stream: Whether replies are streamed; if not, no router sees a first token.
        seed: Places the ring and picks the routers.

    Raises:
        ConfigurationError: A value out of its range.
    """

    routers: int = 1
    replace_after: int | None = None
    report_every_s: float | None = None
    cache_report: CacheReport = CacheReport.END
    stream: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("Setting", "routers", self.routers, 1)
        if self.replace_after is not None:
            check_int("Setting", "replace_after", self.replace_after, 1)
        if self.report_every_s is not None:
            check_number("Setting", "report_every_s", self.report_every_s, above=True)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run measured.

    Attributes:
        ttft_s: Times to first token, in the order of first tokens.
        prompt_tokens: Sum over all requests.
        cached_tokens: How many of them were found cached.
        requests: Of each replica.
        work_s: Prefill of each replica, seconds.
        samples: ``(time, requests at each replica)``.
        moved: Share of keys whose home moved, for each change of the membership.
        policy_s: CPU time spent in the routers, seconds.
    """

    ttft_s: array[float]
    prompt_tokens: int
    cached_tokens: int
    requests: list[int]
    work_s: list[float]
    samples: list[tuple[float, tuple[int, ...]]]
    moved: list[float]
    policy_s: float


def run(
    trace: Trace,
    factory: PolicyFactory,
    models: Sequence[ReplicaModel],
    setting: Setting,
    *,
    progress: Progress | None = None,
) -> Outcome:
    """Replay a trace.

    Args:
        trace: Its times are taken as they are.
        factory: Makes the routers.
        models: Of the replicas at the start; one that joins later is like the first.
        setting: How requests come to them.
        progress: Told now and then how far it is.
    """
    return _Run(trace.streamed(stream=setting.stream), factory, models, setting).go(progress)


class _Run:
    def __init__(
        self,
        trace: Trace,
        factory: PolicyFactory,
        models: Sequence[ReplicaModel],
        setting: Setting,
    ) -> None:
        if not models:
            raise ConfigurationError("replicas=0 must be at least 1")
        self._trace, self._factory, self._setting = trace, factory, setting
        self._events = Events()
        self._spare = models[0]
        self._replicas: list[Replica] = []
        self._members = list(range(len(models)))
        self._outcome = Outcome(
            ttft_s=array("d"),
            prompt_tokens=0,
            cached_tokens=0,
            requests=[],
            work_s=[],
            samples=[],
            moved=[],
            policy_s=0.0,
        )
        for model in models:
            self._add_replica(model)
        self._rng = Random(setting.seed)  # noqa: S311 - which router a request goes through
        self._shared: dict[object, object] = {}
        self._made = 0
        self._routers = [self._new_router() for _ in range(setting.routers)]
        self._used = [0] * setting.routers
        every = setting.report_every_s
        self._next_report_s = math.inf if every is None else every
        self._sample_every_s = max(trace.duration_s / _SAMPLES, 1e-3)
        self._next_sample_s = 0.0
        self._sent = 0

    def _add_replica(self, model: ReplicaModel) -> None:
        replica = make_replica(
            model,
            block_tokens=self._trace.block_tokens,
            events=self._events,
            first=self._first_token,
            last=self._last_token,
        )
        self._replicas.append(replica)
        self._outcome.requests.append(0)
        self._outcome.work_s.append(0.0)

    def _new_router(self) -> SimulatedRouter:
        setup = Setup(
            members=tuple(self._members),
            block_tokens=self._trace.block_tokens,
            seed=self._setting.seed,
            serial=self._made,
            routers=self._setting.routers,
            shared=self._shared,
        )
        self._made += 1
        return self._factory.start(setup)

    # -- the trace -------------------------------------------------------------

    def go(self, progress: Progress | None) -> Outcome:
        """Send every request at its time, and let all of them end."""
        changes = list(self._trace.changes)
        total = len(self._trace)
        for request in self._trace.requests:
            now = request.at_s
            while changes and changes[0].at_s <= now:
                self._until(changes[0].at_s)
                self._change(changes.pop(0))
            self._until(now)
            self._send(request, now)
            self._sent += 1
            if progress is not None and self._sent % _PROGRESS_EVERY == 0:
                progress(self._sent, total)
        self._events.run_until(math.inf)
        if progress is not None:
            progress(total, total)
        return self._outcome

    def _until(self, now: float) -> None:
        """Let everything happen up to a time, with the reports and samples that are due."""
        due = min(self._next_report_s, self._next_sample_s)
        while due <= now:
            self._events.run_until(due)
            counts = [replica.counts() for replica in self._replicas]
            if due == self._next_report_s:
                self._report(counts, due)
            if due == self._next_sample_s:
                load = tuple([running + waiting for running, waiting in counts])
                self._outcome.samples.append((due, load))
                self._next_sample_s += self._sample_every_s
            due = min(self._next_report_s, self._next_sample_s)
        self._events.run_until(now)

    def _report(self, counts: Sequence[tuple[int, int]], now: float) -> None:
        started = thread_time()
        for router in self._routers:
            router.reported(counts, now)
        self._outcome.policy_s += thread_time() - started
        self._next_report_s += self._setting.report_every_s or math.inf

    def _send(self, request: Request, now: float) -> None:
        at = self._rng.randrange(len(self._routers)) if len(self._routers) > 1 else 0
        limit = self._setting.replace_after
        if limit is not None and self._used[at] >= limit:
            self._routers[at], self._used[at] = self._new_router(), 0
        self._used[at] += 1
        router = self._routers[at]
        started = thread_time()
        replica, ticket = router.route(request, now)
        self._outcome.policy_s += thread_time() - started
        job = Job(request, router, replica, ticket, now)
        self._replicas[replica].submit(job, now)
        outcome = self._outcome
        outcome.requests[replica] += 1
        outcome.work_s[replica] += job.work_s
        outcome.prompt_tokens += job.tokens
        outcome.cached_tokens += job.cached_tokens

    # -- what comes back -------------------------------------------------------

    def _first_token(self, job: Job, now: float) -> None:
        self._outcome.ttft_s.append(now - job.sent_s)
        if not self._setting.stream:
            return
        early = self._setting.cache_report is CacheReport.START
        started = thread_time()
        job.router.first_token(job.ticket, job.cached_tokens if early else None, now)
        self._outcome.policy_s += thread_time() - started

    def _last_token(self, job: Job, now: float) -> None:
        never = self._setting.cache_report is CacheReport.NEVER
        started = thread_time()
        job.router.done(job.ticket, job.tokens, None if never else job.cached_tokens, now)
        self._outcome.policy_s += thread_time() - started

    # -- membership ------------------------------------------------------------

    def _change(self, change: Change) -> None:
        probe, recent = self._routers[0], self._recent()
        before = [probe.home(request, change.at_s) for request in recent]
        if change.joins:
            while change.replica >= len(self._replicas):
                self._add_replica(self._spare)
            self._replicas[change.replica].clear()
            members = sorted({*self._members, change.replica})
        else:
            members = [replica for replica in self._members if replica != change.replica]
        if not members:
            raise ConfigurationError("the trace takes out its last replica; keep at least one")
        self._members = members
        for router in self._routers:
            router.set_members(members, change.at_s)
        after = [probe.home(request, change.at_s) for request in recent]
        pairs = [(b, a) for b, a in zip(before, after, strict=True) if b is not None]
        if pairs:
            self._outcome.moved.append(sum(b != a for b, a in pairs) / len(pairs))

    def _recent(self) -> Sequence[Request]:
        return self._trace.requests[max(0, self._sent - _RECENT) : self._sent]
