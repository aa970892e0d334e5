"""Who joins is held back while it is primed; what it should be primed with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixroute.core.bodies import Bodies
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import RoundRobin
from prefixroute.core.health import HealthPolicy, HealthState
from prefixroute.core.router import RouterCore
from prefixroute.core.warming import HOLD_S
from tests.core.support import FakeClock, chat, text, urls

PATH = "/v1/chat/completions"


class Able(RouterCore):
    """One that could send requests."""

    def _can_prime(self) -> bool:
        return True


def make(kind: type[RouterCore] = Able, **given: Any) -> tuple[RouterCore, FakeClock]:
    clock = FakeClock()
    settings = {"clock": clock, "wall_clock": clock, "seed": 0, **given}
    router = kind(urls(3), **settings)
    router._bodies = Bodies(10**6)
    return router, clock


def warm(router: RouterCore, prompts: int = 12) -> None:
    for turn in range(2):
        for number in range(prompts):
            body = json.dumps(chat(text((number, turn), 50), system=text(number, 2000))).encode()
            prompt = router.read(body, path=PATH)
            router.lease(prompt).release()
            router.remember(prompt, body, PATH)


def states(router: RouterCore) -> list[HealthState]:
    return [endpoint.state for endpoint in router.stats().endpoints]


@pytest.mark.parametrize("warm_up_s", [0.0, 10.0])
def test_it_is_held_until_the_priming_ends(warm_up_s: float) -> None:
    router, clock = make(health=HealthPolicy(warm_up_s=warm_up_s))
    warm(router)
    added = router.add("http://new:8000/v1")
    assert states(router)[-1] is HealthState.COOLING
    warm(router)
    assert router.stats().endpoints[-1].requests == 0
    clock.tick(3.0)
    router.end_priming(added, prefixes=1, took_s=3.0)
    newcomer = router.stats().endpoints[-1]
    assert newcomer.state is HealthState.HEALTHY
    assert newcomer.warmth == (0.0 if warm_up_s else 1.0)
    clock.tick(5.0)
    assert router.stats().endpoints[-1].warmth == (0.5 if warm_up_s else 1.0)
    clock.tick(5.0)
    assert router.stats().endpoints[-1].warmth == 1.0


def test_it_is_not_held_for_ever() -> None:
    router, clock = make()
    warm(router)
    router.add("http://new:8000/v1")
    clock.tick(HOLD_S)
    newcomer = router.stats().endpoints[-1]
    assert newcomer.state is HealthState.HEALTHY
    assert newcomer.warmth == 0.0


def test_who_cannot_send_holds_nobody() -> None:
    router, _ = make(RouterCore)
    warm(router)
    router.add("http://new:8000/v1")
    assert states(router)[-1] is HealthState.HEALTHY


def test_it_owns_its_part_and_the_map_learns_of_it() -> None:
    router, _ = make(peers=1)
    warm(router)
    added = router.add("http://new:8000/v1")
    found = router.to_prime(added)
    assert 0 < len(found) < 12
    one = found[0]
    router.primed(added, one)
    router.end_priming(added, prefixes=1, took_s=0.1)
    assert router.stats().endpoints[-1].primed == 1
    assert router.stats().requests == 24
    for other in router.endpoints[:-1]:
        router.start_drain(other)
    expected = router.route(one.prefix()).expected_cached_tokens
    assert expected > 400


def test_a_placement_without_homes_gives_everybody_everything() -> None:
    router, _ = make(placement=RoundRobin())
    warm(router, 40)
    added = router.add("http://new:8000/v1")
    assert len(router.to_prime(added)) == 32  # and no more


def test_only_what_its_models_can_be_asked_for() -> None:
    router, _ = make(placement=RoundRobin())
    warm(router)
    added = router.add(Endpoint("http://new:8000/v1", models=["another"]))
    assert router.to_prime(added) == []
    [one, *_] = router.to_prime(router.endpoints[0])
    router.primed(added, one)  # which nobody would do
    assert router.stats().endpoints[-1].primed == 1


def test_one_that_has_left_is_none_of_its_business() -> None:
    router, _ = make()
    warm(router)
    added = router.add("http://new:8000/v1")
    [one, *_] = router.to_prime(added)
    router.remove(added)
    assert router.to_prime(added) == []
    router.primed(added, one)
    router.end_priming(added, prefixes=0, took_s=0.0)


def test_without_leave_nothing_is_remembered() -> None:
    router, _ = make()
    router._bodies = None
    warm(router)
    router.forget_bodies()
    assert not router.remembers
    assert router.to_prime(router.endpoints[0]) == []


def test_forgetting() -> None:
    router, _ = make()
    warm(router)
    router.forget_bodies()
    router.add("http://new:8000/v1")
    assert states(router)[-1] is HealthState.HEALTHY


def test_whoever_is_needed_at_once_is_not_held() -> None:
    router, _ = make()
    warm(router)
    old = [Endpoint(url, models=["m"]) for url in urls(3)]
    alone = Endpoint("http://alone:8000/v1", models=["another"])
    spare = Endpoint("http://spare:8000/v1", models=["m"], tier=1)
    new = Endpoint("http://new:8000/v1", models=["m"])
    router.set_endpoints([*old, alone, spare, new])
    assert states(router)[-3:] == [
        HealthState.HEALTHY,
        HealthState.HEALTHY,
        HealthState.COOLING,
    ]
    for endpoint in router.endpoints:
        router.eject(endpoint)
    router.add("http://rescue:8000/v1")
    assert states(router)[-1] is HealthState.HEALTHY


def test_a_whole_new_list_serves_at_once() -> None:
    router, _ = make()
    warm(router)
    router.set_endpoints(["http://green-0:8000/v1", "http://green-1:8000/v1"])
    assert states(router) == [HealthState.HEALTHY, HealthState.HEALTHY]
