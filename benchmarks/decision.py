"""What a decision costs: ``python -m benchmarks.decision --json``.

From the bytes of a body to a lease that is taken and released, in CPU time, against F: a scan of
the same body with msgspec that leaves the messages as they are, one hash of them and one look-up
on a ring of 8 x 160 virtual nodes. F is measured in the same turns. Fixed windows, many endpoints,
a change of them, and threads follow.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import mmh3
import msgspec

from benchmarks.bodies import TURNS, chat, encoded
from benchmarks.measuring import Row, by_turns, cpu_us, options, packages, ratio_row, show
from prefixroute import Fixed, Placement, Router

SIZES: Final = (8_000, 32_000, 128_000)
"""Tokens of a chat."""

ENDPOINTS: Final = 8
MANY: Final = 1024
THREADS: Final = 16
FIXED_US: Final = 8.0
CHANGE_MS: Final = 20.0


class Scanned(msgspec.Struct):
    """A body whose messages are not looked into."""

    messages: msgspec.Raw


_scan = msgspec.json.Decoder(Scanned).decode
_RING: Final = sorted(random.Random(0).getrandbits(64) for _ in range(ENDPOINTS * 160))


def floor(body: bytes) -> int:
    """Do the least that any placement by content has to do: F."""
    key = mmh3.mmh3_x64_128_utupledigest(memoryview(_scan(body).messages))[0]
    return bisect_right(_RING, key)


def urls(count: int) -> list[str]:
    """Return so many endpoints."""
    return [f"http://gpu-{number}:8000/v1" for number in range(count)]


def make(count: int = ENDPOINTS, placement: Placement | None = None) -> Router:
    """Return a router that has placed a few chats before, and learned from their replies."""
    router = Router(urls(count), placement=placement, seed=0)
    for number in range(50):
        with router.acquire(encoded(chat(-1 - number, 1000, 6))) as lease:
            time.sleep(0.001)  # a first token that came at once would tell of no queue
            lease.first_token()
            lease.usage(prompt_tokens=200, cached_tokens=100)
    return router


def decide(router: Router) -> Callable[[bytes], object]:
    """Return what is measured."""

    def run(body: bytes) -> None:
        router.acquire(body).release()

    return run


def chats(tokens: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield bodies of chats never seen before, and the bodies of their next turns."""
    count = max(8, 320_000 // tokens)
    for first in range(0, 10**9, count):
        made = [chat(number, tokens, TURNS + 2) for number in range(first, first + count)]
        yield [encoded(one[:-2]) for one in made], [encoded(one) for one in made]


def turns(tokens: int, repeats: int) -> list[Row]:
    """Return first sights and next turns of chats of this size."""
    fs, first, following = list[float](), list[float](), list[float]()
    router = make()
    run = decide(router)
    for (bodies, later), _ in zip(chats(tokens), range(repeats), strict=False):
        fs.append(cpu_us(floor, bodies))
        first.append(cpu_us(run, bodies))
        following.append(cpu_us(run, later))
    size, f = f"{tokens // 1000}k tokens", statistics.median(fs)
    return [
        ratio_row(
            f"{what}, {size}",
            figures,
            fs,
            unit="F",
            goal=goal,
            note=f"{statistics.median(figures):.0f} us, F {f:.1f} us",
        )
        for what, figures, goal in (("first sight", first, 2.5), ("next turn", following, 1.3))
    ]


def fixed(repeats: int) -> list[Row]:
    """Return decisions of ``Fixed``, by the size of the chat."""
    run = decide(make(placement=Fixed(prefix_bytes=1024)))
    sizes = (1_000, *SIZES)
    bodies = {tokens: next(chats(tokens))[0] for tokens in sizes}
    found = by_turns(
        {str(tokens): partial(cpu_us, run, of_size) for tokens, of_size in bodies.items()}, repeats
    )
    rows = [
        ratio_row(
            f"Fixed(prefix_bytes=1024), {int(name) // 1000}k tokens",
            figures,
            [1.0] * repeats,
            unit="us",
            goal=FIXED_US,
        )
        for name, figures in found.items()
    ]
    flat = ratio_row(
        "Fixed(prefix_bytes=1024), 128k against 1k tokens",
        found["128000"],
        found["1000"],
        unit="x",
        goal=1.1,
    )
    return [*rows, flat]


def growth(repeats: int) -> Row:
    """Return a decision among 1,024 endpoints against one among 8, chats of 8k tokens."""
    few, many = decide(make()), decide(make(MANY))
    seen: dict[str, list[float]] = {"few": [], "many": []}
    for (bodies, _), _ in zip(chats(SIZES[0]), range(repeats), strict=False):
        seen["few"].append(cpu_us(few, bodies))
        seen["many"].append(cpu_us(many, bodies))
    return ratio_row(
        f"{MANY} endpoints against {ENDPOINTS}, first sight, 8k tokens",
        seen["many"],
        seen["few"],
        unit="x",
        goal=2.0,
        note=f"{statistics.median(seen['many']):.0f} us against "
        f"{statistics.median(seen['few']):.0f} us",
    )


class TimedLock:
    """A lock that notes for how long it was held."""

    def __init__(self) -> None:
        self._lock, self._since, self.held_ms = threading.Lock(), 0, list[float]()

    def acquire(self) -> None:
        """Take it."""
        self._lock.acquire()
        self._since = time.thread_time_ns()

    def release(self) -> None:
        """Give it back."""
        self.held_ms.append((time.thread_time_ns() - self._since) / 1e6)
        self._lock.release()


def changes(repeats: int) -> list[Row]:
    """Return what it costs to change the members of a large router, and how much holds the lock."""
    router = make(MANY)
    lock: Any = TimedLock()
    router._lock = lock  # noqa: SLF001 - there is no other way to see how long it is held
    every = urls(MANY)

    def timed(change: Callable[[], object]) -> float:
        return cpu_us(lambda _: change(), [None]) / 1000

    taken: dict[str, list[float]] = {"remove()": [], "add()": [], "set_endpoints(URLs)": []}
    held: dict[str, list[float]] = {name: [] for name in taken}
    for number in range(repeats):
        gone = every[number * 7 % MANY]
        for name, change in (
            ("remove()", lambda gone=gone: router.remove(gone)),
            ("add()", lambda gone=gone: router.add(gone)),
            ("set_endpoints(URLs)", lambda gone=gone: router.set_endpoints(set(every) - {gone})),
        ):
            taken[name].append(timed(change))
            held[name].append(lock.held_ms[-1])
        router.set_endpoints(every)
    return [
        ratio_row(
            f"{name} at {MANY} endpoints",
            figures,
            [1.0] * repeats,
            unit="ms",
            goal=CHANGE_MS,
            note=f"of it inside the lock {statistics.median(held[name]):.2f} ms",
        )
        for name, figures in taken.items()
    ]


def threads(repeats: int) -> Row:
    """Return the throughput of 16 threads on one router against one thread's; wall time."""
    bodies = next(chats(SIZES[0]))[0] * 16
    run = decide(make())

    def wall_s(count: int) -> float:
        each = len(bodies) // count
        start = threading.Barrier(count + 1)

        def work(part: Sequence[bytes]) -> None:
            start.wait()
            for body in part:
                run(body)

        workers = [
            threading.Thread(target=work, args=(bodies[i * each : (i + 1) * each],))
            for i in range(count)
        ]
        for worker in workers:
            worker.start()
        start.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - began

    found = by_turns({"one": lambda: wall_s(1), "many": lambda: wall_s(THREADS)}, repeats)
    return ratio_row(
        f"decisions a second, {THREADS} threads against one, wall time",
        found["one"],
        found["many"],
        unit="x",
        goal=0.9,
        at_least=True,
    )


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    chosen = options(__doc__, repeats=9)
    rows = [row for tokens in SIZES for row in turns(tokens, chosen.repeats)]
    rows += [*fixed(chosen.repeats), growth(chosen.repeats), *changes(chosen.repeats)]
    rows.append(threads(chosen.repeats))
    show(rows, packages("prefixroute", "mmh3", "msgspec"), as_json=chosen.json)


if __name__ == "__main__":
    main()
