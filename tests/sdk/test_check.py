"""The comparison of the SDK matrix finds what it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.sdk.check import MismatchError, check, outcomes
from tests.sdk.support import MODEL, OPENING, UNRELATED, Cases, Target, continued

HELD: list[httpx.Response] = []


def ask(at: Target, *bodies: Any, **headers: str) -> None:
    with at.http("httpx") or httpx.Client(base_url=at.base_url) as http:
        for messages in bodies:
            http.post(
                "/chat/completions",
                json={"model": MODEL, "messages": messages},
                headers={"authorization": f"Bearer {at.api_key}", **headers},
            ).raise_for_status()


def faithful(at: Target) -> None:
    ask(at, OPENING, continued("A ship."), UNRELATED)


async def faithful_async(at: Target) -> None:
    async with at.async_http("httpx") or httpx.AsyncClient(base_url=at.base_url) as http:
        http.headers["authorization"] = f"Bearer {at.api_key}"
        for messages in (OPENING, continued("A ship.")):
            body = {"model": MODEL, "messages": messages}
            (await http.post("/chat/completions", json=body)).raise_for_status()


def another_body(at: Target) -> None:
    ask(at, OPENING, continued("A ship." if at.router else "A boat."))


def another_header(at: Target) -> None:
    ask(at, OPENING, continued("A ship."), **({"x-routed": "yes"} if at.router else {}))


def more_requests(at: Target) -> None:
    ask(at, OPENING, continued("A ship."), *([UNRELATED] if at.router else []))


def one_turn(at: Target) -> None:
    ask(at, OPENING, UNRELATED)


def split(at: Target) -> None:
    for number in range(8):
        ask(at, [{"role": "system", "content": f"{number} " * 200}, *OPENING])


def left_open(at: Target) -> None:
    ask(at, OPENING)
    http = at.http("httpx") or httpx.Client(base_url=at.base_url)
    body = {"model": MODEL, "messages": continued("A ship.")}
    request = http.build_request("POST", "/chat/completions", json=body)
    request.headers["authorization"] = f"Bearer {at.api_key}"
    HELD.append(http.send(request, stream=True))


@pytest.mark.parametrize("case", [faithful, faithful_async])
def test_the_same_passes(case: Callable[[Target], Awaitable[None] | None]) -> None:
    with asyncio.Runner() as runner:
        check(runner, case)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (another_body, "request 1: body .*A ship.*without a router .*A boat"),
        (another_header, "request 0: headers .*x-routed.*, without a router"),
        (more_requests, "3 requests were sent, and 2 without a router"),
        (one_turn, "conversation A has 1 turns"),
        (split, "Conversation A was split over replicas"),
    ],
)
def test_what_differs_is_told(case: Callable[[Target], None], reason: str) -> None:
    with asyncio.Runner() as runner, pytest.raises(MismatchError, match=reason):
        check(runner, case)


@pytest.mark.leaves_in_flight
def test_a_request_that_stays_counted_is_told() -> None:
    with asyncio.Runner() as runner, pytest.raises(MismatchError, match="1 in flight"):
        check(runner, left_open)
    while HELD:
        HELD.pop().close()


def test_columns() -> None:
    columns = outcomes(Cases(distributions=(), sync=(faithful, another_body), stream=(faithful,)))
    assert (columns["sync"] or "").startswith("another_body: request 1: body")
    assert columns["stream"] == ""
    assert columns["tools"] is None
