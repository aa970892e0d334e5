"""A late answer is asked for elsewhere too; whoever loses is ended, and nothing of it stays."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest

from prefixroute import AttemptsFailed, ConfigurationError, Failover, HealthState, Router
from tests.contract.flavours import CHAT, Flavour, urls
from tests.faults.cases import FLAVOURS
from tests.faults.server import FaultServer, Plan
from tests.faults.support import body_of, busy, patient, read, router_of, timeouts
from tests.faults.test_callers import cancelled
from tests.faults.wire import JSON_BODY, JSON_POSITIONS, STREAM_BODY, json_reply

# httpx leaves the generator of a request's body to its collection when it is cancelled on trio.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

HEADERS = {"x-fault": "x"}
HUNG = Plan(b"", "stall")
HEALTHY, EJECTED, COOLING = HealthState.HEALTHY, HealthState.EJECTED, HealthState.COOLING


def hedging(server: FaultServer, *ports: str, **failover: Any) -> Router:
    failover = {"hedge_after_s": 0.03, **failover}
    return router_of(server, *(ports or ("faulty", "good")), replay_sent=True, **failover)


def states(router: Router) -> list[HealthState]:
    return [one.state for one in router.stats().endpoints]


def attempts_running() -> int:
    return sum(thread.name == "prefixroute-attempt" for thread in threading.enumerate())


async def nothing_stays(flavour: Flavour, router: Router) -> None:
    """Within far less than any timeout of the attempts."""
    assert router.stats().in_flight == 0
    until = time.monotonic() + 5
    while busy(router) or attempts_running():
        assert time.monotonic() < until, f"{busy(router)} busy, {attempts_running()} threads"
        if flavour.is_sync:
            time.sleep(0.0005)  # noqa: ASYNC251 - there is no event loop
        await flavour.checkpoint()


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("position", ["nothing", "status line", "headers"])
@pytest.mark.parametrize("reused", [False, True], ids=["new", "reused"])
def test_the_second_wins(
    flavour: Flavour, server: FaultServer, position: str, *, streamed: bool, reused: bool
) -> None:
    server.plans["x"] = Plan(json_reply()[: JSON_POSITIONS[position]], "stall")
    router = hedging(server)

    async def main() -> None:
        async with flavour.client(router, timeout=60) as client:
            if reused:
                await client.post()
            response = await client.open(CHAT, json=body_of(streamed=streamed), headers=HEADERS)
            assert router.stats().in_flight == 1, "of the loser nothing is counted"
            body = STREAM_BODY if streamed else JSON_BODY
            assert await read(client, response) == (body, None)
            assert response.extensions["prefixroute"].endpoint.url == server.url("good")
            await nothing_stays(flavour, router)
            assert states(router) == [HEALTHY, HEALTHY]
            assert (await client.post()).content == JSON_BODY
        asked = [port for port, key in server.received if key]  # the others may be late as well
        assert asked == ["faulty", "good"]

    flavour.run(main)


def test_the_first_wins_late(flavour: Flavour, server: FaultServer) -> None:
    server.plans.update({"x": Plan(after="good"), "good: x": HUNG})
    router = hedging(server)

    async def main() -> None:
        async with flavour.client(router, timeout=60) as client:
            reply = await client.post(headers=HEADERS)
            assert reply.content == JSON_BODY
            assert reply.extensions["prefixroute"].endpoint.url == server.url("faulty")
            await nothing_stays(flavour, router)
        assert states(router) == [HEALTHY, HEALTHY]

    flavour.run(main)


def test_a_refusal_of_the_second_does_not_win(flavour: Flavour, server: FaultServer) -> None:
    server.plans.update({"x": Plan(after="good"), "good: x": Plan(json_reply(503, b"{}"))})
    router = hedging(server)

    async def main() -> None:
        async with flavour.client(router, timeout=60) as client:
            reply = await client.post(headers=HEADERS)
            assert reply.content == JSON_BODY
            await nothing_stays(flavour, router)
        assert states(router)[0] is HEALTHY

    flavour.run(main)


def test_an_answer_in_time_is_not_hedged(flavour: Flavour, server: FaultServer) -> None:
    router = hedging(server, hedge_after_s=30)

    async def main() -> None:
        async with flavour.client(router) as client:
            assert (await client.post()).content == JSON_BODY
            async with client.streaming() as response:
                assert await client.read(response) == STREAM_BODY
            await nothing_stays(flavour, router)
        assert server.count("good") == 0

    flavour.run(main)


@pytest.mark.parametrize("port", ["refused", "garbled tls"])
def test_who_cannot_be_reached_needs_no_hedge(
    flavour: Flavour, server: FaultServer, port: str
) -> None:
    router = hedging(server, port, "good", hedge_after_s=30)

    async def main() -> None:
        async with flavour.client(router) as client:
            assert (await client.post()).content == JSON_BODY
            await nothing_stays(flavour, router)
        assert states(router) == [EJECTED, HEALTHY]

    flavour.run(main)


def test_both_hang_and_the_third_is_asked(flavour: Flavour, server: FaultServer) -> None:
    server.plans.update({"x": HUNG, "good: x": HUNG})
    router = hedging(server, "faulty", "good", "spare")

    async def main() -> None:
        async with flavour.client(router, timeout=timeouts(flavour, 0.3)) as client:
            extensions = patient(flavour, server)
            reply = await client.post(headers=HEADERS, extensions=extensions)
            assert reply.content == JSON_BODY
            await nothing_stays(flavour, router)
        assert states(router) == [EJECTED, EJECTED, HEALTHY]

    flavour.run(main)


def test_both_fail_and_nobody_is_left(flavour: Flavour, server: FaultServer) -> None:
    server.plans.update({"x": HUNG, "good: x": HUNG})
    router = hedging(server)

    async def main() -> None:
        async with flavour.client(router, timeout=timeouts(flavour, 0.2)) as client:
            with pytest.raises(flavour.module.ReadTimeout) as raised:
                await client.post(headers=HEADERS)
            cause = raised.value.__cause__
            assert isinstance(cause, AttemptsFailed)
            assert len(cause.attempts) == 2
            await nothing_stays(flavour, router)

    flavour.run(main)


def test_a_caller_who_leaves_ends_both(flavour: Flavour, server: FaultServer) -> None:
    server.plans.update({"x": HUNG, "good: x": HUNG})
    router = hedging(server)

    def interrupt() -> None:
        while server.count("good") == 0:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    async def main() -> None:
        async with flavour.client(router, timeout=60) as client:
            if flavour.is_sync:
                threading.Thread(target=interrupt).start()
                # Where a shell started this in the background, SIGINT is ignored.
                before = signal.signal(signal.SIGINT, signal.default_int_handler)
                with pytest.raises(KeyboardInterrupt):
                    await client.post(headers=HEADERS)
                signal.signal(signal.SIGINT, before)
            else:
                server.stalled.clear()
                await cancelled(flavour, server, lambda: client.post(headers=HEADERS))
            await nothing_stays(flavour, router)
        assert states(router) == [HEALTHY, HEALTHY]

    flavour.run(main)


def test_many_hedges_leave_nothing(flavour: Flavour, server: FaultServer) -> None:
    server.plans["x"] = HUNG
    router = hedging(server, hedge_after_s=0.005, budget_per_minute=1000)

    async def main() -> None:
        async with flavour.client(router, timeout=60) as client:
            for _ in range(10):
                assert (await client.post(headers=HEADERS)).content == JSON_BODY
            await nothing_stays(flavour, router)
        assert server.count("good") == 10

    flavour.run(main)


# -- what cannot be ended is refused ---------------------------------------------------------------


def hedging_anywhere() -> Router:
    return Router(urls(2), failover=Failover(replay_sent=True, hedge_after_s=1))


@pytest.mark.parametrize(
    "flavour", [one for one in FLAVOURS if one.is_sync], ids=lambda f: f.library
)
def test_a_sync_transport_whose_attempts_cannot_be_ended_is_refused(flavour: Flavour) -> None:
    module, router = flavour.module, hedging_anywhere()
    for inner in (module.MockTransport(print), module.WSGITransport(print)):
        with pytest.raises(ConfigurationError, match=r"hedge_after_s.*async client"):
            router.transport(inner)
    with module.HTTPTransport() as inner:
        router.transport(inner).close()
    router.async_transport(module.MockTransport(print))
    Router(urls(2)).transport(module.MockTransport(print)).close()


def test_a_transport_over_http_2_is_refused() -> None:
    import httpx

    class Pool:
        _http2, _requests, _optional_thread_lock = True, (), None

    inner = httpx.HTTPTransport()
    inner.close()
    inner._pool = Pool()  # type: ignore[assignment]  # h2 may not be installed
    with pytest.raises(ConfigurationError, match="HTTP/2"):
        hedging_anywhere().transport(inner)
