from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from prefixroute.core.fixed import Fixed
from prefixroute.core.nested import Nested
from prefixroute.errors import ConfigurationError
from prefixroute.simulator import PolicyFactory, policy_names
from prefixroute.simulator.policies import CoreRouter, policy_factory
from prefixroute.simulator.routers import Setup, SimulatedRouter

from .support import BLOCK, request


def start(policy: str, count: int = 4, serial: int = 0) -> SimulatedRouter:
    setup = Setup(members=tuple(range(count)), block_tokens=BLOCK, serial=serial)
    return policy_factory(policy).start(setup)


def send(router: SimulatedRouter, *blocks: int, now: float = 0.0) -> tuple[int, object]:
    return router.route(request(now, blocks), now)


def answer(router: SimulatedRouter, ticket: object, now: float = 0.0) -> None:
    router.first_token(ticket, 0, now)
    router.done(ticket, 100, 0, now)


@pytest.mark.parametrize("policy", policy_names())
def test_every_rule_serves_any_request_and_forgets_those_that_end(policy: str) -> None:
    router = start(policy)
    for number in range(60):
        replica, ticket = send(router, number % 3, number, now=float(number))
        assert 0 <= replica < 4
        if number % 2:
            router.first_token(ticket, 5, number + 0.5)
        router.done(ticket, 200, 5, number + 0.9)
        router.reported([(1, number % 2)] * 4, number + 0.95)
    router.set_members([0, 2, 3, 4], 100.0)
    used = {send(router, number, now=101.0)[0] for number in range(100)}
    assert 1 not in used
    home = router.home(request(102.0, [1]), 102.0)
    assert home is None or home in (0, 2, 3, 4)


def test_names_placements_and_factories_are_policies() -> None:
    assert policy_factory("nested").name == "nested"
    assert policy_factory(Fixed(prefix_bytes=64)).name == repr(Fixed(prefix_bytes=64))
    own = PolicyFactory(name="mine", start=policy_factory("random").start)
    assert policy_factory(own) is own
    with pytest.raises(ConfigurationError, match="there are: nested, fixed"):
        policy_factory("best")


# -- the product -----------------------------------------------------------------------


def test_the_products_core_is_told_what_a_client_is_told() -> None:
    router = start("nested", 2)
    assert isinstance(router, CoreRouter)
    replica, ticket = send(router, 1, 2, now=10.0)
    assert router.core.stats().in_flight == 1
    router.first_token(ticket, 50, 11.0)
    router.done(ticket, 200, 50, 12.0)
    stats = router.core.stats()
    assert (stats.in_flight, stats.requests, stats.cached_tokens) == (0, 1, 50)
    assert router.home(request(13.0, [1, 2]), 13.0) == replica


def test_routers_of_a_run_agree_and_those_of_another_seed_do_not() -> None:
    def homes(seed: int, serial: int) -> list[int]:
        setup = Setup(members=tuple(range(8)), block_tokens=BLOCK, seed=seed, serial=serial)
        router = CoreRouter(Nested(), setup)
        return [router.home(request(0.0, [n, n]), 0.0) or 0 for n in range(40)]

    assert homes(1, 0) == homes(1, 5)
    assert homes(1, 0) != homes(2, 0)


def test_baselines_do_not_break_ties_in_step() -> None:
    routers = [start("random", 8, serial=serial) for serial in range(16)]
    assert len({send(router, 1)[0] for router in routers}) > 3


# -- rules of others --------------------------------------------------------------------


def test_power_of_two_takes_the_less_loaded_of_two() -> None:
    router = start("power-of-two", 2)
    used = Counter(send(router, number)[0] for number in range(100))
    assert used == {0: 50, 1: 50}


def test_first_block_keeps_to_the_hash_until_the_bound() -> None:
    router = start("first-block", 4)
    replica, ticket = send(router, 7)
    answer(router, ticket)
    assert router.home(request(0.0, [7, 1]), 0.0) == replica
    for number in range(2):  # with few requests the bound is below 1, and nobody is within it
        assert send(router, 7, number)[0] == replica
    crowded = Counter(send(router, 7, number)[0] for number in range(100, 300))
    assert len(crowded) == 4
    assert max(crowded.values()) < 90


def test_first_block_does_not_see_what_follows() -> None:
    router = start("first-block", 8)
    homes = {router.home(request(0.0, [3, number]), 0.0) for number in range(20)}
    assert len(homes) == 1


def test_the_tree_follows_the_longest_match() -> None:
    router = start("prefix-tree", 3)
    first, _ = send(router, 1, 2, 3)
    other, _ = send(router, 9, 9, 9)  # no match: the smallest tree
    assert other != first
    assert send(router, 1, 2, 4)[0] == first
    assert router.home(request(0.0, [9, 9, 5]), 0.0) == other
    assert router.home(request(0.0, [1, 7, 7, 7, 7]), 0.0) is None  # 0.2 is too little
    third, _ = send(router, 1, 7, 7, 7, 7)
    assert third not in (first, other)


def test_the_tree_gives_way_when_loads_differ_much() -> None:
    router = start("prefix-tree", 2)
    first, _ = send(router, 1)
    used = Counter(send(router, 1)[0] for _ in range(64))
    assert used == {first: 64}
    assert send(router, 1)[0] != first


def scores(router: SimulatedRouter, counts: Sequence[int]) -> None:
    router.reported([(0, waiting) for waiting in counts], 1.0)


def test_scores_weigh_prefix_3_to_2_for_the_queue() -> None:
    router = start("prefix-queue-scores", 2)
    first, _ = send(router, 1, 2, 3, 4)
    scores(router, [9, 0] if first == 0 else [0, 9])
    assert send(router, 1, 2, 3, 4)[0] == first  # 3 + 0 against 0 + 2
    assert send(router, 1, 2, 5, 6)[0] != first  # 1.5 + 0 against 0 + 2


def test_without_reports_the_queue_is_own_requests() -> None:
    router = start("prefix-queue-scores", 2)
    first, ticket = send(router, 1)
    assert send(router, 2)[0] != first
    router.first_token(ticket, None, 0.0)
    assert send(router, 3)[0] == first


def test_overlap_is_worth_its_blocks_and_forgotten_after_two_minutes() -> None:
    router = start("overlap-cost", 2)
    first, ticket = send(router, 1, 2, 3, 4)
    answer(router, ticket)
    assert send(router, 1, 2, 3, 4, 5)[0] == first
    fresh = start("overlap-cost", 2)
    first, ticket = send(fresh, 1, 2, 3, 4)
    answer(fresh, ticket)
    second, ticket = send(fresh, 8, now=1.0)  # the fewest blocks recorded
    assert second != first
    answer(fresh, ticket)
    late = [send(fresh, 1, 2, 3, 4, now=200.0)[0]]
    assert late == [second]


def test_blocks_in_use_count() -> None:
    router = start("overlap-cost", 2)
    first, held = send(router, 1, 2, 3, 4)
    router.first_token(held, 0, 0.1)
    assert send(router, 5, 6)[0] != first
