"""How many routers one Redis carries: the second part of ``benchmarks.fleet``.

The simulated routers send what ``RedisFleet`` sends: the same script with the same arguments, once
in every interval each, over connections of their own, and each has a subscription. Their shares
change every time. One real ``RedisFleet`` is among them, and its cost is what a router pays.
"""

from __future__ import annotations

import hashlib
import random
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from importlib.resources import files
from typing import Any, Final, Self

import msgspec
import redis

from prefixroute import Router
from prefixroute.signals import RedisFleet
from prefixroute.signals.fleet import VOTES
from tests.signals.redis_server import RedisServer

__all__ = ["Carried", "carry"]

ENDPOINTS: Final = 8
_BEAT: Final = files("prefixroute.signals").joinpath("beat.lua").read_text(encoding="utf-8")
_BASE: Final = "{prefixroute}:"
_KEYS: Final = [_BASE + name for name in ("owners", "deadlines", "totals", "members")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What it cost to have so many routers.

    Attributes:
        routers: How many.
        every_s: Interval of each.
        turns_per_s: That the server really answered: less than asked for if it can't keep up.
        server_share_of_a_core: CPU time of the server over time.
        server_us_per_turn: CPU time of the server for one turn of one router, microseconds.
        turn_p50_ms: Time from a question of a simulated router to its whole answer.
        turn_p99_ms: The same.
        commands_per_s_per_router: Of the real one.
        bytes_per_s_per_router: Of arguments and answers, of the real one.
        network_bytes_per_s_per_router: In both directions as the server counts, mean of all.
    """

    routers: int
    every_s: float
    turns_per_s: float
    server_share_of_a_core: float
    server_us_per_turn: float
    turn_p50_ms: float
    turn_p99_ms: float
    commands_per_s_per_router: float
    bytes_per_s_per_router: float
    network_bytes_per_s_per_router: float


def carry(server: RedisServer, routers: int, *, every_s: float, seconds: float) -> dict[str, Any]:
    """Let so many routers speak for so long; return the figures."""
    with server.client() as client:
        client.flushall()
        sha = str(client.script_load(_BEAT))
        assert sha == hashlib.sha1(_BEAT.encode(), usedforsecurity=False).hexdigest()  # noqa: S101
        urls = [f"http://gpu-{number}:8000/v1" for number in range(ENDPOINTS)]
        with (
            _Crowd(server, routers - 1, sha, urls, every_s) as crowd,
            Router(urls) as router,
            RedisFleet(router, server.url, every_s=every_s) as fleet,
        ):
            crowd.speak(2 * every_s)  # all are there
            stats, before, began = fleet.stats(), _usage(client), time.monotonic()
            commands, size = fleet._link.commands, fleet._link.bytes  # noqa: SLF001
            times = crowd.speak(seconds)
            after, took = _usage(client), time.monotonic() - began
            commands, size = fleet._link.commands - commands, fleet._link.bytes - size  # noqa: SLF001
            turns = len(times) + fleet.stats().turns - stats.turns
            assert fleet.stats().peers == routers - 1  # noqa: S101
    times.sort()
    cpu_s, network = after[0] - before[0], after[1] - before[1]
    return asdict(
        Carried(
            routers=routers,
            every_s=every_s,
            turns_per_s=turns / took,
            server_share_of_a_core=cpu_s / took,
            server_us_per_turn=1e6 * cpu_s / turns,
            turn_p50_ms=1e3 * times[len(times) // 2] if times else 0.0,
            turn_p99_ms=1e3 * times[len(times) * 99 // 100] if times else 0.0,
            commands_per_s_per_router=commands / took,
            bytes_per_s_per_router=size / took,
            network_bytes_per_s_per_router=network / took / routers,
        )
    )


def _usage(client: redis.Redis) -> tuple[float, int]:
    """Return the server's CPU seconds and bytes so far."""
    told: Any = client.info()
    cpu_s = told["used_cpu_user"] + told["used_cpu_sys"]
    return float(cpu_s), told["total_net_input_bytes"] + told["total_net_output_bytes"]


class _Crowd:
    """Simulated routers: a connection, a subscription and a random share each."""

    def __init__(
        self, server: RedisServer, count: int, sha: str, urls: Sequence[str], every_s: float
    ) -> None:
        self._every_s, self._sha, self._urls = every_s, sha, urls
        self._random = random.Random(0)
        self._lines = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
        self._ears = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
        for ear in self._ears:
            ear.sendall(_resp("SUBSCRIBE", _BASE + "events"))
        self._select = selectors.DefaultSelector()
        for number, line in enumerate(self._lines):
            line.settimeout(0.0)
            self._select.register(line, selectors.EVENT_READ, number)
        now = time.monotonic()
        self._due = [(now + every_s * self._random.random(), n) for n in range(count)]
        self._due.sort()
        self._asked: dict[int, float] = {}
        self._answers: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._select.close()
        for line in [*self._lines, *self._ears]:
            line.close()

    def _share(self) -> bytes:
        fields: list[str | int] = ["f:0123456789abcdef", 1]
        for url in self._urls:
            requests = self._random.randrange(4)
            if requests:
                tokens = requests * self._random.randrange(200, 4000)
                fields += [f"n:{url}", requests, f"t:{url}", tokens]
        return msgspec.msgpack.encode(fields)

    def speak(self, seconds: float) -> list[float]:
        """Speak for so long; return how long each turn took."""
        until, took = time.monotonic() + seconds, list[float]()
        while (now := time.monotonic()) < until:
            while self._due and self._due[0][0] <= now:
                at, number = heappop(self._due)
                heappush(self._due, (at + self._every_s, number))
                if number not in self._asked:  # else the last answer is not there yet
                    self._asked[number] = time.monotonic()
                    self._lines[number].sendall(self._question(number))
            wait = max(0.0, min(until, self._due[0][0] if self._due else until) - time.monotonic())
            for key, _ in self._select.select(wait):
                answer = self._answers.pop(key.data, b"") + key.fileobj.recv(65536)  # type: ignore[union-attr]
                if _complete(answer):
                    took.append(time.monotonic() - self._asked.pop(key.data))
                else:
                    self._answers[key.data] = answer
        return took

    def _question(self, number: int) -> bytes:
        owner, ttl_ms = f"{number:016x}", str(round(10_000 * self._every_s))
        given = (owner, ttl_ms, "600000", _BASE + "events", str(VOTES), self._share())
        return _resp("EVALSHA", self._sha, "4", *_KEYS, *given)


def _resp(*parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in encoded)


def _complete(answer: bytes) -> bool:
    """Return whether an answer of beat.lua is there to its end."""
    if not answer.startswith(b"*4\r\n"):
        raise RuntimeError(f"not an answer of the script: {answer[:200]!r}")
    lines = answer.split(b"\r\n", 6)  # two numbers, a version of two lines, a length, the totals
    return len(lines) == 7 and len(lines[6]) == int(lines[5][1:]) + 2
