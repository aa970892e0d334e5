"""Connections that the server closes between two requests, or as soon as they are accepted."""

from __future__ import annotations

import pytest

from prefixroute import HealthState
from tests.contract.flavours import CHAT, Flavour
from tests.faults.server import FaultServer, Plan, Then
from tests.faults.support import body_of, busy, first_of, router_of
from tests.faults.wire import JSON_BODY, STREAM_BODY


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_stale_connection_is_replaced_and_blames_nobody(
    flavour: Flavour, server: FaultServer, then: Then, *, streamed: bool
) -> None:
    server.plans["stale"] = Plan(b"", then, reused_only=True)
    router = router_of(server, "faulty", "good")

    async def main() -> None:
        async with flavour.client(router) as client:
            for _ in range(3):
                body = body_of(streamed=streamed)
                reply = await client.post(CHAT, json=body, headers={"x-fault": "stale"})
                assert reply.content == (STREAM_BODY if streamed else JSON_BODY)
            assert busy(router) == 0
        assert server.received == [("faulty", "stale")] * 5  # the 2nd and the 3rd came twice
        first = first_of(router)
        assert (first.state, first.failures, first.requests) == (HealthState.HEALTHY, 0, 3)

    flavour.run(main)


def test_a_connection_that_was_closed_while_idle_is_not_even_tried(
    flavour: Flavour, server: FaultServer
) -> None:
    server.plans["closed"] = Plan(then="close")
    router = router_of(server, "faulty", "good")

    async def main() -> None:
        async with flavour.client(router) as client:
            for _ in range(3):
                reply = await client.post(headers={"x-fault": "closed"})
                assert reply.content == JSON_BODY
                server.wait_until_left()
        assert server.count("faulty") == 3
        assert router.stats().failures == 0

    flavour.run(main)


def test_a_server_that_is_gone_the_second_time_is_blamed(
    flavour: Flavour, server: FaultServer
) -> None:
    server.plans["mute"] = Plan(b"", "close")
    router = router_of(server, "faulty", "good")

    async def main() -> None:
        async with flavour.client(router) as client:
            await client.post()
            with pytest.raises(flavour.module.RemoteProtocolError):
                await client.post(headers={"x-fault": "mute"})
            assert busy(router) == 0
        assert server.count("faulty") == 3
        assert first_of(router).state is HealthState.EJECTED

    flavour.run(main)


# httpx leaves the generator of a request's body to its collection when it cannot be written.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
@pytest.mark.parametrize("replay", [False, True], ids=["", "replayed"])
@pytest.mark.parametrize("port", ["closing", "resetting"])
def test_a_connection_that_is_accepted_and_dropped(
    flavour: Flavour, server: FaultServer, port: str, *, replay: bool
) -> None:
    """What is known of it by then differs: that it never was, or that it broke."""
    router = router_of(server, port, "good", replay_sent=replay)
    module = flavour.module

    async def main() -> None:
        async with flavour.client(router) as client:
            try:
                reply = await client.post()
            except (module.ReadError, module.WriteError, module.RemoteProtocolError):
                assert not replay
                assert server.count("good") == 0
            else:
                assert reply.content == JSON_BODY
                assert server.count("good") == 1
            assert router.stats().in_flight == 0
            assert busy(router) == 0
        assert first_of(router).state is HealthState.EJECTED
        assert router.stats().failures == 1

    flavour.run(main)
