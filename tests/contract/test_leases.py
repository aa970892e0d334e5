"""However a reply ends, its lease is released exactly once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from prefixroute import Endpoint, Event, Failover, HealthPolicy, HealthState, Router
from prefixroute.core.events import RequestDone, RequestSent
from tests.contract.flavours import BODY, Client, Flavour, Inner, Received, in_turn, sse, urls

# httpx leaves its own generators to be collected when a reply is not read to its end; trio minds.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx|tests):ResourceWarning")

CHUNK = '{"choices":[{"index":0,"delta":{"content":"a"}}]}'
EVENTS = sse(CHUNK, CHUNK, CHUNK, "[DONE]")


class Log:
    """Counts what was sent and what ended."""

    def __init__(self) -> None:
        self.sent = 0
        self.done: list[RequestDone] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestSent):
            self.sent += 1
        elif isinstance(event, RequestDone):
            self.done.append(event)


def routed(count: int = 2, **settings: Any) -> tuple[Router, Log]:
    log = Log()
    return Router(urls(count), observers=[log], **settings), log


def released_once(router: Router, log: Log, *, requests: int = 1, failed: int = 0) -> None:
    assert router.stats().in_flight == 0
    assert log.sent == len(log.done) == requests
    assert sum(one.failed for one in log.done) == failed
    assert router.stats().failures == failed


def test_read_to_its_end(flavour: Flavour) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.open()
            assert router.stats().in_flight == 1
            assert [chunk async for chunk in client.chunks(reply)] == EVENTS
            assert router.stats().in_flight == 0
            await client.close_response(reply)
        released_once(router, log)

    flavour.run(main)


def test_a_reply_that_is_not_streamed(flavour: Flavour) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={"a": 1}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.open()
            assert router.stats().in_flight == 1
            assert await client.read(reply) == reply.content
            assert reply.json() == {"a": 1}
        released_once(router, log)

    flavour.run(main)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_closed_early(flavour: Flavour, chunks: int) -> None:
    router, log = routed()
    bodies = []

    def handler(_: Received) -> Any:
        bodies.append(flavour.stream(*EVENTS))
        headers = {"content-type": "text/event-stream"}
        return flavour.module.Response(200, headers=headers, stream=bodies[-1])

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            reply = await client.open()
            reading = client.chunks(reply)
            for _ in range(chunks):
                await anext(reading)
            assert router.stats().in_flight == 1
            await client.close_response(reply)
            assert router.stats().in_flight == 0
            await client.close_response(reply)
            await reading.aclose()  # type: ignore[attr-defined]
        assert bodies[0].closed >= 1
        released_once(router, log)

    flavour.run(main)


def test_closed_twice_by_hand(flavour: Flavour) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.open()
            for _ in range(2):
                closed = reply.stream.close() if flavour.is_sync else reply.stream.aclose()
                if not flavour.is_sync:
                    await closed
        released_once(router, log)

    flavour.run(main)


def test_iterated_twice(flavour: Flavour) -> None:
    """Some SDKs read on by a second iteration of the stream itself, to drain it."""
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.open()
            for _ in range(2):
                if flavour.is_sync:
                    assert list(reply.stream) == EVENTS
                else:
                    assert [chunk async for chunk in reply.stream] == EVENTS
                released_once(router, log)
            await client.close_response(reply)
        released_once(router, log)

    flavour.run(main)


@pytest.mark.parametrize("chunks", [0, 1])
def test_dropped_and_collected(flavour: Flavour, chunks: int) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    async def leave(client: Any) -> None:
        reply = await client.open()
        if chunks and flavour.is_sync:  # an async generator would be closed by its event loop
            next(iter(reply.stream))
        elif chunks:
            await anext(reply.stream._stream.__aiter__())

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await leave(client)
            inner.received.clear()
            gc.collect()
            assert router.stats().in_flight == 0
        released_once(router, log)

    flavour.run(main)


def test_a_collection_inside_the_lock_does_not_deadlock(flavour: Flavour) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    async def leave(client: Any) -> None:
        reply = await client.open()
        if flavour.is_sync:
            reading = reply.iter_raw()
            next(reading)
            reply.self = reading  # a cycle: only a collection finds it

    async def main() -> None:
        gc.disable()
        try:
            async with flavour.client(router, inner) as client:
                await leave(client)
                inner.received.clear()
                with router._locked():
                    gc.collect()
        finally:
            gc.enable()
        released_once(router, log)

    flavour.run(main)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_case_33_a_body_that_breaks_off(flavour: Flavour, before: int) -> None:
    router, log = routed(3)
    error = flavour.error("ReadError")
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS[:before], error))

    async def main() -> None:
        got = []
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            reading = client.chunks(reply)
            got += [await anext(reading) for _ in range(before)]
            with pytest.raises(flavour.module.ReadError) as raised:
                await anext(reading)
            assert raised.value.request.url.host == "prefixroute.invalid"
        assert got == EVENTS[:before]
        assert len(inner.received) == 1, "never sent again"
        released_once(router, log, failed=1)

    flavour.run(main)


def test_an_error_of_the_readers_own(flavour: Flavour) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    async def fail(client: Client) -> None:
        async with client.streaming() as reply:
            reading = client.chunks(reply)
            try:
                await anext(reading)
                raise KeyError("mine")
            finally:
                await reading.aclose()  # type: ignore[attr-defined]

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(KeyError):
                await fail(client)
        released_once(router, log)

    flavour.run(main)


def test_a_response_hook_that_raises(flavour: Flavour) -> None:
    router, log = routed()
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS))

    def hook(_: Any) -> None:
        raise KeyError("hook")

    async def ahook(_: Any) -> None:
        raise KeyError("hook")

    async def main() -> None:
        hooks = {"response": [hook if flavour.is_sync else ahook]}
        async with flavour.client(router, inner, event_hooks=hooks) as client:
            with pytest.raises(KeyError, match="hook"):
                await client.post()
        released_once(router, log)

    flavour.run(main)


def test_a_body_that_cannot_be_decoded(flavour: Flavour) -> None:
    router, log = routed()
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    broken = flavour.module.Response(200, headers=headers, stream=flavour.stream(b"not gzip"))

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, lambda _: broken)) as client:
            with pytest.raises(flavour.module.DecodingError):
                await client.post()
        released_once(router, log, failed=1)
        assert len(router._ledger.failed_calls._failed) == 1  # its retry goes elsewhere

    flavour.run(main)


def test_case_29_each_attempt_is_released_once(flavour: Flavour) -> None:
    router, log = routed(2)
    error = flavour.error("ReadError")
    first = flavour.module.Response(503, json={})
    inner = Inner(flavour, in_turn(first, flavour.events(EVENTS[0], error)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.open()
            assert [one.in_flight for one in router.stats().endpoints if one.in_flight] == [1]
            with pytest.raises(flavour.module.ReadError):
                await client.read(reply)
            assert {one.in_flight for one in router.stats().endpoints} == {0}
            await client.close_response(reply)
            assert {one.in_flight for one in router.stats().endpoints} == {0}
        assert log.sent == len(log.done) == 2
        assert [one.requests for one in router.stats().endpoints] == [1, 1]

    flavour.run(main)


# -- cancellation ----------------------------------------------------------------------------------


class Cancels:
    """Cancels the running task at its n-th wait inside of the inner transport."""

    def __init__(self, flavour: Flavour, at: int) -> None:
        self.flavour, self.at, self.passed = flavour, at, 0
        self.scope: trio.CancelScope | None = None

    async def wait(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            if self.scope is not None:
                self.scope.cancel()
            else:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
        await self.flavour.checkpoint()

    async def run(self, main: Any) -> bool:
        """Run it; return whether it came to its end."""
        if self.flavour.mode == "trio":
            with trio.CancelScope() as self.scope:
                await main()
                return True
            return False
        task = asyncio.ensure_future(main())
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True

    def body(self, *parts: bytes) -> Any:
        cancels = self

        class Body(self.flavour.module.AsyncByteStream):  # type: ignore[name-defined, misc]
            async def __aiter__(self) -> AsyncIterator[bytes]:
                for part in parts:
                    await cancels.wait()
                    yield part
                await cancels.wait()

            async def aclose(self) -> None:
                await cancels.wait()

        return Body()


def refused_then_streamed(flavour: Flavour, cancels: Cancels) -> Inner:
    """Waits wherever a request can: before an answer, in bodies, in closing them."""

    async def answer(received: Received) -> Any:
        first = len(inner.received) == 1
        await cancels.wait()
        if first:
            return flavour.module.Response(503, stream=cancels.body(b"{}"))
        headers = {"content-type": "text/event-stream"}
        return flavour.module.Response(200, headers=headers, stream=cancels.body(*EVENTS))

    inner = Inner(flavour, answer)
    return inner


@pytest.mark.parametrize("read", [True, False])
def test_case_27_cancelled_at_every_wait(async_flavour: Flavour, *, read: bool) -> None:
    flavour = async_flavour

    async def once(at: int) -> bool:
        router, log = routed(2, failover=Failover(budget_per_minute=1e6))
        cancels = Cancels(flavour, at)
        inner = refused_then_streamed(flavour, cancels)

        async def call() -> None:
            async with client.streaming() as reply:
                if read:
                    await client.read(reply)

        async with flavour.client(router, inner) as client:
            ended = await cancels.run(call)
        assert router.stats().in_flight == 0
        assert log.sent == len(log.done)
        assert router.stats().failures == 0
        return ended

    async def main() -> None:
        at = 1
        while not await once(at):
            at += 1
        assert at > (10 if read else 5)

    flavour.run(main)


def test_case_27_cancelled_a_thousand_times(async_flavour: Flavour) -> None:
    flavour = async_flavour
    router, log = routed(1)

    def handler(_: Received) -> Any:
        return flavour.sleep(60)

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, handler)) as client:
            if flavour.mode == "trio":
                async with trio.open_nursery() as nursery:
                    for _ in range(1000):
                        nursery.start_soon(client.post)
                    await trio.testing.wait_all_tasks_blocked()
                    assert router.stats().in_flight == 1000
                    nursery.cancel_scope.cancel()
            else:
                tasks = [asyncio.ensure_future(client.post()) for _ in range(1000)]
                for _ in range(20):
                    await asyncio.sleep(0)
                assert router.stats().in_flight == 1000
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        assert router.stats().endpoints[0].state is HealthState.HEALTHY
        released_once(router, log, requests=1000)

    flavour.run(main)


def test_a_task_that_is_collected_takes_no_lock(async_flavour: Flavour) -> None:
    flavour = async_flavour
    router, log = routed(1)

    class Never:
        def __await__(self) -> Any:
            yield
            raise AssertionError("resumed")

        async def handle_async_request(self, _: Any) -> Any:
            await self

    async def main() -> None:
        transport = flavour.transport(router, Never())
        request = flavour.module.Request("POST", f"{router.base_url}/chat/completions", json=BODY)
        task = transport.handle_async_request(request)
        task.send(None)
        assert router.stats().in_flight == 1
        with router._lock:
            task.close()  # as a collection would
        del task
        gc.collect()
        released_once(router, log)
        await transport.aclose()

    flavour.run(main)


# -- what an end says of the endpoint --------------------------------------------------------------


def probing(flavour: Flavour) -> tuple[Router, list[float]]:
    """A router whose only endpoint is ejected and due for a probe."""
    now = [0.0]
    health = HealthPolicy(failures=1, eject_for_s=10, jitter=0)
    router = Router([Endpoint("http://gpu-0:8000/v1")], clock=lambda: now[0], health=health)
    with router.acquire(BODY) as lease:
        lease.failed(OSError("down"))
    now[0] = 20.0
    return router, now


@pytest.mark.parametrize(
    ("chunks", "readmitted"), [(0, False), (1, False), (3, False), (4, True), (5, True)]
)
def test_a_caller_who_leaves_says_nothing_unless_the_stream_was_over(
    flavour: Flavour, chunks: int, readmitted: bool
) -> None:
    router, _ = probing(flavour)
    inner = Inner(flavour, lambda _: flavour.events(*EVENTS, b": tail\n\n"))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            reading = client.chunks(reply)
            for _ in range(chunks):
                await anext(reading)
            await client.close_response(reply)
            await reading.aclose()  # type: ignore[attr-defined]
        state = router.stats().endpoints[0].state
        assert state is (HealthState.HEALTHY if readmitted else HealthState.EJECTED)

    flavour.run(main)


@pytest.mark.parametrize(
    "event",
    [
        b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
        b'data: {"type":"response.incomplete","response":{}}\n\n',
        b"data:[DONE]\r\n\r\n",
    ],
)
def test_the_ends_of_streams_of_other_apis(flavour: Flavour, event: bytes) -> None:
    router, _ = probing(flavour)
    inner = Inner(flavour, lambda _: flavour.events(event, b": tail\n\n"))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            reading = client.chunks(reply)
            await anext(reading)
            await client.close_response(reply)
            await reading.aclose()  # type: ignore[attr-defined]
        assert router.stats().endpoints[0].state is HealthState.HEALTHY

    flavour.run(main)


def test_a_reply_read_to_its_end_readmits(flavour: Flavour) -> None:
    router, _ = probing(flavour)
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
        assert router.stats().endpoints[0].state is HealthState.HEALTHY

    flavour.run(main)
