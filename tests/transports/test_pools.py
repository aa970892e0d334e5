"""Pools: one per key, and per event loop; closed by whoever is last, or by the loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import trio
import trio.lowlevel

from prefixroute.transports.pools import Pools
from prefixroute.transports.waiting import current_loop


class Pool:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1
        await asyncio.sleep(0)


class TrioPool(Pool):
    async def aclose(self) -> None:
        self.closed += 1
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()


async def taken(pools: Pools, key: str, kind: type[Pool] = Pool) -> Any:
    return await pools.asynchronous(key, kind, current_loop())


def test_a_sync_pool_is_made_once() -> None:
    pools, made = Pools(), []
    barrier = threading.Barrier(8)

    def take() -> None:
        barrier.wait()
        made.append(pools.sync("a", Pool))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, made))) == 1
    assert pools.sync("b", Pool) is not made[0]
    pools.close()
    assert made[0].closed == 1
    assert pools.sync("a", Pool) is not made[0]


def test_each_event_loop_has_its_own_and_closes_it() -> None:
    pools, seen = Pools(), []

    async def main() -> None:
        one = await taken(pools, "a")
        assert await taken(pools, "a") is one
        seen.extend([one, await taken(pools, "b")])

    asyncio.run(main())
    asyncio.run(main())
    assert [pool.closed for pool in seen] == [1, 1, 1, 1]
    assert seen[0] is not seen[2]
    assert not pools._loops


def test_trio_closes_it_too() -> None:
    pools, seen = Pools(), []

    async def main() -> None:
        seen.append(await taken(pools, "a", TrioPool))

    trio.run(main)
    assert [pool.closed for pool in seen] == [1]
    assert not pools._loops


def test_closed_by_hand_is_not_closed_again_by_the_loop() -> None:
    pools, seen = Pools(), []

    async def main() -> None:
        seen.append(await taken(pools, "a"))
        await asyncio.gather(*[pools.aclose(current_loop()) for _ in range(3)])
        seen.append(await taken(pools, "a"))
        await pools.aclose(current_loop())

    asyncio.run(main())
    assert [pool.closed for pool in seen] == [1, 1]
    assert seen[0] is not seen[1]


def test_loops_that_ended_in_disorder_are_forgotten() -> None:
    pools = Pools()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(taken(pools, "a"))
    loop.close()  # without closing its asynchronous generators
    assert len(pools._loops) == 1
    asyncio.run(pools.asynchronous("a", Pool, "another"))
    assert loop not in pools._loops


def test_children_are_closed_with_their_parent() -> None:
    pools = Pools()
    child, gone = pools.child(), pools.child()
    pool = child.sync("a", Pool)
    del gone
    pools.close()
    assert pool.closed == 1

    async def main() -> None:
        own = await taken(child, "a")
        await pools.aclose(current_loop())
        assert own.closed == 1

    asyncio.run(main())


def test_what_is_dropped_is_closed() -> None:
    pools = Pools()
    pool = pools.sync("a", Pool)
    del pools
    gc.collect()
    assert pool.closed == 1


def test_the_last_of_each_kind() -> None:
    pools = Pools()
    for asynchronous in (False, True):
        pools.opened(asynchronous=asynchronous)
        pools.opened(asynchronous=asynchronous)
        assert not pools.was_last(asynchronous=asynchronous)
        assert pools.was_last(asynchronous=asynchronous)
