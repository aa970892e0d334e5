"""The real SDKs: how often they and the router try together, and what their callers get."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from prefixroute import AttemptsFailed, HealthPolicy, Router
from tests.faults.server import FaultServer, Plan
from tests.faults.support import router_of
from tests.faults.test_hedging import attempts_running
from tests.faults.wire import json_reply

ANTHROPIC_REPLY = (
    b'{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"end_turn",'
    b'"stop_sequence":null,"content":[{"type":"text","text":"Hello"}],'
    b'"usage":{"input_tokens":9,"output_tokens":2}}'
)


@dataclass(frozen=True)
class Sdk:
    """One SDK's client, sync or async."""

    module: Any
    kind: Callable[..., Any]

    def client(self, router: Router, **settings: Any) -> Any:
        made = self.kind(api_key="-", default_headers={"x-fault": "x"}, **settings)
        client = router.wrap(made)
        client._calculate_retry_timeout = lambda *_, **__: 0.001
        return client

    def ask(self, router: Router, **settings: Any) -> Any:
        """Ask for a completion; return the reply's text."""
        if inspect.iscoroutinefunction(self.kind.close):  # type: ignore[attr-defined]
            return asyncio.run(self._ask(router, **settings))
        with self.client(router, **settings) as client:
            return self._text(self._create(client))

    async def _ask(self, router: Router, **settings: Any) -> Any:
        async with self.client(router, **settings) as client:
            return self._text(await self._create(client))

    def _create(self, client: Any) -> Any:
        messages = [{"role": "user", "content": "hello " * 50}]
        if self.module is anthropic:
            return client.messages.create(model="m", max_tokens=9, messages=messages)
        return client.chat.completions.create(model="m", messages=messages)

    def _text(self, reply: Any) -> Any:
        if self.module is anthropic:
            return reply.content[0].text
        return reply.choices[0].message.content

    @property
    def reply(self) -> Plan:
        return Plan(json_reply(body=ANTHROPIC_REPLY) if self.module is anthropic else None)


SDKS = [
    Sdk(openai, openai.OpenAI),
    Sdk(openai, openai.AsyncOpenAI),
    Sdk(anthropic, anthropic.Anthropic),
    Sdk(anthropic, anthropic.AsyncAnthropic),
]


@pytest.fixture(params=SDKS, ids=lambda sdk: sdk.kind.__name__)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    made: Sdk = request.param
    return made


def everywhere(server: FaultServer, plan: Plan) -> None:
    server.plans.update({"x": plan, "good: x": plan, "spare: x": plan})


def calm(router: Router) -> Router:
    """The same router, whose endpoints are not ejected: attempts alone are counted."""
    return Router(router.endpoints, failover=router.failover, health=HealthPolicy(failures=1000))


ALL = ("faulty", "good", "spare")


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, "RateLimitError"), (503, "InternalServerError"), (502, "InternalServerError")],
)
def test_three_and_one_and_one(sdk: Sdk, server: FaultServer, status: int, error: str) -> None:
    body = b'{"error":{"message":"busy","type":"overloaded"}}'
    everywhere(server, Plan(json_reply(status, body, retry_after_ms="1")))
    router = calm(router_of(server, *ALL))
    with pytest.raises(getattr(sdk.module, error)) as raised:
        sdk.ask(router, max_retries=2)
    assert raised.value.status_code == status
    assert raised.value.response.json()["error"]["message"] == "busy"
    assert len(server.received) == 5
    assert router.stats().in_flight == 0


@pytest.mark.parametrize(("max_retries", "attempts"), [(0, 3), (1, 4), (2, 5)])
def test_nobody_can_be_reached(
    sdk: Sdk, server: FaultServer, max_retries: int, attempts: int
) -> None:
    router = calm(router_of(server, "refused", "closing tls", "garbled tls"))
    with pytest.raises(sdk.module.APIConnectionError) as raised:
        sdk.ask(router, max_retries=max_retries)
    assert router.stats().requests == attempts
    error = raised.value.__cause__
    assert type(error).__name__ == "ConnectError"
    cause = error.__cause__ if error is not None else None
    assert isinstance(cause, AttemptsFailed)
    assert len(cause.attempts) == (1 if max_retries else 3), "those of the SDK's last try"


def test_what_may_have_been_sent_is_tried_by_the_sdk_alone(sdk: Sdk, server: FaultServer) -> None:
    everywhere(server, Plan(b"", "close"))
    router = calm(router_of(server, *ALL))
    with pytest.raises(sdk.module.APIConnectionError):
        sdk.ask(router, max_retries=2)
    assert len(server.received) == 3


def test_its_own_tries_go_to_three_endpoints(sdk: Sdk, server: FaultServer) -> None:
    everywhere(server, Plan(b"", "close"))
    router = calm(Router([server.url(port) for port in ALL]))  # one tier: the home is any of them
    with pytest.raises(sdk.module.APIConnectionError):
        sdk.ask(router, max_retries=2)
    assert sorted(port for port, _ in server.received) == sorted(ALL)


@pytest.mark.parametrize(
    "failure",
    [Plan(json_reply(500, b"{}")), Plan(b"", "reset"), Plan(json_reply()[:-20], "close")],
    ids=["500", "reset", "closed in the body"],
)
def test_its_first_retry_finds_the_endpoint_that_is_well(
    sdk: Sdk, server: FaultServer, failure: Plan
) -> None:
    server.plans.update({"x": failure, "good: x": sdk.reply})
    router = calm(router_of(server, "faulty", "good"))
    assert sdk.ask(router, max_retries=1) == "Hello"
    assert [port for port, _ in server.received] == ["faulty", "good"]


def test_who_answers_all_with_500_is_ejected_though_all_ask_the_same(
    sdk: Sdk, server: FaultServer
) -> None:
    server.plans.update({"x": Plan(json_reply(500, b"{}")), "good: x": sdk.reply})
    router = Router(router_of(server, "faulty", "good").endpoints, health=HealthPolicy(failures=3))
    for _ in range(5):
        assert sdk.ask(router, max_retries=1) == "Hello"
    assert server.count("faulty") == 3


def test_its_retry_after_a_timeout_finds_the_endpoint_that_is_well(
    sdk: Sdk, server: FaultServer
) -> None:
    server.plans.update({"x": Plan(b"", "stall"), "good: x": sdk.reply})
    router = calm(router_of(server, "faulty", "good"))
    assert sdk.ask(router, max_retries=9, timeout=2.0) == "Hello"
    assert server.count("faulty") == 1


def test_a_deadline_is_a_timeout_to_an_sdk(sdk: Sdk, server: FaultServer) -> None:
    everywhere(server, Plan(b"", "stall"))
    router = router_of(server, *ALL, deadline_s=0.1)
    with pytest.raises(sdk.module.APITimeoutError):
        sdk.ask(router, max_retries=0)
    assert router.stats().in_flight == 0


def test_what_the_caller_did_wrong_is_asked_once(sdk: Sdk, server: FaultServer) -> None:
    everywhere(server, Plan(json_reply(400, b'{"error":{"message":"no"}}')))
    router = router_of(server, *ALL)
    with pytest.raises(sdk.module.BadRequestError):
        sdk.ask(router, max_retries=2)
    assert len(server.received) == 1


def test_one_of_three_is_well(sdk: Sdk, server: FaultServer) -> None:
    refusal = Plan(json_reply(503, b"{}"))
    server.plans.update({"x": refusal, "good: x": refusal, "spare: x": sdk.reply})
    assert sdk.ask(router_of(server, *ALL), max_retries=0) == "Hello"
    assert len(server.received) == 3


def test_hedging(sdk: Sdk, server: FaultServer) -> None:
    server.plans.update({"x": Plan(b"", "stall"), "good: x": sdk.reply})
    router = router_of(server, "faulty", "good", replay_sent=True, hedge_after_s=0.02)
    assert sdk.ask(router, max_retries=0, timeout=60) == "Hello"
    assert router.stats().in_flight == 0
    server.wait_until_left()
    until = time.monotonic() + 20
    while attempts_running():
        assert time.monotonic() < until
        time.sleep(0.0005)
