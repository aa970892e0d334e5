"""What these tests ask of a router and its pools."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prefixroute import Endpoint, Failover, HealthPolicy, Router
from prefixroute.core.stats import EndpointStats
from tests.contract.flavours import BODY, STREAM, Client, Flavour
from tests.faults.server import FaultServer

__all__ = [
    "STALL_S",
    "body_of",
    "busy",
    "first_of",
    "patient",
    "read",
    "router_of",
    "timeouts",
]

STALL_S = 0.1


def router_of(
    server: FaultServer,
    *ports: str,
    max_in_flight: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    **failover: Any,
) -> Router:
    """Asks the ports in this order; one counted failure ejects."""
    return Router(
        [
            Endpoint(server.url(port), tier=tier, max_in_flight=max_in_flight)
            for tier, port in enumerate(ports)
        ],
        failover=Failover(**failover),
        health=HealthPolicy(failures=1),
        clock=clock,
    )


def body_of(*, streamed: bool) -> dict[str, Any]:
    return STREAM if streamed else BODY


def first_of(router: Router) -> EndpointStats:
    return router.stats().endpoints[0]


def busy(router: Router) -> int:
    """Requests that hold a connection of the router's pools, or wait for one."""
    pools = router._shared_pools()
    every = [*pools._sync.values()]
    for of_loop in pools._loops.values():
        every += of_loop.pools.values()
    return sum(len(pool._pool._requests) for pool in every)


async def read(client: Client, response: Any) -> tuple[bytes, Exception | None]:
    """What can be read of a response, and what it ended with."""
    got: list[bytes] = []
    try:
        async for chunk in client.chunks(response):
            got.append(chunk)  # noqa: PERF401 - kept also if it breaks off
    except Exception as error:  # noqa: BLE001 - told to the test
        return b"".join(got), error
    finally:
        await client.close_response(response)
    return b"".join(got), None


def patient(flavour: Flavour, server: FaultServer) -> dict[str, Any]:
    """Extensions of a request that is read only when the server has said all it will say.

    So that a short read timeout notices nothing but a stall, however slow the machine is.
    """
    asked = 0

    def trace(name: str, info: dict[str, Any]) -> None:
        nonlocal asked
        if name == "http11.receive_response_headers.started":
            asked += 1
            server.wait_until_replied(asked)

    async def atrace(name: str, info: dict[str, Any]) -> None:
        trace(name, info)

    return {"trace": trace if flavour.is_sync else atrace}


def timeouts(flavour: Flavour, read_s: float) -> Any:
    return flavour.module.Timeout(10.0, read=read_s)
