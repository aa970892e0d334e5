"""Where a call goes when an endpoint cannot serve it, and how it ends when none can."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from prefixroute import (
    AttemptsFailed,
    Endpoint,
    Failover,
    Fixed,
    HealthPolicy,
    HealthState,
    Router,
)
from prefixroute.core.failed_calls import FailedCalls
from tests.contract.flavours import BODY, Flavour, Inner, Received, ScriptedBody, in_turn, urls


def response(flavour: Flavour, status: int, **given: Any) -> Callable[[Received], Any]:
    given = given or {"json": {"status": status}}
    return lambda _: flavour.module.Response(status, **given)


def failures(router: Router) -> int:
    return router.stats().failures


def home(router: Router) -> str:
    """The id of the endpoint that BODY goes to first."""
    return router.route(BODY, path="/v1/chat/completions").endpoint.id


def test_case_32_refused_connections_go_elsewhere(flavour: Flavour) -> None:
    down = home(Router(urls(4)))

    def handler(received: Received) -> Any:
        at_home = received.url.startswith(down)
        return flavour.error("ConnectError") if at_home else flavour.module.Response(200)

    async def main() -> None:
        seen = set()
        for _ in range(3):
            router, inner = Router(urls(4)), Inner(flavour, handler)
            async with flavour.client(router, inner) as client:
                reply = await client.post()
            assert reply.status_code == 200
            assert failures(router) == 1
            assert reply.extensions["prefixroute"].endpoint.url in inner.received[1].url
            seen.add(tuple(inner.hosts))
        assert len(seen) == 1, "the second attempt is always at the same one"
        assert len(set(inner.hosts)) == 2

    flavour.run(main)


@pytest.mark.parametrize("error", ["ConnectError", "ConnectTimeout", "ProxyError"])
def test_what_could_not_connect_is_tried_elsewhere(flavour: Flavour, error: str) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, in_turn(flavour.error(error), response(flavour, 200)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
        assert len(set(inner.hosts)) == 2
        assert failures(router) == 1

    flavour.run(main)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_cannot_be_served_now_is_tried_elsewhere(flavour: Flavour, status: int) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, in_turn(response(flavour, status), response(flavour, 200)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
        assert reply.status_code == 200
        assert len(set(inner.hosts)) == 2
        counted = status in (502, 504)  # 429 and 503 are load, or not ready yet: they cool
        assert failures(router) == counted
        states = {one.url: one.state for one in router.stats().endpoints}
        assert states[f"http://{inner.hosts[0]}:8000/v1"] is (
            HealthState.HEALTHY if counted else HealthState.COOLING
        )

    flavour.run(main)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 499])
def test_case_37_what_the_caller_did_wrong_is_returned(flavour: Flavour, status: int) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, response(flavour, status))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(20):
                reply = await client.post()
                assert reply.status_code == status
                assert reply.json() == {"status": status}
        assert len(inner.received) == 20
        assert failures(router) == 0
        assert {one.state for one in router.stats().endpoints} == {HealthState.HEALTHY}

    flavour.run(main)


def test_500_is_returned_and_one_requests_count_once(flavour: Flavour) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, response(flavour, 500))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(10):
                assert (await client.post()).status_code == 500
            assert failures(router) == 1
            await client.post(json={**BODY, "seed": 1})
            assert failures(router) == 2
            await client.post("/completions")
            assert failures(router) == 3, "the same body for another path is another request"
        assert len(inner.received) == 12

    flavour.run(main)


def test_500s_of_all_bodies_that_are_no_json_count_once_together(flavour: Flavour) -> None:
    router = Router(urls(1), health=HealthPolicy(failures=100))
    inner = Inner(flavour, response(flavour, 500))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for body in (b'{"messages": [1', b'{"messages": [2', b"\xff", b'{"a":"\xff"}'):
                await client.post(content=body, headers={"content-type": "application/json"})
            assert failures(router) == 1
            for body in (b"one file", b"another file"):
                await client.post(content=body, headers={"content-type": "audio/wav"})
            assert failures(router) == 3

    flavour.run(main)


def test_500s_of_requests_that_cannot_be_told_apart_all_count(flavour: Flavour) -> None:
    router = Router(urls(1), health=HealthPolicy(failures=100))
    inner = Inner(flavour, response(flavour, 500))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.get("/models")
            await client.get("/models")
        assert failures(router) == 2

    flavour.run(main)


def test_at_most_three_endpoints_are_tried(flavour: Flavour) -> None:
    router = Router(urls(6))
    inner = Inner(flavour, response(flavour, 503, json={"n": 1}, headers={"retry-after": "7"}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
            assert reply.status_code == 503
            assert reply.json() == {"n": 1}
            assert reply.headers["retry-after"] == "7"
            assert reply.extensions["prefixroute"].endpoint.url.startswith(
                f"http://{inner.hosts[-1]}:"
            )
        assert len(inner.received) == 3
        assert len(set(inner.hosts)) == 3

    flavour.run(main)


@pytest.mark.parametrize("max_attempts", [1, 2, 6])
def test_max_attempts(flavour: Flavour, max_attempts: int) -> None:
    router = Router(urls(6), failover=Failover(max_attempts=max_attempts))
    inner = Inner(flavour, response(flavour, 503))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
        assert len(inner.received) == max_attempts

    flavour.run(main)


def test_a_last_refusal_is_passed_on_as_it_comes(flavour: Flavour) -> None:
    router = Router(urls(2))
    body = flavour.stream(b'{"error":', b'"busy"}')
    last = flavour.module.Response(503, headers={"retry-after": "3"}, stream=body)
    inner = Inner(flavour, in_turn(flavour.error("ConnectError"), last))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            assert body.iterated == 0
            assert [chunk async for chunk in client.chunks(reply)] == [
                b'{"error":',
                b'"busy"}',
            ]
        assert body.closed == 1

    flavour.run(main)


def test_a_refusal_is_kept_readable_when_the_others_cannot_connect(flavour: Flavour) -> None:
    router = Router(urls(3))
    body = flavour.stream(b'{"error":', b'"busy"}')
    headers = {"retry-after": "3", "content-type": "application/json"}
    refusal = flavour.module.Response(429, headers=headers, stream=body)
    inner = Inner(flavour, in_turn(refusal, flavour.error("ConnectError")))

    async def main() -> None:
        async with flavour.client(router, inner) as client, client.streaming() as reply:
            assert reply.status_code == 429
            assert reply.headers["retry-after"] == "3"
            assert await client.read(reply) == b'{"error":"busy"}'
            assert reply.json() == {"error": "busy"}
        assert body.closed == 1, "its connection is free while others are tried"
        assert reply.extensions["prefixroute"].endpoint.url.startswith(f"http://{inner.hosts[0]}:")
        assert len(inner.received) == 3

    flavour.run(main)


def test_a_refusal_that_is_too_long_is_kept_without_its_body(flavour: Flavour) -> None:
    router = Router(urls(2))
    body = flavour.stream(*[b"x" * 2**19] * 8)
    headers = {"content-length": str(2**22), "retry-after": "3"}
    refusal = flavour.module.Response(429, headers=headers, stream=body)
    inner = Inner(flavour, in_turn(refusal, flavour.error("ConnectError")))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
        assert reply.content == b""
        assert body.closed == 1

    flavour.run(main)


def test_a_refusal_whose_body_breaks_off_is_still_a_refusal(flavour: Flavour) -> None:
    router = Router(urls(2))
    body = flavour.stream(b"{", flavour.error("ReadError"))
    inner = Inner(
        flavour, in_turn(flavour.module.Response(503, stream=body), response(flavour, 200))
    )

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
        assert body.closed == 1
        assert failures(router) == 0

    flavour.run(main)


def test_a_refusals_body_is_not_waited_for_long(flavour: Flavour) -> None:
    router = Router(urls(2))
    reads: list[float] = []

    def refuse(received: Received) -> Any:
        timeouts = received.request.extensions["timeout"]

        class Body(ScriptedBody):
            def __iter__(self) -> Any:
                reads.append(timeouts["read"])
                return super().__iter__()

            def __aiter__(self) -> Any:
                reads.append(timeouts["read"])
                return super().__aiter__()

        bases = (Body, flavour.module.SyncByteStream, flavour.module.AsyncByteStream)
        stream = type("Body", bases, {})(flavour, [b"{}"])
        return flavour.module.Response(503, stream=stream)

    async def main() -> None:
        inner = Inner(flavour, in_turn(refuse, response(flavour, 200)))
        async with flavour.client(router, inner, timeout=99.0) as client:
            reply = await client.post()
        assert reads == [5.0]
        assert inner.received[1].request.extensions["timeout"]["read"] == 99.0
        assert reply.request.extensions["timeout"]["read"] == 99.0

    flavour.run(main)


def test_a_kept_refusal_in_gzip_is_decoded_once(flavour: Flavour) -> None:
    import gzip

    router = Router(urls(2))
    packed = gzip.compress(b'{"error": "busy"}')
    headers = {"content-encoding": "gzip", "content-length": str(len(packed))}
    refusal = flavour.module.Response(503, headers=headers, stream=flavour.stream(packed))
    inner = Inner(flavour, in_turn(refusal, flavour.error("ConnectError")))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
        assert reply.json() == {"error": "busy"}
        assert reply.headers["content-length"] == str(len(packed))

    flavour.run(main)


def test_a_kept_refusal_that_is_not_in_the_encoding_it_claims(flavour: Flavour) -> None:
    router = Router(urls(2))
    headers = {"content-encoding": "gzip", "content-length": "8", "retry-after": "7"}
    refusal = flavour.module.Response(503, headers=headers, stream=flavour.stream(b"not gzip"))
    inner = Inner(flavour, in_turn(refusal, flavour.error("ConnectError")))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
        assert (reply.status_code, reply.content) == (503, b"")
        assert reply.headers["retry-after"] == "7"

    flavour.run(main)


def test_what_ends_because_the_router_was_closed_blames_nobody(flavour: Flavour) -> None:
    router = Router(urls(2))

    def handler(_: Received) -> Any:
        router.close()  # another thread, or task
        return flavour.error("ReadError")

    inner = Inner(flavour, handler)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(flavour.module.ReadError):
                await client.post()
        assert (len(inner.received), failures(router)) == (1, 0)
        assert router.stats().in_flight == 0

    flavour.run(main)


def test_when_nobody_can_be_reached(flavour: Flavour) -> None:
    secret = [Endpoint(f"http://gpu-{n}:8000/v1", api_key="secret") for n in range(3)]
    router = Router(secret)
    cause = OSError("no route")

    def handler(received: Received) -> Any:
        error = flavour.module.ConnectError("refused", request=received.request)
        error.__cause__ = cause
        return error

    async def main() -> None:
        inner = Inner(flavour, handler)
        async with flavour.client(router, inner) as client:
            with pytest.raises(flavour.module.ConnectError) as raised:
                await client.post(headers={"authorization": "Bearer mine"})
        error = raised.value
        assert str(error.request.url) == "https://prefixroute.invalid/v1/chat/completions"
        assert error.request.headers["authorization"] == "Bearer mine"
        attempts = error.__cause__
        assert isinstance(attempts, AttemptsFailed)
        assert [name for name, _ in attempts.attempts] == [
            f"http://{host}:8000/v1" for host in inner.hosts
        ]
        assert len(attempts.attempts) == 3
        for _, what in attempts.attempts:
            assert isinstance(what, flavour.module.ConnectError)
            assert what.request is error.request
        assert attempts.__cause__ is cause
        assert "secret" not in repr(error) + repr(attempts) + str(attempts)

    flavour.run(main)


@pytest.mark.parametrize(
    "name", ["ReadTimeout", "WriteTimeout", "ReadError", "WriteError", "RemoteProtocolError"]
)
def test_case_28_what_may_have_been_sent_is_not_sent_again(flavour: Flavour, name: str) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, lambda _: flavour.error(name))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(getattr(flavour.module, name)) as raised:
                await client.post()
        assert len(inner.received) == 1
        assert raised.value.request.url.host == "prefixroute.invalid"
        assert isinstance(raised.value.__cause__, AttemptsFailed)
        assert router.stats().in_flight == 0
        assert failures(router) == 1

    flavour.run(main)


def test_what_may_have_been_sent_is_sent_again_if_that_is_allowed(flavour: Flavour) -> None:
    router = Router(urls(3), failover=Failover(replay_sent=True))
    inner = Inner(flavour, in_turn(flavour.error("ReadTimeout"), response(flavour, 200)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
        assert len(set(inner.hosts)) == 2

    flavour.run(main)


@pytest.mark.parametrize("name", ["PoolTimeout", "LocalProtocolError", "UnsupportedProtocol"])
def test_case_28_what_is_our_own_fault_is_raised_and_blames_nobody(
    flavour: Flavour, name: str
) -> None:
    router = Router([Endpoint(url, api_key="secret") for url in urls(3)])
    kind = getattr(flavour.module, name)
    inner = Inner(flavour, lambda received: kind("ours", request=received.request))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(10):
                with pytest.raises(kind) as raised:
                    await client.post()
                assert raised.value.request.url.host == "prefixroute.invalid"
        assert len(inner.received) == 10
        assert (failures(router), router.stats().in_flight) == (0, 0)
        assert {one.state for one in router.stats().endpoints} == {HealthState.HEALTHY}

    flavour.run(main)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_having_no_descriptor_or_port_left_blames_nobody(flavour: Flavour, code: int) -> None:
    router = Router(urls(3))

    def handler(_: Received) -> Any:
        error = flavour.error("ConnectError")
        error.__cause__ = ValueError("in between")
        error.__cause__.__context__ = OSError(code, "exhausted")
        return error

    async def main() -> None:
        inner = Inner(flavour, handler)
        async with flavour.client(router, inner) as client:
            with pytest.raises(flavour.module.ConnectError):
                await client.post()
        assert (len(inner.received), failures(router)) == (1, 0)

    flavour.run(main)


def test_what_an_inner_transport_raises_of_its_own_is_raised(flavour: Flavour) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, lambda _: ZeroDivisionError("bug"))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(ZeroDivisionError, match="bug"):
                await client.post()
        assert (len(inner.received), failures(router)) == (1, 0)

    flavour.run(main)


# -- stale connections -----------------------------------------------------------------------------


def stale(flavour: Flavour, error: str, *, connect: bool = False, late_s: float = 0.0) -> Any:
    """Fail as the libraries do, tracing like them: by default on a connection that was idle."""
    names = ["http11.send_request_headers.started", "http11.send_request_headers.complete"]
    if connect:
        names = ["connection.connect_tcp.started", *names]

    def handler(received: Received) -> Any:
        trace = received.request.extensions["trace"]
        if flavour.is_sync:
            for name in names:
                trace(name, {})
            time.sleep(late_s)
            return flavour.error(error)

        async def fail() -> Any:
            for name in names:
                await trace(name, {})
            await flavour.sleep(late_s)
            raise flavour.error(error)

        return fail()

    return handler


@pytest.mark.parametrize("error", ["RemoteProtocolError", "ReadError", "WriteError"])
def test_case_35_a_stale_connection_is_replaced(flavour: Flavour, error: str) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, in_turn(stale(flavour, error), response(flavour, 200)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
        assert len(inner.received) == 2
        assert len(set(inner.hosts)) == 1, "sent to the same endpoint again"
        assert inner.received[0].body == inner.received[1].body
        assert failures(router) == 0
        assert router.stats().requests == 1

    flavour.run(main)


def test_case_35_a_stale_connection_is_replaced_once(flavour: Flavour) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, stale(flavour, "RemoteProtocolError"))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(flavour.module.RemoteProtocolError):
                await client.post()
        assert len(inner.received) == 2
        assert failures(router) == 1

    flavour.run(main)


@pytest.mark.parametrize(
    "how", [{"connect": True}, {"late_s": 0.3}], ids=["a new connection", "later"]
)
def test_a_connection_that_was_not_stale_is_not_replaced(
    flavour: Flavour, how: dict[str, Any]
) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, stale(flavour, "RemoteProtocolError", **how))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(flavour.module.RemoteProtocolError):
                await client.post()
        assert (len(inner.received), failures(router)) == (1, 1)

    flavour.run(main)


def test_a_one_shot_body_on_a_stale_connection_is_lost_and_blames_nobody(
    flavour: Flavour,
) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, stale(flavour, "RemoteProtocolError"))

    async def content() -> Any:
        yield b"{}"

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            body = iter([b"{}"]) if flavour.is_sync else content()
            with pytest.raises(flavour.module.RemoteProtocolError):
                await client.post(content=body)
        assert (len(inner.received), failures(router)) == (1, 0)

    flavour.run(main)


# -- how often -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "attempts"), [("0", 3), ("1", 1), ("2", 1), ("x", 3), ("", 3)])
def test_an_sdk_that_tries_again_gets_one_attempt(
    flavour: Flavour, count: str, attempts: int
) -> None:
    router = Router(urls(5))
    inner = Inner(flavour, response(flavour, 503))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post(headers={"x-stainless-retry-count": count})
        assert len(inner.received) == attempts

    flavour.run(main)


RETRY = {"x-stainless-retry-count": "1"}


def breaking(flavour: Flavour) -> Any:
    body = flavour.stream(b'{"id":', flavour.error("ReadError"))
    headers = {"content-type": "application/json"}
    return flavour.module.Response(200, headers=headers, stream=body)


@pytest.mark.parametrize("failure", ["500", "ReadTimeout", "RemoteProtocolError", "in the body"])
def test_an_sdk_that_tries_again_is_sent_elsewhere(flavour: Flavour, failure: str) -> None:
    router = Router(urls(3))
    bad: dict[str, Callable[[Received], Any]] = {
        "500": response(flavour, 500),
        "in the body": lambda _: breaking(flavour),
    }
    inner = Inner(flavour, bad.get(failure) or (lambda _: flavour.error(failure)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for headers in ({}, RETRY, {"x-stainless-retry-count": "2"}):
                with suppress(flavour.module.TransportError):
                    await client.post(headers=headers)
        assert len(inner.received) == len(set(inner.hosts)) == 3
        assert router.stats().in_flight == 0

    flavour.run(main)


def test_only_the_retry_of_what_failed_is_sent_elsewhere(flavour: Flavour) -> None:
    router = Router(urls(4), placement=Fixed(), health=HealthPolicy(failures=100))
    inner = Inner(flavour, response(flavour, 500))
    other = {**BODY, "temperature": 0.5}

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
            await client.post(json=other, headers=RETRY)
            await client.post("/completions", json=BODY, headers=RETRY)
            await client.post()
        assert inner.hosts[0] == inner.hosts[1] == inner.hosts[3]

    flavour.run(main)


def test_a_retry_of_a_get_is_sent_elsewhere(flavour: Flavour) -> None:
    router = Router(urls(2))
    inner = Inner(flavour, response(flavour, 500))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(5):
                await client.get("/models")
                await client.get("/models", headers=RETRY)
                first, second = inner.hosts[-2:]
                assert first != second
                router.readmit(router.endpoints[0])
                router.readmit(router.endpoints[1])
                router._ledger.failed_calls = FailedCalls()

    flavour.run(main)


def test_the_retry_budget_keeps_an_outage_from_multiplying(flavour: Flavour) -> None:
    router = Router(
        urls(8),
        failover=Failover(budget_per_minute=5, budget_share=0.1),
        health=HealthPolicy(failures=10_000),
        clock=lambda: 0.0,
    )
    inner = Inner(flavour, lambda _: flavour.error("ConnectError"))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(100):
                with pytest.raises(flavour.module.ConnectError):
                    await client.post()
        assert 100 + 14 <= len(inner.received) <= 100 + 15

    flavour.run(main)


def test_attempts_that_nobody_is_left_for_cost_no_budget(flavour: Flavour) -> None:
    router = Router(
        urls(1),
        failover=Failover(budget_per_minute=1, budget_share=0.0),
        health=HealthPolicy(failures=1000),
    )
    inner = Inner(flavour, lambda _: flavour.error("ConnectError"))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(5):
                with pytest.raises(flavour.module.ConnectError):
                    await client.post()
        assert router.may_retry()

    flavour.run(main)


def test_further_rounds(flavour: Flavour) -> None:
    failover = Failover(stop=stop_after_attempt(3), wait=wait_fixed(0.001))
    router = Router(urls(2), failover=failover)
    inner = Inner(flavour, response(flavour, 503, headers={"retry-after-ms": "1"}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post()
        assert reply.status_code == 503
        assert reply.headers["x-should-retry"] == "false", "waited already"
        assert len(inner.received) == 6

    flavour.run(main)


def test_a_further_round_may_succeed(flavour: Flavour) -> None:
    failover = Failover(stop=stop_after_attempt(3), wait=wait_fixed(0.001))
    router = Router(urls(2), failover=failover)
    refused = flavour.error("ConnectError")
    inner = Inner(flavour, in_turn(refused, refused, refused, response(flavour, 200)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
        assert len(inner.received) == 4

    flavour.run(main)


# -- Retry-After -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "cooled_s"),
    [
        ({"retry-after": "1"}, 1.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "nan"}, 2.0),
        ({"retry-after": "inf"}, 50.0),
        ({"retry-after": "soon"}, 2.0),
        ({"retry-after": ""}, 2.0),
        ({"retry-after": formatdate(1_000_010, usegmt=True)}, 10.0),
        ({"retry-after": formatdate(999_000, usegmt=True)}, 0.0),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}, 50.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "nan", "retry-after": "9"}, 9.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6s"}, 6.0),
        ({"x-ratelimit-reset-tokens": "6m0s"}, 50.0),
        ({"x-ratelimit-reset-tokens": "6s", "retry-after": "9"}, 9.0),
        ({"anthropic-ratelimit-requests-reset": "1970-01-12T13:46:47Z"}, 7.0),
        ({"ratelimit-reset": "8"}, 8.0),
        ({}, 2.0),
    ],
)
def test_case_36_retry_after(flavour: Flavour, headers: dict[str, str], cooled_s: float) -> None:
    now = [100.0]
    router = Router(
        urls(2),
        clock=lambda: now[0],
        wall_clock=lambda: 1_000_000.0,
        health=HealthPolicy(cool_for_s=2.0, max_cool_for_s=50.0),
    )
    busy = response(flavour, 429, headers=headers)
    inner = Inner(flavour, in_turn(busy, response(flavour, 200)))

    def states() -> dict[str, HealthState]:
        return {one.url: one.state for one in router.stats().endpoints}

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
        refused = f"http://{inner.hosts[0]}:8000/v1"
        if cooled_s:
            now[0] = 100.0 + cooled_s - 0.01
            assert states()[refused] is HealthState.COOLING
        now[0] = 100.0 + cooled_s + 0.01
        assert states()[refused] is HealthState.HEALTHY

    flavour.run(main)


def test_case_36_a_long_wait_fails_over_and_is_never_shortened(flavour: Flavour) -> None:
    now = [100.0]
    router = Router(urls(1), clock=lambda: now[0], failover=Failover(queue_timeout_s=0))
    long = response(flavour, 429, headers={"retry-after": "60"})
    short = response(flavour, 429, headers={"retry-after": "1"})
    inner = Inner(flavour, in_turn(long, short, response(flavour, 200)))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
            await client.post()  # in panic: nobody else is there
        now[0] = 150.0
        assert router.stats().endpoints[0].state is HealthState.COOLING
        now[0] = 161.0
        assert router.stats().endpoints[0].state is HealthState.HEALTHY

    flavour.run(main)


@pytest.mark.parametrize("status", [200, 400, 404, 500, 502, 504])
def test_rate_limit_headers_of_other_replies_cool_nobody(flavour: Flavour, status: int) -> None:
    router = Router(urls(2))
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "60s",
        "retry-after": "60",
    }
    inner = Inner(flavour, response(flavour, status, headers=headers))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
        assert {one.state for one in router.stats().endpoints} == {HealthState.HEALTHY}

    flavour.run(main)
