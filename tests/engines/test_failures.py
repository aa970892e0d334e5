"""Real replicas that load, die, come back empty and hang up: what becomes of the requests."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from openai import APIConnectionError, OpenAI

from prefixroute import AttemptsFailed, Endpoint, Router
from prefixroute.core.events import Event, FirstToken
from prefixroute.core.health import HealthState
from prefixroute.core.stats import EndpointStats
from tests.core.support import FakeClock
from tests.engines.chat import Message, Reply, openai_chat
from tests.engines.llama import MODEL_NAME, LlamaReplica, LlamaReplicas
from tests.engines.loading import LoadingGate
from tests.engines.placements import endpoint_of, named_endpoints
from tests.engines.workload import WorkloadSpec, run_workload

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def completion(prompt: str) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def of(router: Router, endpoint_id: str) -> EndpointStats:
    return next(e for e in router.stats().endpoints if e.id == endpoint_id)


# -- loading ---------------------------------------------------------------------------------------


def homed(router: Router, endpoint_id: str) -> Iterator[dict[str, Any]]:
    """Prompts that nobody has seen and whose home is this endpoint."""
    for number in range(1000):
        body = completion(f"The number {number} comes after")
        home = router.route(body).home
        if home is not None and home.id == endpoint_id:
            yield body


def test_a_replica_that_loads_is_passed_over_until_it_is_ready(
    replicas: LlamaReplicas, tmp_path: Path
) -> None:
    gate, clock = LoadingGate(tmp_path), FakeClock()
    replica = LlamaReplica(tmp_path, slots=2, extra=gate.options)
    endpoints = [Endpoint(replicas.urls[0], id="ready"), Endpoint(replica.url, id="loading")]
    with Router(endpoints, seed=0, clock=clock) as router, router.client() as http:
        bodies = homed(router, "loading")
        replica.start()
        try:
            replica.wait_loading()
            for asked in range(1, 8):  # more often than failures would eject after
                for _ in range(2):  # the second one finds it cooling
                    answer = http.post("completions", json=next(bodies))
                    assert answer.status_code == 200
                    assert endpoint_of(answer.extensions) == "ready"
                assert of(router, "loading").state is HealthState.COOLING
                assert of(router, "loading").requests == asked
                clock.tick(2.0)
                assert of(router, "loading").state is HealthState.HEALTHY
            gate.open()
            replica.wait_ready()
            answer = http.post("completions", json=next(bodies))
            assert answer.status_code == 200
            assert endpoint_of(answer.extensions) == "loading"
        finally:
            replica.kill()
        stats = router.stats()
        assert (stats.failures, stats.in_flight) == (0, 0)


# -- killed ----------------------------------------------------------------------------------------

CHATS = WorkloadSpec(seed=3, assistants=4, turns=5)
KILL_AT = 7
"""First tokens after which the replica that gave the last of them is killed."""


class Killer:
    """An observer that kills a replica with SIGKILL in the middle of a reply."""

    def __init__(self, replicas: LlamaReplicas) -> None:
        self._replicas = replicas
        self._seen = 0
        self._lock = threading.Lock()
        self.victim: str | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, FirstToken):
            with self._lock:
                self._seen += 1
                if self._seen == KILL_AT:
                    self.victim = event.endpoint_id
                    self._replicas.kill(int(self.victim.removeprefix("replica-")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A request that the SDK raised its connection error for.

    Attributes:
        endpoint: who had it.
        began: the reply had begun when it broke off.
    """

    endpoint: str
    began: bool


class Application:
    """Sends chats as an application would: what is lost is noted and said again."""

    def __init__(self, client: OpenAI) -> None:
        self._client = client
        self.lost: list[Lost] = []

    def send(self, messages: Sequence[Message]) -> Reply:
        answering: list[str] = []

        def note(extensions: Mapping[str, Any]) -> str:
            answering.append(endpoint_of(extensions))
            return answering[-1]

        try:
            return openai_chat(self._client, messages, endpoint_of=note)
        except APIConnectionError as error:
            endpoint = answering[0] if answering else sent_to(error)
            self.lost.append(Lost(endpoint=endpoint, began=bool(answering)))
        return self.send(messages)


def sent_to(error: BaseException) -> str:
    """The endpoint that a failed call had been sent to, as the causes of its error tell."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AttemptsFailed):
        cause = cause.__cause__
    assert cause is not None, f"{error!r} does not say what was tried"
    endpoint, outcome = cause.attempts[-1]
    assert isinstance(outcome, httpx2.TransportError)
    assert not isinstance(outcome, httpx2.ConnectError)  # that would have been tried elsewhere
    return endpoint


def test_a_replica_is_killed_in_the_middle_of_a_workload(replicas: LlamaReplicas) -> None:
    replicas.restart_dead()
    replicas.clear()
    killer = Killer(replicas)
    with (
        Router(named_endpoints(replicas.urls), seed=0, observers=[killer]) as router,
        OpenAI(api_key="-", max_retries=0) as plain,
        router.wrap(plain) as client,
    ):
        application = Application(client)
        result = run_workload(application.send, CHATS)
    stats = router.stats()
    assert stats.in_flight == 0
    assert len(result.exchanges) == CHATS.assistants * CHATS.turns

    # Lost is only what the dead replica had been sent: the reply that began, and some others. A
    # process that is killed takes connections for a moment more, so a chat may meet it twice.
    assert 1 <= len(application.lost) <= 2 * CHATS.concurrency
    assert {lost.endpoint for lost in application.lost} == {killer.victim}
    assert any(lost.began for lost in application.lost)
    for endpoint in stats.endpoints:
        if endpoint.id == killer.victim:
            assert endpoint.failures >= len(application.lost)
        else:
            assert (endpoint.failures, endpoint.state) == (0, HealthState.HEALTHY)

    # By their last turn all chats have found another replica, and their prefixes are cached there.
    last = [e.reply for e in result.exchanges if e.turn == CHATS.turns - 1]
    assert killer.victim not in {reply.endpoint for reply in last}
    assert sum(r.cached_tokens for r in last) > 0.8 * sum(r.prompt_tokens for r in last)


# -- empty -----------------------------------------------------------------------------------------


def test_a_replica_that_comes_back_empty_costs_one_turn(
    router: Router, replicas: LlamaReplicas
) -> None:
    with OpenAI(api_key="-") as plain, router.wrap(plain) as client:
        said: list[Message] = [{"role": "user", "content": "Count the shelves of the library."}]

        def turn() -> tuple[Reply, float]:
            expected = router.route({"model": MODEL_NAME, "messages": said}).expected_cached_tokens
            reply = openai_chat(client, said, endpoint_of=endpoint_of)
            said.append({"role": "assistant", "content": reply.text})
            said.append({"role": "user", "content": "And those of the shop in the next street?"})
            return reply, expected

        first, _ = turn()
        second, expected = turn()
        assert second.cached_tokens > first.prompt_tokens - 2
        assert expected > 0.5 * second.cached_tokens
        replicas.restart(int(first.endpoint.removeprefix("replica-")))
        third, expected = turn()
        assert expected > third.cached_tokens == 0  # nobody has told the router
        fourth, expected = turn()
        assert fourth.cached_tokens > third.prompt_tokens - 2
        assert expected > 0.5 * fourth.cached_tokens
    assert {r.endpoint for r in (second, third, fourth)} == {first.endpoint}
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (4, 0, 0)


def test_what_homes_are_expected_to_hold_falls_when_they_come_back_empty(
    router: Router, http: httpx.Client, replicas: LlamaReplicas
) -> None:
    """Another process brought prompts to their homes; this one learns that they are there."""
    bodies = [completion(f"Here is a short story about the number {n}:") for n in range(12)]

    def expected() -> float:
        decision = router.route(completion("Here is a short story about a number:"))
        return decision.expected_cached_tokens / decision.tokens

    def ask(sent: Sequence[dict[str, Any]]) -> int:
        replies = [http.post("completions", json=body).raise_for_status().json() for body in sent]
        return sum(r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in replies)

    with Router(named_endpoints(replicas.urls), seed=0) as other, other.client() as client:
        for body in bodies:
            client.post("completions", json=body).raise_for_status()
    unknown = expected()
    assert ask(bodies[:6]) > 50
    brought = expected()
    assert brought > unknown
    for index in range(len(replicas.urls)):
        replicas.kill(index)
    replicas.restart_dead()
    assert ask(bodies[6:]) < 50
    assert expected() < brought
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (12, 0, 0)


# -- hung up ---------------------------------------------------------------------------------------


class Attempts(httpx.HTTPTransport):
    """Counts what is sent, and what is lost because the peer had closed an idle connection."""

    def __init__(self) -> None:
        super().__init__(limits=httpx.Limits(keepalive_expiry=600.0))
        self.sent = self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        try:
            return super().handle_request(request)
        except httpx.RemoteProtocolError:
            self.lost += 1
            raise


class HangUp:
    """A trace function that holds a request back until its idle connection has been closed.

    The pool has chosen the connection by then, and finds nothing wrong with it: that is the moment
    in which a request is lost. llama-server closes what is idle for 5 s.
    """

    def __init__(self, idle: httpx.Response) -> None:
        stream = idle.extensions["network_stream"]
        self._socket = stream.get_extra_info("socket")
        self._waited = False

    def __call__(self, name: str, info: Mapping[str, Any]) -> None:
        if name == "http11.send_request_headers.started" and not self._waited:
            self._waited = True
            assert select.select([self._socket], [], [], 30.0)[0], "it was not closed"


def test_a_connection_that_was_idle_for_too_long(router: Router) -> None:
    body = completion("Hello")
    with (
        Attempts() as inner,
        httpx.Client(base_url=router.base_url, transport=router.transport(inner)) as http,
    ):
        first = http.post("completions", json=body)
        hang_up = HangUp(first)
        answer = http.post("completions", json=body, extensions={"trace": hang_up})
        assert answer.status_code == 200
        assert endpoint_of(answer.extensions) == endpoint_of(first.extensions)
    assert (inner.sent, inner.lost) == (3, 1)
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (2, 0, 0)
    assert {endpoint.state for endpoint in stats.endpoints} == {HealthState.HEALTHY}


def test_requests_that_follow_streams_at_once(router: Router) -> None:
    """llama-server closes a connection after each stream, whatever its headers say."""
    body = completion("Hello")
    with (
        Attempts() as inner,
        httpx.Client(base_url=router.base_url, transport=router.transport(inner)) as http,
    ):
        for _ in range(30):
            assert http.post("completions", json=body | {"stream": True}).status_code == 200
            assert http.post("completions", json=body).status_code == 200
    assert inner.sent - inner.lost == 60
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (60, 0, 0)
