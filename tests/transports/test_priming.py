"""An endpoint that joins is warmed before it has its share: by whom, with what, and how quietly."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from prefixroute import Endpoint, Event, HealthState, RoundRobin, Router, RouterClosedError
from prefixroute.core.events import EndpointPrimed
from prefixroute.testing import FakeCluster, Hang, Status
from tests.core.support import text
from tests.transports.test_probing import until

CHAT = "/chat/completions"
PROMPTS = 12


class Watching:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def primed(self) -> list[EndpointPrimed]:
        return [event for event in self.events if isinstance(event, EndpointPrimed)]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    simulated = FakeCluster(3, time_scale=0)
    with simulated.serve():
        yield simulated


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not primers())


def primers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefixroute-priming"]


def url(cluster: FakeCluster, at: int) -> str:
    return str(cluster.replicas[at].served_url)


def make(cluster: FakeCluster, watching: Watching | None = None, **given: Any) -> Router:
    settings: dict[str, Any] = {"remember_bodies": 10**6, "seed": 0, **given}
    observers = [] if watching is None else [watching]
    endpoints = [Endpoint(url(cluster, at), id=f"r{at}") for at in range(2)]
    return Router(endpoints, observers=observers, **settings)


def bodies() -> list[dict[str, Any]]:
    """Each of several system prompts three times, each time with another question."""
    return [
        {
            "model": "m",
            "max_tokens": 4,
            "messages": [
                {"role": "system", "content": text(number, 3000)},
                {"role": "user", "content": f"private {number} {turn}"},
            ],
        }
        for turn in range(3)
        for number in range(PROMPTS)
    ]


def warm(router: Router, library: Literal["httpx", "httpx2"] = "httpx") -> None:
    with router.client(library=library) as client:
        for body in bodies():
            client.post(CHAT, json=body).raise_for_status()


def joined(cluster: FakeCluster, **given: Any) -> Endpoint:
    return Endpoint(url(cluster, 2), id="r2", **given)


def sent_to(cluster: FakeCluster, at: int) -> list[Any]:
    return [request for request in cluster.requests if request.replica == at]


def test_it_is_primed_with_what_it_will_own(cluster: FakeCluster) -> None:
    watching = Watching()
    with make(cluster, watching) as router:
        warm(router)
        before = router.stats()
        router.add(joined(cluster))
        until(lambda: watching.primed)
        asked = sent_to(cluster, 2)
        owned = {text(number, 3000) for number in range(PROMPTS)} & {
            json.loads(request.body)["messages"][0]["content"] for request in asked
        }
        assert 0 < len(asked) == len(owned) < PROMPTS
        for request in asked:
            body = json.loads(request.body)
            assert (body["max_tokens"], body["stream"]) == (1, False)
            assert b"private" not in request.body
        stats = router.stats()
        assert stats.requests == before.requests
        assert stats.in_flight == 0
        assert [endpoint.primed for endpoint in stats.endpoints] == [0, 0, len(asked)]
        [event] = watching.primed
        assert (event.endpoint_id, event.prefixes) == ("r2", len(asked))
        # What it owns goes to it from now on, and is found there.
        with router.client() as client:
            for content in owned:
                messages = [{"role": "system", "content": content}]
                messages.append({"role": "user", "content": "And now?"})
                reply = client.post(CHAT, json={"model": "m", "messages": messages})
                if reply.extensions["prefixroute"].endpoint.id == "r2":
                    usage = reply.json()["usage"]
                    assert usage["prompt_tokens_details"]["cached_tokens"] > 500
        assert router.stats().endpoints[2].requests > 0


def test_it_waits_for_its_share_until_then(cluster: FakeCluster) -> None:
    watching = Watching()
    with make(cluster, watching) as router:
        warm(router)
        cluster.fail(2, Hang())
        router.add(joined(cluster))
        assert router.stats().endpoints[2].state is HealthState.COOLING
        warm(router)
        assert router.stats().endpoints[2].requests == 0
        until(lambda: sent_to(cluster, 2))
        cluster.heal(2)
        until(lambda: watching.primed)
        newcomer = router.stats().endpoints[2]
        assert newcomer.state is HealthState.HEALTHY
        assert newcomer.warmth < 1.0  # and comes to its share slowly, as any other


def test_off_by_default(cluster: FakeCluster) -> None:
    with make(cluster, remember_bodies=0) as router:
        warm(router)
        assert not router.remembers
        router.add(joined(cluster))
        assert router.stats().endpoints[2].state is HealthState.HEALTHY
        assert not primers()
    assert not sent_to(cluster, 2)


def test_nothing_hot_nothing_held(cluster: FakeCluster) -> None:
    with make(cluster) as router, router.client() as client:
        client.post(CHAT, json=bodies()[0])
        router.add(joined(cluster))
        assert router.stats().endpoints[2].state is HealthState.HEALTHY
        assert not primers()


def test_failures_are_neutral_and_soon_given_up(cluster: FakeCluster) -> None:
    watching = Watching()
    with make(cluster, watching, placement=RoundRobin()) as router:
        warm(router)
        cluster.fail(2, Status(code=500))
        router.add(joined(cluster))
        until(lambda: watching.primed)
        assert len(sent_to(cluster, 2)) == 2  # of twelve
        newcomer = router.stats().endpoints[2]
        assert newcomer.failures == newcomer.primed == 0
        assert newcomer.state is HealthState.HEALTHY


def test_with_the_endpoints_own_key_and_nobody_elses(cluster: FakeCluster) -> None:
    watching = Watching()
    with make(cluster, watching) as router:
        with router.client() as client:
            for body in bodies():
                client.post(CHAT, json=body, headers={"authorization": "Bearer the-callers"})
        router.add(joined(cluster, api_key="its-own"))
        until(lambda: watching.primed)
    for request in sent_to(cluster, 2):
        assert request.header("authorization") == "Bearer its-own"
    assert sent_to(cluster, 2)


def test_async_users_have_it_too(cluster: FakeCluster) -> None:
    watching = Watching()

    async def main() -> None:
        async with make(cluster, watching) as router:
            async with router.async_client(library="httpx2") as client:
                for body in bodies():
                    async with client.stream("POST", CHAT, json={**body, "stream": True}) as reply:
                        await reply.aread()
            router.add(joined(cluster))
            await asyncio.to_thread(until, lambda: watching.primed)
            assert router.stats().in_flight == 0
            assert router.stats().endpoints[2].primed > 0

    asyncio.run(asyncio.wait_for(main(), 50))


def test_it_does_not_matter_which_library_sent_them(cluster: FakeCluster) -> None:
    watching = Watching()
    with make(cluster, watching) as router:
        warm(router, "httpx2")
        router.add(joined(cluster))
        until(lambda: watching.primed)
        assert router.stats().endpoints[2].primed > 0


def test_closing_ends_it_and_forgets(cluster: FakeCluster) -> None:
    router = make(cluster)
    with router:
        warm(router)
        assert router._bodies is not None
        assert len(router._bodies) == PROMPTS
        cluster.fail(2, Hang())
        router.add(joined(cluster))
        until(lambda: sent_to(cluster, 2))
    assert len(router._bodies) == 0
    cluster.heal(2)
    until(lambda: not primers())
    assert len(sent_to(cluster, 2)) == 1


def test_one_that_leaves_meanwhile(cluster: FakeCluster) -> None:
    with make(cluster) as router:
        warm(router)
        cluster.fail(2, Hang())
        router.add(joined(cluster))
        until(lambda: sent_to(cluster, 2))
        router.remove("r2")
        cluster.heal(2)
        until(lambda: not primers())
        assert len(router.stats().endpoints) == 2


def test_refused_requests_are_not_remembered(cluster: FakeCluster) -> None:
    cluster.fail(0, Status(code=400))
    cluster.fail(1, Status(code=400))
    with make(cluster) as router, router.client() as client:
        for body in bodies():
            client.post(CHAT, json=body)
        assert router._bodies is not None
        assert len(router._bodies) == 0


def test_threads_remember_within_the_bound(cluster: FakeCluster) -> None:
    with make(cluster, remember_bodies=20_000) as router:
        threads = [threading.Thread(target=warm, args=(router,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert router._bodies is not None
        assert 0 < router._bodies.size_bytes <= 20_000
        assert router.stats().in_flight == 0
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle(cluster: FakeCluster) -> None:
    with make(cluster) as router:
        warm(router)
        cluster.fail(2, Hang())
        router.add(joined(cluster))
        until(lambda: sent_to(cluster, 2))
        child = os.fork()
        if child == 0:  # no thread is here, and the endpoint's time passes by itself
            state = router.stats().endpoints[2].state
            os._exit(10 * len(primers()) + (state is HealthState.COOLING))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        cluster.heal(2)
        until(lambda: not primers())


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None])
def test_a_bound_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Router\(remember_bodies="):
        Router(["http://a"], remember_bodies=value)


def test_a_closed_router_opens_no_connections_anew(cluster: FakeCluster) -> None:
    with make(cluster) as router:
        assert router.ask("r0", "/health")[0] == 200
    with pytest.raises(RouterClosedError, match="was closed"):
        router.ask("r0", "/health")
    with pytest.raises(RouterClosedError, match="was closed"):
        asyncio.run(router.aask("r0", "/health"))
    with router:
        assert router.ask("r0", "/health")[0] == 200
