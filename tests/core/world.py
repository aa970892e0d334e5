"""Engines in virtual time: each prefills in order, remembers what it has seen, and decodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prefixroute.core.decision import Decision
from prefixroute.core.lease import Lease
from prefixroute.core.router import RouterCore

from .support import FakeClock

RATE = 8000.0
"""Tokens of prefill a second."""


@dataclass(slots=True)
class Engine:
    """One engine: when its prefill queue is empty, and the block hashes that it holds."""

    free_at: float = 0.0
    held: set[int] = field(default_factory=set)

    def prefill(self, chain: tuple[int, ...], ends: list[float], now: float) -> tuple[float, int]:
        """Return when the first token comes, and how many tokens were cached."""
        cached = 0.0
        for key, end in zip(chain, ends, strict=True):
            if key not in self.held:
                break
            cached = end
        self.held.update(chain)
        tokens = max(1.0, (ends[-1] if ends else 1.0) - cached)
        self.free_at = max(now, self.free_at) + 0.02 + tokens / RATE
        return self.free_at, round(cached)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that was placed."""

    tag: object
    decision: Decision
    in_flight: int
    eligible: int


class World:
    """Runs requests through routers against engines.

    Args:
        clock: What the routers look at.
        decode_s: How long a reply goes on after its first token, seconds.
    """

    def __init__(self, clock: FakeClock, *, decode_s: float = 1.0) -> None:
        self.clock = clock
        self.engines: dict[str, Engine] = {}
        self.sent: list[Sent] = []
        self._decode_s = decode_s
        self._serial = 0
        self._due: list[tuple[float, int, Lease, int | None]] = []

    def send(self, router: RouterCore, body: Any, tag: object = None) -> Lease:
        """Place one request now."""
        prompt = router.read(body)
        total = router.stats().in_flight
        lease = router.acquire(prompt)
        engine = self.engines.setdefault(lease.endpoint.id, Engine())
        ends = [end * prompt.tokens_per_unit for end in prompt.ends]
        at, cached = engine.prefill(prompt.chain, ends, self.clock.now)
        self._push(at, lease, cached)
        now_there = router.in_flight(lease.endpoint)
        self.sent.append(Sent(tag, lease.decision, now_there, total))
        return lease

    def _push(self, at: float, lease: Lease, cached: int | None) -> None:
        self._serial += 1
        heapq.heappush(self._due, (at, self._serial, lease, cached))

    def until(self, moment: float) -> None:
        """Let time pass; replies come and end as they are due."""
        while self._due and self._due[0][0] <= moment:
            at, _, lease, cached = heapq.heappop(self._due)
            self.clock.now = max(self.clock.now, at)
            if cached is None:
                lease.release()
            else:
                lease.first_token(cached)
                self._push(at + self._decode_s, lease, None)
        self.clock.now = max(self.clock.now, moment)

    def finish(self) -> None:
        """Let everything end."""
        while self._due:
            self.until(self._due[0][0])

    def play(self, arrivals: Iterable[tuple[float, RouterCore, Any, object]]) -> list[Sent]:
        """Send ``(seconds from now, router, body, tag)`` in order of time; return what was sent."""
        start, first = self.clock.now, len(self.sent)
        for at, router, body, tag in sorted(arrivals, key=lambda arrival: arrival[0]):
            self.until(start + at)
            self.send(router, body, tag)
        self.finish()
        return self.sent[first:]


def places(sent: Iterable[Sent], tag: object) -> list[str]:
    """Where the requests with a tag went."""
    return [one.decision.endpoint.id for one in sent if one.tag == tag]
