"""What goes to other processes, and one router under several event loops and threads at once."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, get_args

import pytest
from tenacity import stop_after_attempt, wait_fixed

from prefixroute import (
    Endpoint,
    Failover,
    Fixed,
    HealthPolicy,
    LeastLoaded,
    Nested,
    Random,
    RoundRobin,
    Router,
)
from prefixroute.testing import FakeCluster
from tests.contract.flavours import BODY, CHAT, Client, Flavour, Library, Mode
from tests.transports.spawning import ask


@pytest.fixture(scope="module")
def served() -> Iterator[list[str]]:
    with FakeCluster(2, time_scale=0).serve() as urls:
        yield urls


PLACEMENTS: list[Callable[[], Any]] = [
    lambda: Nested(block_bytes=512),
    lambda: Fixed(prefix_bytes=2048),
    LeastLoaded,
    RoundRobin,
    Random,
]


@pytest.mark.parametrize(
    "placement", PLACEMENTS, ids=["nested", "fixed", "least", "robin", "random"]
)
def test_a_pickled_configuration_makes_an_equal_router(placement: Callable[[], Any]) -> None:
    settings: dict[str, Any] = {
        "endpoints": [
            Endpoint("http://a:1/v1", api_key="k", headers={"x": "1"}, weight=2, models=["m"]),
            Endpoint("http://b:1/v1", tier=1, max_in_flight=3, auth_header="x-key"),
        ],
        "placement": placement(),
        "failover": Failover(max_attempts=2, stop=stop_after_attempt(2), wait=wait_fixed(0.1)),
        "health": HealthPolicy(failures=2),
        "seed": 7,
    }
    again = pickle.loads(pickle.dumps(settings))
    one, other = Router(**settings), Router(**again)
    assert one.fingerprint == other.fingerprint
    assert one.endpoints == other.endpoints
    assert other.endpoints[0].api_key == "k"
    assert one.health == other.health
    assert again["failover"].max_attempts == 2
    assert one.route(BODY).endpoint == other.route(BODY).endpoint


def test_spawned_processes_agree(served: list[str]) -> None:
    settings = {"endpoints": [Endpoint(url) for url in served], "seed": 3, "failover": Failover()}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as processes:
        theirs = processes.submit(ask, settings).result(50)
    assert theirs == ask(settings)
    assert theirs[2] == 200


def test_a_router_says_why_it_cannot_be_pickled(served: list[str]) -> None:
    router = Router(served)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="make one in each process"):
            attempt(router)


def test_a_tls_context_is_added_in_each_process() -> None:
    context = ssl.create_default_context()
    endpoint = Endpoint("https://h/v1", ssl_context=context)
    with pytest.raises(TypeError, match="SSLContext"):
        pickle.dumps(endpoint)
    bare = pickle.loads(pickle.dumps(replace(endpoint, ssl_context=None)))
    assert replace(bare, ssl_context=context) == endpoint
    assert Router([bare]).fingerprint == Router([endpoint]).fingerprint
    with Router([endpoint]).acquire(BODY) as lease:
        assert pickle.loads(pickle.dumps(lease.decision)).endpoint == bare


def test_every_way_to_send_at_once(served: list[str]) -> None:
    """Two libraries, threads, and event loops of two kinds, each loop used and ended twice."""
    router = Router(served)
    flavours = [Flavour(library, mode) for library in get_args(Library) for mode in get_args(Mode)]
    together = threading.Barrier(len(flavours))
    statuses: list[int] = []

    def use(flavour: Flavour) -> None:
        made: Any = router.client if flavour.is_sync else router.async_client
        client = Client(flavour, made(flavour.library))

        async def main() -> None:
            statuses.extend([(await client.post(CHAT)).status_code for _ in range(10)])

        together.wait(10)
        flavour.run(main)
        flavour.run(main)
        if flavour.is_sync:
            client.http.close()

    threads = [threading.Thread(target=use, args=(flavour,)) for flavour in flavours]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20 * len(flavours)
    stats = router.stats()
    assert (stats.requests, stats.failures, stats.in_flight) == (len(statuses), 0, 0)
    assert not router._shared_pools()._loops
