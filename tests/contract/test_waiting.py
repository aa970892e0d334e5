"""When every endpoint is at its ``max_in_flight`` calls wait, in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import trio

from prefixroute import Endpoint, Failover, Router
from tests.contract.flavours import Client, Flavour, Inner, Received, urls


def limited(count: int = 1, *, most: int = 1, **failover: Any) -> Router:
    endpoints = [Endpoint(url, max_in_flight=most) for url in urls(count)]
    return Router(endpoints, failover=Failover(**failover))


def threads(flavour: Flavour, calls: list[Callable[[], Any]], started: Callable[[], int]) -> None:
    running = []
    for number, call in enumerate(calls):
        running.append(threading.Thread(target=flavour.run, args=(call,)))
        running[-1].start()
        while started() <= number:
            time.sleep(0.001)
    for thread in running:
        thread.join()


async def tasks(
    flavour: Flavour, calls: list[Callable[[], Any]], started: Callable[[], int]
) -> None:
    async with anyio.create_task_group() as group:
        for number, call in enumerate(calls):
            group.start_soon(call)
            while started() <= number:
                await flavour.sleep(0.001)


class Gate:
    """Holds the first request until the others wait; the inner transport of the tests below."""

    def __init__(self, flavour: Flavour, router: Router, others: int) -> None:
        self.flavour, self.router, self.others = flavour, router, others
        self.order: list[str] = []

    def full(self) -> bool:
        return len(self.router._ledger.waiting) >= self.others

    def started(self) -> int:
        return len(self.order) + len(self.router._ledger.waiting)

    def __call__(self, received: Received) -> Any:
        self.order.append(received.headers["x-number"])
        first = len(self.order) == 1
        response = self.flavour.module.Response(200, json={})
        if self.flavour.is_sync:
            while first and not self.full():
                time.sleep(0.001)
            return response

        async def answer() -> Any:
            while first and not self.full():
                await self.flavour.sleep(0.001)
            return response

        return answer()


def caller(client: Client, number: int, seen: list[int]) -> Callable[[], Any]:
    async def call() -> None:
        reply = await client.post(headers={"x-number": str(number)})
        seen.append(reply.status_code)

    return call


def test_case_31_calls_wait_in_order(flavour: Flavour) -> None:
    router = limited()
    gate = Gate(flavour, router, 8)
    seen: list[int] = []

    client = flavour.client(router, Inner(flavour, gate))
    calls = [caller(client, number, seen) for number in range(9)]

    async def main() -> None:
        await tasks(flavour, calls, gate.started)
        await client.aclose()

    if flavour.is_sync:
        threads(flavour, calls, gate.started)
        client.http.close()
    else:
        flavour.run(main)
    assert gate.order == [str(number) for number in range(9)]
    assert seen == [200] * 9
    assert not router._ledger.waiting


def test_nobody_waits_longer_than_the_queue_timeout(flavour: Flavour) -> None:
    router = limited(2, queue_timeout_s=0.05)
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with router.acquire("a"), router.acquire("b"):
                began = time.monotonic()
                reply = await client.post()
                assert 0.04 < time.monotonic() - began < 2
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json()["error"]["code"] == "saturated"
            assert reply.extensions["prefixroute"] is None
            assert (await client.post()).status_code == 200
        assert len(inner.received) == 1
        assert not router._ledger.waiting

    flavour.run(main)


def test_a_caller_who_leaves_the_queue_is_not_waited_for(async_flavour: Flavour) -> None:
    flavour = async_flavour
    router = limited()
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with router.acquire("a"):
                if flavour.mode == "trio":
                    with trio.move_on_after(0.02):
                        await client.post()
                else:
                    task = asyncio.ensure_future(client.post())
                    await asyncio.sleep(0.02)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                assert not router._ledger.waiting
            assert (await client.post()).status_code == 200
        assert len(inner.received) == 1

    flavour.run(main)


def test_a_caller_who_leaves_as_room_is_given_gives_it_back(async_flavour: Flavour) -> None:
    flavour = async_flavour
    router = limited()
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            lease = router.acquire("a")
            if flavour.mode == "trio":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.post)
                    await trio.sleep(0.01)
                    lease.release()
                    nursery.cancel_scope.cancel()
            else:
                task = asyncio.ensure_future(client.post())
                await asyncio.sleep(0.01)
                lease.release()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert router.stats().in_flight == 0
            assert (await client.post()).status_code == 200

    flavour.run(main)


def test_room_at_another_endpoint_is_waited_for_after_a_failure(flavour: Flavour) -> None:
    router = Router(
        [Endpoint("http://a:1/v1"), Endpoint("http://b:1/v1", max_in_flight=1)],
        failover=Failover(queue_timeout_s=5),
    )

    def handler(received: Received) -> Any:
        if received.host == "a":
            timer.start()
            return flavour.error("ConnectError")
        return flavour.module.Response(200, json={})

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            reply = await client.post()
        assert reply.status_code == 200

    held = router.acquire("x", exclude=["http://a:1/v1"])
    timer = threading.Timer(0.05, held.release)
    flavour.run(main)
    timer.join()


def test_nobody_waits_for_endpoints_that_were_all_tried(flavour: Flavour) -> None:
    router = limited(2, queue_timeout_s=60)
    inner = Inner(flavour, lambda _: flavour.module.Response(503, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            began = time.monotonic()
            assert (await client.post()).status_code == 503
            assert time.monotonic() - began < 5
        assert len(inner.received) == 2

    flavour.run(main)


def test_a_cooldown_that_ends_makes_room(flavour: Flavour) -> None:
    router = limited(2, queue_timeout_s=10)
    cooling = router.acquire("x")
    cooling.failed(status=429, retry_after_s=0.05)
    cooling.release()
    held = router.acquire("y")
    assert held.endpoint != cooling.endpoint
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
        assert reply.extensions["prefixroute"].endpoint == cooling.endpoint
        held.release()

    flavour.run(main)


def test_nobody_is_overrun_and_nobody_forgotten(flavour: Flavour) -> None:
    router = limited(2, most=2, queue_timeout_s=30)
    running: list[int] = []
    most: list[int] = []

    def handler(received: Received) -> Any:
        running.append(1)
        most.append(len(running))
        if flavour.is_sync:
            time.sleep(0.001)
            running.pop()
            return flavour.module.Response(200, json={})

        async def answer() -> Any:
            await flavour.sleep(0.001)
            running.pop()
            return flavour.module.Response(200, json={})

        return answer()

    client = flavour.client(router, Inner(flavour, handler))
    seen: list[int] = []
    calls = [caller(client, number, seen) for number in range(40)]

    async def main() -> None:
        await tasks(flavour, calls, lambda: len(calls))
        await client.aclose()

    if flavour.is_sync:
        threads(flavour, calls, lambda: len(calls))
        client.http.close()
    else:
        flavour.run(main)
    assert seen == [200] * 40
    assert max(most) <= 4
    assert router.stats().in_flight == 0
