"""What callers do with a reply, and when they leave: it blames nobody, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import trio

from prefixroute import HealthState, Router
from tests.contract.flavours import CHAT, STREAM, Client, Flavour
from tests.faults.cases import FLAVOURS
from tests.faults.server import FaultServer, Plan
from tests.faults.support import body_of, busy, first_of, read, router_of
from tests.faults.wire import (
    EVENTS,
    JSON_BODY,
    JSON_POSITIONS,
    STREAM_BODY,
    STREAM_POSITIONS,
    json_reply,
    stream_reply,
)

# The libraries leave their own generators to be collected when a reply is not read to its end.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx|httpcore):ResourceWarning")

Act = Callable[[Client, Any], Coroutine[None, None, None]]


async def closes(client: Client, response: Any) -> None:
    await client.close_response(response)


async def closes_twice(client: Client, response: Any) -> None:
    await client.close_response(response)
    await client.close_response(response)


async def closes_after_one_chunk(client: Client, response: Any) -> None:
    chunks = client.chunks(response)
    await anext(chunks)
    await client.close_response(response)
    await chunks.aclose()  # type: ignore[attr-defined]


async def closes_after_done(client: Client, response: Any) -> None:
    chunks, got = client.chunks(response), b""
    while not got.endswith(EVENTS[-1]):
        got += await anext(chunks)
    await client.close_response(response)
    await chunks.aclose()  # type: ignore[attr-defined]


async def reads_and_closes_twice(client: Client, response: Any) -> None:
    assert await client.read(response) == STREAM_BODY
    await closes_twice(client, response)


async def reads_twice(client: Client, response: Any) -> None:
    assert await client.read(response) == STREAM_BODY
    assert await client.read(response) == STREAM_BODY
    await client.close_response(response)


async def iterates_twice(client: Client, response: Any) -> None:
    assert await read(client, response) == (STREAM_BODY, None)
    _, error = await read(client, response)
    assert isinstance(error, client.flavour.module.StreamConsumed)


async def reads_after_closing(client: Client, response: Any) -> None:
    await client.close_response(response)
    with pytest.raises(client.flavour.module.StreamClosed):
        await client.read(response)


ACTS: list[Act] = [
    closes,
    closes_twice,
    closes_after_one_chunk,
    closes_after_done,
    reads_and_closes_twice,
    reads_twice,
    iterates_twice,
    reads_after_closing,
]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_caller_who(flavour: Flavour, server: FaultServer, act: Act) -> None:
    router = router_of(server, "faulty", "good")

    async def main() -> None:
        async with flavour.client(router) as client:
            response = await client.open()
            assert router.stats().in_flight == 1
            await act(client, response)
            is_well(router)
            assert (await client.post()).content == JSON_BODY
        assert server.count("faulty") == 2

    flavour.run(main)


def is_well(router: Router) -> None:
    assert router.stats().in_flight == 0
    assert busy(router) == 0
    first = first_of(router)
    assert (first.state, first.failures) == (HealthState.HEALTHY, 0)


@pytest.mark.parametrize("closes", ["the client", "the router"])
def test_a_caller_who_closes_all_in_mid_stream(
    flavour: Flavour, server: FaultServer, closes: str
) -> None:
    server.plans["x"] = Plan(stream_reply()[: STREAM_POSITIONS["among events"]], "stall")
    router = router_of(server, "faulty", "good")

    async def main() -> None:
        client = flavour.client(router, headers={"x-fault": "x"})
        response = await client.open()
        chunks = client.chunks(response)
        await anext(chunks)
        if closes == "the router" and flavour.is_sync:
            router.close()
        elif closes == "the router":
            await router.aclose()
        await client.aclose()
        error = None
        while error is None:
            error = await error_of(chunks)
        assert isinstance(error, flavour.module.ReadError)
        is_well(router)

    async def error_of(chunks: AsyncIterator[bytes]) -> Exception | None:
        try:
            await anext(chunks)
        except Exception as error:  # noqa: BLE001 - told to the test
            return error
        return None

    flavour.run(main)


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_caller_who_drops_a_reply(flavour: Flavour, server: FaultServer, chunks: int) -> None:
    router = router_of(server, "faulty", "good")

    async def leave(client: Client) -> None:
        response = await client.open()
        if chunks:
            await anext(client.chunks(response))

    async def main() -> None:
        async with flavour.client(router) as client:
            await leave(client)
            while router.stats().in_flight:  # an event loop closes what was collected in its turns
                gc.collect()
                await flavour.checkpoint()
            assert first_of(router).failures == 0
            assert (await client.post()).content == JSON_BODY

    flavour.run(main)


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("name", ["send_request_headers", "receive_response_headers"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    "flavour", [one for one in FLAVOURS if one.is_sync], ids=lambda f: f"{f.library}-{f.mode}"
)
def test_an_interrupt_before_the_reply(
    flavour: Flavour,
    server: FaultServer,
    name: str,
    error: type[BaseException],
    *,
    streamed: bool,
) -> None:
    router = router_of(server, "faulty", "good")

    def trace(event: str, info: dict[str, Any]) -> None:
        if event == f"http11.{name}.started":
            raise error

    async def main() -> None:
        async with flavour.client(router) as client:
            with pytest.raises(error):
                await client.post(json=body_of(streamed=streamed), extensions={"trace": trace})
            is_well(router)
            assert (await client.post()).content == JSON_BODY

    flavour.run(main)


PLANS = {
    (streamed, position): Plan(reply[:at], "stall")
    for streamed, reply, positions in (
        (False, json_reply(), JSON_POSITIONS),
        (True, stream_reply(), STREAM_POSITIONS),
    )
    for position, at in positions.items()
}


@pytest.mark.parametrize(
    ("streamed", "position"),
    PLANS,
    ids=[f"{'stream' if streamed else 'json'}-{position}" for streamed, position in PLANS],
)
@pytest.mark.parametrize(
    "flavour", [one for one in FLAVOURS if not one.is_sync], ids=lambda f: f"{f.library}-{f.mode}"
)
def test_a_caller_who_is_cancelled(
    flavour: Flavour, server: FaultServer, position: str, *, streamed: bool
) -> None:
    server.plans["stall"] = PLANS[streamed, position]
    router = router_of(server, "faulty", "good")

    async def call(client: Client) -> None:
        headers = {"x-fault": "stall"}
        async with client.streaming(CHAT, json=body_of(streamed=streamed), headers=headers) as one:
            await client.read(one)

    async def main() -> None:
        async with flavour.client(router) as client:
            await cancelled(flavour, server, lambda: call(client))
            is_well(router)
            assert (await client.post()).content == JSON_BODY
        assert server.count("good") == 0

    flavour.run(main)


@pytest.mark.parametrize(
    "flavour", [one for one in FLAVOURS if not one.is_sync], ids=lambda f: f"{f.library}-{f.mode}"
)
def test_a_caller_who_is_cancelled_while_a_refusal_is_read(
    flavour: Flavour, server: FaultServer
) -> None:
    server.plans["x"] = Plan(json_reply(503, b"x" * 100, retry_after="30")[:-50], "stall")
    router = router_of(server, "faulty", "good")

    async def main() -> None:
        async with flavour.client(router) as client:
            await cancelled(
                flavour,
                server,
                lambda: client.post(headers={"x-fault": "x"}),
                when=lambda: first_of(router).state is HealthState.COOLING,
            )
            assert router.stats().in_flight == 0
            assert busy(router) == 0
        assert server.count("good") == 0

    flavour.run(main)


async def cancelled(
    flavour: Flavour,
    server: FaultServer,
    call: Callable[[], Coroutine[Any, Any, None]],
    *,
    when: Callable[[], bool] = lambda: True,
) -> None:
    """Begin a call, and cancel it when the server has come to its stall, and ``when`` says so."""

    async def until_stalled() -> None:
        while not (server.stalled.is_set() and when()):
            await flavour.sleep(0.001)

    if flavour.mode == "trio":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await until_stalled()
            nursery.cancel_scope.cancel()
        return
    task = asyncio.ensure_future(call())
    await until_stalled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_body_stays_as_it_is(flavour: Flavour, server: FaultServer) -> None:
    router = router_of(server, "faulty")
    server.plans["tail"] = Plan(stream_reply(*EVENTS, b"data: more\n\n"))

    async def main() -> None:
        async with flavour.client(router) as client:
            reply = await client.post(json=STREAM, headers={"x-fault": "tail"})
            assert reply.content == STREAM_BODY + b"data: more\n\n"
        assert router.stats().failures == 0

    flavour.run(main)
