"""The prototype of the placement, as a rule to compare the product with.

It has no bounds on memory, no weights, tiers, health or membership, and knows the number of
replicas. Its constants and steps are those with which its figures in the table of goals were made.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

from prefixroute.core.ring import Ring
from prefixroute.simulator.policies import PolicyFactory
from prefixroute.simulator.routers import Setup
from prefixroute.simulator.traces import Request

__all__ = ["PROTOTYPE"]

TARGET = 1 / 8
HALF_LIFE_S = 600.0
PRICE, PRICE_BLIND = 4.0, 3.0
RELAX = 0.5
FACTOR, SLACK = 1.25, 8.0
STALE_S = 3.0
SURE = 4.0
DECAY = math.log(2) / HALF_LIFE_S


class Ticket:
    """What the prototype keeps of a request."""

    __slots__ = (
        "answered", "due", "held", "level", "own_wait", "replica", "request",
        "sent", "serial", "work",
    )  # fmt: skip

    def __init__(self, request: Request, replica: int, serial: int, now: float) -> None:
        self.request, self.replica, self.serial, self.sent = request, replica, serial, now
        self.held = self.work = self.own_wait = self.due = 0.0
        self.level: int | None = None
        self.answered = False


class Prototype:
    """One router."""

    def __init__(self, setup: Setup) -> None:
        n = self.n = len(setup.members)
        self.block_tokens = setup.block_tokens
        key = ("prototype ring", setup.seed)
        ring = setup.shared.get(key)
        if ring is None:
            ring = Ring([(f"replica-{e}", 1.0) for e in range(n)], seed=setup.seed)
            setup.shared[key] = ring
        self.ring = cast("Ring", ring)
        self.counts: dict[int, tuple[float, float]] = {}
        self.total, self.seen = (0.0, 0.0), 0
        self.map: dict[int, set[int]] = {}
        self.in_flight, self.unanswered = [0] * n, [0] * n
        self.queued = [0.0] * n
        self.open: list[OrderedDict[int, Ticket]] = [OrderedDict() for _ in range(n)]
        self.serial = self.replies = 0
        self.rate = self.wait = self.service = 0.0
        self.last_wait, self.last_at = [0.0] * n, [0.0] * n
        self.work, self.work2, self.work_at = [0.0] * n, [0.0] * n, 0.0
        self.credit = [[5.0, 10.0], [5.0, 10.0]]
        self.waiting: list[int] | None = None
        self.reported_at, self.mean_uncached = 0.0, 4000.0

    # -- where a chain belongs -------------------------------------------------

    def count(self, block: int, now: float) -> float:
        """Return the decayed count of requests with a prefix."""
        value, at = self.counts.get(block, (0.0, now))
        return value * math.exp(-DECAY * (now - at))

    def homes(self, chain: Sequence[int], now: float) -> tuple[list[int], int, bool, list[int]]:
        """Return candidates, depth, whether the home is one, and blocks assumed held."""
        holds = [0] * self.n
        total = self.total[0] * math.exp(-DECAY * (now - self.total[1]))
        found = self.walk(chain, total, now, holds)
        self.total, self.seen = (total + 1.0, now), self.seen + 1
        for block in chain:
            self.counts[block] = (self.count(block, now) + 1.0, now)
        return (*found, holds)

    def walk(
        self, chain: Sequence[int], total: float, now: float, holds: list[int]
    ) -> tuple[list[int], int, bool]:
        """Narrow the set down the chain."""
        if self.seen == 0:
            depth = min(1, len(chain) - 1)
            return list(self.ring.order(chain[depth])), depth, True
        members: set[int] | None = None
        order: list[int] = []
        for depth, block in enumerate(chain):
            count = self.count(block, now)
            part = min(1.0, count / total) if total else 0.0
            share = max(0.0, count - math.sqrt(count * (1.0 - part))) / (total + 1.0)
            need = share * self.n / TARGET
            order = [e for e in self.ring.order(block) if members is None or e in members]
            if need <= 1.0:
                return order, depth, True
            order = order[: math.ceil(need)]
            if len(order) == 1:
                return order, depth, True
            members = set(order)
            if count >= SURE:
                for e in order:
                    holds[e] = depth + 1
        return order, len(chain) - 1, False

    def known(self, chain: Sequence[int]) -> list[int]:
        """Return the leading blocks that each replica was sent."""
        blocks, alive = [0] * self.n, set(range(self.n))
        for depth, block in enumerate(chain):
            alive &= self.map.get(block, set())
            if not alive:
                break
            for e in alive:
                blocks[e] = depth + 1
        return blocks

    # -- how busy is everyone, in seconds of prefill ---------------------------

    def fresh(self, now: float) -> bool:
        """Return whether the last report is believed."""
        return self.waiting is not None and now - self.reported_at <= STALE_S

    def loads(self, rate: float, now: float) -> list[float]:
        """Return the load of each replica."""
        if self.waiting is not None and self.fresh(now):
            age, mean = now - self.reported_at, self.mean_uncached / rate
            return [
                max(0.0, self.waiting[e] * mean - age) + self.queued[e] / rate
                for e in range(self.n)
            ]
        fade = math.exp(-DECAY * (now - self.work_at))
        self.work = [x * fade for x in self.work]
        self.work2 = [x * fade for x in self.work2]
        self.work_at = now
        mean = sum(self.work) / self.n + 1e-9
        return [self.queued[e] / rate + self.foreign(e, mean, now) for e in range(self.n)]

    def foreign(self, e: int, mean_work: float, now: float) -> float:
        """Return the guess of others' queue at a replica."""
        mean = self.wait
        wait = mean * max(1.0, (self.work[e] - math.sqrt(self.work2[e])) / mean_work)
        if self.last_at[e]:
            age = now - self.last_at[e]
            wait += (self.last_wait[e] - wait) * math.exp(-age / (RELAX * mean + 1e-9))
        if self.open[e] and mean > 0.0:
            oldest = next(iter(self.open[e].values()))
            if now > oldest.due + wait:
                busy = mean / (mean + self.service)
                wait = max(wait, busy * (now - oldest.sent) + mean)
        return wait

    # -- one decision ------------------------------------------------------------

    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Weigh the candidates."""
        prompt = request.prompt
        chain, tokens = prompt.chain, float(prompt.size)
        order, depth, unique, holds = self.homes(chain, now)
        rate = self.rate or 8000.0
        loads, known = self.loads(rate, now), self.known(chain)
        order += [e for e in self.ring.order(chain[depth]) if e not in order]
        held = [self.block_tokens * max(a, b) for a, b in zip(known, holds, strict=True)]
        uncached = [max(1.0, tokens - h) / rate for h in held]
        level, home = int(depth > 0), order[0] if unique else None
        if home is not None:
            found, replies = self.credit[level]
            uncached[home] = max(1.0 / rate, uncached[home] * (1.0 - found / replies))
        price = PRICE
        if not self.fresh(now) and self.service:
            price += PRICE_BLIND * self.wait / self.service
        least, total = min(uncached), sum(self.in_flight)
        bound = max(math.ceil(FACTOR * (total + 1) / self.n), total / self.n + SLACK)
        allowed = [e for e in order if self.in_flight[e] + 1 <= bound] or order
        e = min(allowed, key=lambda x: loads[x] + uncached[x] + price * (uncached[x] - least))
        self.serial += 1
        ticket = Ticket(request, e, self.serial, now)
        ticket.work, ticket.held = uncached[e] * rate, float(held[e])
        ticket.level = level if e == home else None
        ticket.own_wait = self.queued[e] / rate
        ticket.due = now + ticket.own_wait + uncached[e]
        self.send(ticket, uncached[e], chain)
        return e, ticket

    def send(self, ticket: Ticket, seconds: float, chain: Sequence[int]) -> None:
        """Count the request."""
        e = ticket.replica
        self.in_flight[e] += 1
        self.unanswered[e] += 1
        self.queued[e] += ticket.work
        self.work[e] += seconds
        self.work2[e] += seconds * seconds
        self.open[e][ticket.serial] = ticket
        for block in chain:
            self.map.setdefault(block, set()).add(e)

    # -- what comes back ---------------------------------------------------------

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:
        """Learn from a first token."""
        ticket = cast("Ticket", ticket)
        e, ticket.answered = ticket.replica, True
        self.queued[e] -= ticket.work
        self.unanswered[e] -= 1
        del self.open[e][ticket.serial]
        if cached_tokens is None:
            return
        prompt = ticket.request.prompt
        tokens, uncached = prompt.size, prompt.size - cached_tokens
        self.mean_uncached += 0.02 * (uncached - self.mean_uncached)
        if cached_tokens < min(tokens - 1, ticket.held) - self.block_tokens:
            for block in prompt.chain[cached_tokens // self.block_tokens + 1 :]:
                self.map.get(block, set()).discard(e)
            for block in prompt.chain:
                self.map.setdefault(block, set()).add(e)
        if ticket.level is not None and tokens - 1 > ticket.held:
            found = (cached_tokens - ticket.held) / (tokens - 1 - ticket.held)
            credit = self.credit[ticket.level]
            credit[0] = credit[0] * 0.99 + max(0.0, min(1.0, found))
            credit[1] = credit[1] * 0.99 + 1.0
        self.time(ticket, uncached, now)

    def time(self, ticket: Ticket, uncached: int, now: float) -> None:
        """Learn the rate and the waits."""
        took, e = now - ticket.sent, ticket.replica
        self.rate = max(self.rate * 0.9995, uncached / took)
        service = uncached / self.rate
        self.replies += 1
        step = max(0.03, 1.0 / self.replies)
        self.wait += step * (max(0.0, took - ticket.own_wait - service) - self.wait)
        self.service += step * (service - self.service)
        busy = self.wait / (self.wait + self.service) if self.wait > 0.0 else 0.0
        self.last_wait[e] = busy * max(0.0, took - ticket.own_wait)
        self.last_at[e] = now

    def done(
        self,
        ticket: object,
        prompt_tokens: int,  # noqa: ARG002
        cached_tokens: int | None,
        now: float,
    ) -> None:
        """Count the request as ended."""
        ticket = cast("Ticket", ticket)
        if not ticket.answered:
            self.first_token(ticket, cached_tokens, now)
        self.in_flight[ticket.replica] -= 1

    def reported(self, counts: Sequence[tuple[int, int]], now: float) -> None:
        """Take the engines' counts; what is beyond own unanswered requests is others'."""
        pairs = zip(counts, self.unanswered, strict=True)
        self.waiting = [max(0, waiting - own) for (_, waiting), own in pairs]
        self.reported_at = now

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Refuse: the prototype has no membership."""
        raise NotImplementedError

    def home(self, request: Request, now: float) -> int | None:  # noqa: ARG002
        """Return ``None``: this is not asked of the prototype."""
        return None


PROTOTYPE = PolicyFactory(name="prototype", start=Prototype)
