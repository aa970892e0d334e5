"""What cannot work is refused at construction: the value, the rule and the remedy."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prefixroute.core.checks import check_int, check_number
from prefixroute.core.failover import Failover
from prefixroute.core.fixed import Fixed
from prefixroute.core.health import HealthPolicy
from prefixroute.core.nested import Nested
from prefixroute.core.router import RouterCore
from prefixroute.errors import ConfigurationError

from .support import FakeClock, make_router, urls

SETTINGS: list[tuple[str, object]] = [
    *(("placement", v) for v in (Nested, Fixed, "nested", 5, object(), {"block_bytes": 5})),
    *(("health", v) for v in (HealthPolicy, "strict", 5, {"failures": 3})),
    *(("peers", v) for v in (0, -1, 1.5, "2", True, math.inf)),
    *(("seed", v) for v in ("x", 1.5, b"1", True, [1])),
    *(("observers", v) for v in (5, [5], ["x"], [object()], [None], object(), [print])),
    *(("holdout", v) for v in (0, 0.0, 1, 1.0, -0.1, math.nan, "0.05", True)),
    *(("holdout_placement", v) for v in (Nested(), Nested, "nested")),  # without a holdout
    *(("shadow", v) for v in (Nested, Fixed, "nested", 5)),
    *(("failover", v) for v in (Failover, 3, "always", {"max_attempts": 2})),
    *(("clock", v) for v in (5, "now", 0.0)),
    *(("wall_clock", v) for v in (5, "now", None)),
]


@pytest.mark.parametrize(("name", "value"), SETTINGS, ids=repr)
def test_a_setting_that_cannot_work_is_refused(name: str, value: object) -> None:
    settings: dict[str, Any] = {"clock": FakeClock(), "wall_clock": lambda: 0.0, name: value}
    with pytest.raises(ConfigurationError, match=rf"Router\({name}=.*\) must be .*"):
        RouterCore(urls(2), **settings)


@pytest.mark.parametrize("name", ["placement", "health", "peers", "seed"])
def test_none_is_the_default(name: str) -> None:
    settings: dict[str, Any] = {name: None}
    assert make_router(2, **settings).endpoints


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("block_bytes", v) for v in (0, -1, 15, 1.5, "1024", None, True)),
        *(("target", v) for v in (0, -0.1, 1.1, math.nan, math.inf, "x", None, True)),
        *(("load_factor", v) for v in (0.99, 0, -1, math.nan, math.inf, "1.25", None, True)),
        *(("load_slack", v) for v in (-1, math.nan, math.inf, "8", None, False)),
        *(("half_life_s", v) for v in (0, -1, math.nan, math.inf, "600", None, True)),
        *(("max_prefixes", v) for v in (0, -1, 15, 1.5, "1024", None, True)),
        *(("virtual_nodes", v) for v in (0, -1, 1.5, "128", None, True)),
    ],
)
def test_a_field_of_nested_that_cannot_work_is_refused(field: str, value: object) -> None:
    settings: dict[str, Any] = {field: value}
    with pytest.raises(ConfigurationError, match=rf"Nested\({field}=.*\) must be .*"):
        Nested(**settings)


def test_equal_settings_are_equal_and_print_alike() -> None:
    one = Nested(load_factor=2, load_slack=0, target=1, half_life_s=60)
    other = Nested(load_factor=2.0, load_slack=0.0, target=1.0, half_life_s=60.0)
    assert one == other
    assert repr(one) == repr(other)


def test_extreme_settings_that_can_work_do() -> None:
    for placement in (
        Nested(block_bytes=16, target=1e-9, load_factor=1, load_slack=0, max_prefixes=16),
        Nested(half_life_s=1e-300, virtual_nodes=1),
        Nested(half_life_s=1e300, load_factor=1e12, load_slack=1e12),
        Fixed(prefix_bytes=1, virtual_nodes=1, load_factor=1e12),
    ):
        clock = FakeClock()
        router = make_router(3, placement=placement, clock=clock)
        for number in range(40):
            clock.tick(100.0)
            with router.acquire("hello " * (number % 9)):
                router.explain("hello " * 50)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_int("Nested", "block_bytes", "x" * 100_000, 1)
    assert len(str(raised.value)) < 300


def test_numbers_come_back_as_floats() -> None:
    assert repr(check_number("X", "y", 2)) == "2.0"
    for bad in (10**400, -(10**400)):
        with pytest.raises(ConfigurationError, match="finite number"):
            check_number("X", "y", bad)
