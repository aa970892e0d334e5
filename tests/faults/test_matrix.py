"""Each fault in each of the six ways to send: what comes of it, and that nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from prefixroute import AttemptsFailed
from tests.contract.flavours import CHAT, Flavour
from tests.faults.cases import CASES, PLANS, Case
from tests.faults.server import FaultServer
from tests.faults.support import (
    STALL_S,
    body_of,
    busy,
    patient,
    read,
    router_of,
    timeouts,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fault(flavour: Flavour, server: FaultServer, case: Case) -> None:
    server.plans.update(PLANS)
    router = router_of(server, case.port, "good", replay_sent=case.replay)
    stalls = case.plan is not None and case.plan.then == "stall"
    timeout = timeouts(flavour, STALL_S if stalls else 10.0)

    async def main() -> None:
        async with flavour.client(router, timeout=timeout) as client:
            response, body, error = None, b"", None
            given = {"json": body_of(streamed=case.streamed), "headers": {"x-fault": case.name}}
            if stalls:
                given["extensions"] = patient(flavour, server)
            try:
                response = await client.open(CHAT, **given)
            except Exception as raised:  # noqa: BLE001 - looked at below
                error = raised
            if response is not None:
                assert router.stats().in_flight == 1
                body, error = await read(client, response)
            check_caller(case, flavour, response, body, error)
            assert router.stats().in_flight == 0
            assert busy(router) == 0
            check_endpoint(case, server, router)

    flavour.run(main)


def check_caller(
    case: Case, flavour: Flavour, response: Any, body: bytes, error: Exception | None
) -> None:
    if case.error:
        kinds = tuple(getattr(flavour.module, name) for name in case.error)
        assert isinstance(error, kinds)
        if response is None:
            assert isinstance(error.__cause__, AttemptsFailed)
            request: Any = getattr(error, "request", None)
            assert str(request.url) == "https://prefixroute.invalid/v1/chat/completions"
    else:
        assert error is None
    assert (None if response is None else response.status_code) == case.status
    assert body == case.body
    if response is not None:
        assert case.headers.items() <= dict(response.headers).items()
        at = response.extensions["prefixroute"].endpoint.tier
        assert at == int(case.elsewhere)


def check_endpoint(case: Case, server: FaultServer, router: Any) -> None:
    assert server.count("faulty") == (case.sends if case.port == "faulty" else 0)
    assert server.count("good") == int(case.elsewhere)
    first, second = router.stats().endpoints
    assert (first.state, first.failures) == (case.state, int(case.blame == "counted"))
    assert second.failures == 0
    assert second.requests == int(case.elsewhere)
