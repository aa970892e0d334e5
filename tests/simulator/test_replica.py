from __future__ import annotations

import math
from functools import partial

import pytest

from prefixroute.errors import ConfigurationError
from prefixroute.simulator import ReplicaModel, Request
from prefixroute.simulator.batched import make_replica
from prefixroute.simulator.replica import Events, Job

from .support import BLOCK, Script, model, request


class Bench:
    """One replica, and what comes of the jobs that are given to it."""

    def __init__(self, **settings: object) -> None:
        self.events = Events()
        self.first: list[float] = []
        self.last: list[float] = []
        self.replica = make_replica(
            model(**settings),
            block_tokens=BLOCK,
            events=self.events,
            first=lambda job, now: self.first.append(now),
            last=lambda job, now: self.last.append(now),
        )

    def send(self, one: Request) -> Job:
        job = Job(one, Script([0]), 0, None, one.at_s)
        self.events.run_until(one.at_s)
        self.replica.submit(job, one.at_s)
        return job

    def end(self) -> None:
        self.events.run_until(math.inf)


def test_a_prefill_takes_its_uncached_tokens_and_a_fixed_time() -> None:
    bench = Bench(fixed_s=0.5)
    first = bench.send(request(1.0, [1, 2]))
    again = bench.send(request(10.0, [1, 2, 3]))
    bench.end()
    assert bench.first == pytest.approx([1.7, 10.6])
    assert (first.cached_tokens, again.cached_tokens) == (0, 200)
    assert (first.work_s, again.work_s) == pytest.approx((0.7, 0.6))


def test_prefills_wait_for_each_other_and_decoding_for_nobody() -> None:
    bench = Bench()
    for number in range(3):
        bench.send(request(0.0, [number], out=20))
    bench.end()
    assert bench.first == pytest.approx([0.1, 0.2, 0.3])
    assert bench.last == pytest.approx([2.1, 2.2, 2.3])


def test_who_comes_while_a_prefix_is_computed_finds_it() -> None:
    bench = Bench()
    bench.send(request(0.0, [1, 2]))
    assert bench.send(request(0.01, [1, 2, 3])).cached_tokens == 200


def test_counts_tell_who_waits_and_who_runs() -> None:
    bench = Bench()
    for number in range(3):
        bench.send(request(0.0, [number], out=2))
    assert bench.replica.counts() == (0, 3)
    bench.events.run_until(0.15)
    assert bench.replica.counts() == (1, 2)
    bench.end()
    assert bench.replica.counts() == (0, 0)


def test_a_cleared_replica_finds_nothing() -> None:
    bench = Bench()
    bench.send(request(0.0, [1]))
    bench.replica.clear()
    assert bench.send(request(5.0, [1])).cached_tokens == 0


# -- chunked prefill, batched decoding ---------------------------------------------


def test_alone_a_batched_replica_is_like_the_other() -> None:
    one, other = Bench(), Bench(chunk_tokens=1000, decode_slowdown=0.0)
    for bench in (one, other):
        bench.send(request(0.0, [1, 2], out=4))
        bench.end()
    assert other.first == pytest.approx(one.first)
    assert other.last == pytest.approx(one.last)


def test_a_long_prefill_comes_in_chunks_between_which_others_decode() -> None:
    bench = Bench(chunk_tokens=100, decode_slowdown=0.0)
    bench.send(request(0.0, [1], out=50))
    bench.send(request(0.05, list(range(10, 15)), out=1))
    bench.end()
    # The short one's first token at 0.1; then each step has a token and a chunk: 0.2 s.
    assert bench.first == pytest.approx([0.1, 0.1 + 5 * 0.2])


def test_short_prefills_share_a_chunk() -> None:
    bench = Bench(chunk_tokens=300)
    bench.send(request(0.0, [9]))
    for number in range(3):
        bench.send(request(0.01, [number]))
    bench.end()
    assert bench.first[0] == pytest.approx(0.1)
    assert len(set(bench.first[1:])) == 1


def test_a_large_batch_decodes_more_slowly() -> None:
    def ended(count: int) -> float:
        bench = Bench(chunk_tokens=10_000, decode_slowdown=0.1)
        for number in range(count):
            bench.send(request(0.0, [number], tokens=1, out=50))
        bench.end()
        assert len(bench.last) == count
        return max(bench.last)

    assert ended(20) > 1.5 * ended(1)


def test_who_finds_the_batch_full_waits() -> None:
    bench = Bench(chunk_tokens=1000, max_running=2)
    for number in range(3):
        bench.send(request(0.0, [number], out=10))
    bench.end()
    assert bench.first[2] >= bench.last[0]


def test_replies_of_no_tokens_end_with_their_prefill() -> None:
    bench = Bench(chunk_tokens=1000)
    bench.send(request(0.0, [1], out=0))
    bench.end()
    assert bench.first == bench.last == pytest.approx([0.1])


@pytest.mark.parametrize(
    "settings",
    [
        {"cache_blocks": -1},
        {"prefill_tokens_per_s": 0},
        {"fixed_s": -1.0},
        {"decode_s": math.nan},
        {"chunk_tokens": 0},
        {"slots": 0},
        {"max_running": 0},
        {"decode_slowdown": -0.1},
    ],
)
def test_models_that_cannot_be_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        ReplicaModel(**settings)  # type: ignore[arg-type]


def _append(seen: list[int], number: int, job: Job, now: float) -> None:
    seen.append(number)


def test_events_of_one_time_come_in_the_order_in_which_they_were_added() -> None:
    events, seen = Events(), list[int]()
    job = Job(request(0.0, [1]), Script([0]), 0, None, 0.0)
    for number in range(5):
        events.at(1.0, partial(_append, seen, number), job)
    events.run_until(0.5)
    assert seen == []
    events.run_until(1.0)
    assert seen == [0, 1, 2, 3, 4]
