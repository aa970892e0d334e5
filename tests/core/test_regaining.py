"""What comes back to an endpoint that was away: new prompts at once, and what others send home."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from prefixroute.core.health import HealthPolicy
from prefixroute.core.router import RouterCore
from tests.core.support import FakeClock, conversation, make_router
from tests.core.world import World

EVERY_S = 20.0
"""Between two turns of a conversation."""
COUNT = 60


def turn(world: World, routers: list[RouterCore], number: int, name: str, seed: int) -> float:
    """Every conversation takes its next turn; return the share that the first endpoint gets."""
    rng = random.Random(f"{seed} {number}")
    arrivals = []
    for talk in range(COUNT):
        body = conversation((name, seed, talk), number + 1, first=4000)[number]
        arrivals.append((rng.random() * EVERY_S, rng.choice(routers), body, talk))
    sent = world.play(arrivals)
    first = routers[0].endpoints[0].id
    return sum(one.decision.endpoint.id == first for one in sent) / len(sent)


@pytest.mark.parametrize("seed", range(3))
def test_a_fleets_conversations_and_a_lone_routers_new_ones_come_back(seed: int) -> None:
    for count in (8, 1):
        clock = FakeClock()
        health = HealthPolicy(warm_up_s=10.0)
        routers = [make_router(4, clock=clock, health=health, seed=seed) for _ in range(count)]
        world = World(clock)
        before = [turn(world, routers, number, "old", seed) for number in range(2)]
        first = routers[0].endpoints[0].id
        for router in routers:
            router.eject(first)
        assert turn(world, routers, 2, "old", seed) == 0.0
        del world.engines[first]  # it starts with an empty cache
        for router in routers:
            router.readmit(first)
        clock.tick(10.0)
        old = [turn(world, routers, number, "old", seed) for number in range(3, 6)]
        if count > 1:  # others send a conversation home, whoever had its last turn
            assert mean(old) > 0.4 * mean(before)
        new = turn(world, routers, 0, "new", seed)
        assert new > 0.4 * mean(before)
