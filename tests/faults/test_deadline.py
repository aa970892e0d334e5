"""A deadline for the whole call, on real sockets: whatever hangs, the call ends by then."""

from __future__ import annotations

import time

import pytest
from tenacity import stop_after_attempt, wait_fixed

from prefixroute import AttemptsFailed, HealthState
from tests.contract.flavours import CHAT, Flavour
from tests.faults.server import FaultServer, Plan
from tests.faults.support import body_of, busy, first_of, read, router_of
from tests.faults.wire import JSON_BODY, JSON_POSITIONS, STREAM_BODY, json_reply, stream_reply

HEADERS = {"x-fault": "x"}
FAR_S = 30.0
"""What the call would take without."""


@pytest.mark.parametrize("replay", [False, True], ids=["", "replayed"])
@pytest.mark.parametrize("position", ["nothing", "headers"])
def test_an_attempt_that_hangs_is_cut(
    flavour: Flavour, server: FaultServer, position: str, *, replay: bool
) -> None:
    server.plans["x"] = Plan(json_reply()[: JSON_POSITIONS[position]], "stall")
    deadline_s = 0.3

    def clock() -> float:  # the attempt has all of the time, however long it takes to begin
        return 2 * deadline_s if server.count("faulty") else 0.0

    router = router_of(
        server, "faulty", "good", clock=clock, deadline_s=deadline_s, replay_sent=replay
    )

    async def main() -> None:
        async with flavour.client(router, timeout=FAR_S) as client:
            began = time.monotonic()
            with pytest.raises(flavour.module.TimeoutException) as raised:
                await client.post(headers=HEADERS)
            assert time.monotonic() - began < FAR_S / 2
            assert isinstance(raised.value.__cause__, AttemptsFailed)
            assert router.stats().in_flight == 0
            assert busy(router) == 0
        assert server.count("good") == 0
        first = first_of(router)
        assert (first.state, first.failures) == (HealthState.EJECTED, 1)

    flavour.run(main)


def test_without_a_timeout_of_the_callers_own(flavour: Flavour, server: FaultServer) -> None:
    server.plans["x"] = Plan(b"", "stall")
    router = router_of(server, "faulty", deadline_s=0.1)

    async def main() -> None:
        async with flavour.client(router, timeout=None) as client:
            with pytest.raises(flavour.module.TimeoutException):
                await client.post(headers=HEADERS)

    flavour.run(main)


def test_a_body_may_take_its_time(flavour: Flavour, server: FaultServer) -> None:
    """The deadline ends with the headers: what is read later has the caller's own timeouts."""
    at = len(stream_reply()) - len(STREAM_BODY) // 2
    server.plans["x"] = Plan(stream_reply()[:at], "keep", and_then=stream_reply()[at:])
    router = router_of(server, "faulty", deadline_s=0.5)

    async def main() -> None:
        async with flavour.client(router, timeout=FAR_S) as client:
            response = await client.open(CHAT, json=body_of(streamed=True), headers=HEADERS)
            async with flavour.plain(timeout=FAR_S) as other:
                until = time.monotonic() + 0.6
                while time.monotonic() < until:
                    await other.get(server.url("spare"))
            server.go_on.set()
            assert await read(client, response) == (STREAM_BODY, None)

    flavour.run(main)


def test_a_refusal_is_returned_when_the_next_round_would_be_too_late(
    flavour: Flavour, server: FaultServer
) -> None:
    server.plans["x"] = Plan(json_reply(503, b'{"n":1}', retry_after="20"))
    stop, wait = stop_after_attempt(9), wait_fixed(0.01)
    router = router_of(server, "faulty", deadline_s=10, stop=stop, wait=wait)

    async def main() -> None:
        async with flavour.client(router, timeout=FAR_S) as client:
            began = time.monotonic()
            reply = await client.post(headers=HEADERS)
            assert time.monotonic() - began < 10, "nobody waits for what would be too late"
            assert (reply.status_code, reply.json()) == (503, {"n": 1})
            assert reply.headers["retry-after"] == "20"
            assert "x-should-retry" not in reply.headers
        assert server.count("faulty") == 1

    flavour.run(main)


def test_the_queue_ends_by_then(flavour: Flavour, server: FaultServer) -> None:
    router = router_of(server, "faulty", max_in_flight=1, deadline_s=0.05, queue_timeout_s=FAR_S)

    async def main() -> None:
        async with flavour.client(router, timeout=FAR_S) as client:
            with router.acquire("x"):
                began = time.monotonic()
                reply = await client.post()
                assert time.monotonic() - began < FAR_S / 2
            assert reply.json()["error"]["code"] == "saturated"
        assert server.count("faulty") == 0

    flavour.run(main)


def test_a_call_in_time_notices_nothing(flavour: Flavour, server: FaultServer) -> None:
    router = router_of(server, "refused", "good", deadline_s=FAR_S)

    async def main() -> None:
        async with flavour.client(router, timeout=FAR_S) as client:
            for _ in range(2):
                reply = await client.post()
                assert reply.content == JSON_BODY
                assert reply.request.extensions["timeout"]["read"] == FAR_S

    flavour.run(main)
