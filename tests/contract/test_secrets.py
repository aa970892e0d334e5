"""Nothing secret, and nothing of a prompt, in whatever is shown, told, counted or pickled."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from prefixroute import Endpoint, Failover, HealthPolicy, KeyUnavailable, RoundRobin, Router
from prefixroute.core.events import Event
from prefixroute.metrics import PrometheusObserver
from tests.contract.flavours import Flavour, Inner, Received, in_turn, sse

SECRETS = ("hunter", "the treasure is under")
BODY = {"model": "m", "messages": [{"role": "user", "content": "the treasure is under " * 90}]}
CALLER = {"authorization": "Bearer hunter-of-caller", "x-session-id": "s-1"}


def sealed() -> str:
    raise PermissionError("sealed")


def endpoints() -> list[Endpoint | str]:
    return [
        Endpoint("https://a/v1?api_key=hunter-of-query", api_key="hunter-a", tier=0),
        Endpoint("https://b/v1", api_key=lambda: "hunter-b", headers={"x-own": "hunter-x"}, tier=1),
        Endpoint("https://user:hunter-of-url@c/v1", tier=2),
    ]


def chained(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and all that it came of."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__]
        left += getattr(one, "exceptions", ())
        left += [what for _, what in getattr(one, "attempts", ()) if not isinstance(what, int)]


def shown_of(error: BaseException) -> list[str]:
    texts = ["".join(traceback.format_exception(error))]
    for one in chained(error):
        texts += [str(one), repr(one), repr(one.args), repr(getattr(one, "attempts", ""))]
        texts += getattr(one, "__notes__", [])
        # The libraries let an error carry a request: the caller's own, which has no other's key.
        request = getattr(one, "_request", None)
        if request is not None:
            assert request.url.host == "prefixroute.invalid"
            assert request.headers["authorization"] == CALLER["authorization"]
            assert "hunter-" not in str(request.url)
    return texts


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def replies(flavour: Flavour) -> dict[str, Any]:
    module = flavour.module
    error = b'{"error": {"code": 500, "message": "broken"}}'

    def refuse(status: int) -> Any:
        return module.Response(status, json={"error": "no"}, headers={"set-cookie": "k=hunter-c"})

    def raised(name: str) -> Any:
        return lambda _: flavour.error(name)

    def streamed(*parts: Any) -> Any:
        return lambda _: flavour.events(*parts)

    return {
        "connect": in_turn(raised("ConnectError")),
        "read": in_turn(raised("ReadError")),
        "timeout": in_turn(raised("ReadTimeout")),
        "protocol": in_turn(raised("LocalProtocolError")),
        "pool": in_turn(raised("PoolTimeout")),
        "refused": lambda _: refuse(401),
        "busy": lambda _: refuse(503),
        "broken": lambda _: refuse(500),
        "away": lambda _: module.Response(307, headers={"location": "https://evil.example/"}),
        "events": in_turn(streamed(*sse(error))),
        "cut": in_turn(streamed(*sse(b"{}"), flavour.error("ReadError"))),
        "good": lambda _: module.Response(200, json={"usage": {"prompt_tokens": 9}}),
    }


@pytest.mark.parametrize("what", [*replies(Flavour("httpx", "sync"))])
def test_case_50_nothing_secret_is_shown(
    flavour: Flavour, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told, registry = Told(), CollectorRegistry()
    router = Router(
        endpoints(),
        failover=Failover(replay_sent=True),
        health=HealthPolicy(failures=1),
        observers=[told, PrometheusObserver(registry)],
        holdout=0.5,
        shadow=RoundRobin(),
        remember_bodies=10**6,
        ask_load=True,
    )
    keys: dict[str, set[str]] = {}
    handler = replies(flavour)[what]

    def answer(received: Received) -> Any:
        keys.setdefault(received.host, set()).add(received.headers["authorization"])
        return handler(received)

    errors: list[BaseException] = []
    decisions: list[Any] = [router.route(BODY)]

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, answer)) as client:
            for _ in range(3):
                try:
                    response = await client.open(json=BODY, headers=CALLER)
                    decisions.append(response.extensions["prefixroute"])
                    try:
                        await client.read(response)
                    finally:
                        await client.close_response(response)
                except Exception as error:  # noqa: BLE001 - whatever the caller gets
                    errors.append(error)

    flavour.run(main)
    own = {"a": "Bearer hunter-a", "b": "Bearer hunter-b"}
    for host, used in keys.items():
        assert used == {own.get(host, f"Basic {BASIC}")}
    assert told.events
    assert (len(errors) == 3) == (what in {"connect", "read", "timeout", "protocol", "pool", "cut"})
    every = [router, router.stats(), router.endpoints, router.explain(BODY), *decisions]
    every += [*told.events, router.transport(), router._bodies]
    assert len(router._bodies or ()) == (what in {"good", "events", "cut"})  # those with 200
    texts = [f"{one!r} {one}" for one in every]
    texts += [text for error in errors for text in shown_of(error)]
    texts += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    texts.append(generate_latest(registry).decode())
    texts += [repr(pickle.dumps(one)) for one in (router.stats(), *decisions, *told.events)]
    for text in texts:
        assert not [secret for secret in (*SECRETS, BASIC) if secret in text], text


BASIC = "dXNlcjpodW50ZXItb2YtdXJs"
"""``user:hunter-of-url``, as the header has it."""


def test_case_50_a_broken_vault_shows_no_key_either(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = [Endpoint("https://a/v1", api_key=sealed, headers={"x": "hunter"}), *endpoints()[1:]]
    router = Router(given)
    inner = Inner(flavour, lambda _: flavour.module.Response(200))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(KeyUnavailable) as failed:
                await client.post(json=BODY, headers=CALLER)
        texts = [*shown_of(failed.value), caplog.text]
        assert not [text for text in texts for secret in SECRETS if secret in text]

    flavour.run(main)


def test_case_50_a_header_that_cannot_be_sent_is_not_shown(flavour: Flavour) -> None:
    """The libraries show it in their error, so it must not come that far."""
    given = [Endpoint("http://127.0.0.1:9/v1", api_key=lambda: "hunter\x0b2")]
    router = Router(given)

    async def main() -> None:
        async with flavour.client(router) as client:
            with pytest.raises(KeyUnavailable, match="control characters") as failed:
                await client.post(json=BODY, headers=CALLER)
        assert not [t for t in shown_of(failed.value) for s in SECRETS if s in t]

    flavour.run(main)
