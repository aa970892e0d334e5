from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load import EndpointState, EngineLoad, capacity
from prefixroute.core.membership import Group
from prefixroute.core.placement import Bound
from prefixroute.core.ring import Ring
from prefixroute.errors import ConfigurationError

WEIGHTS = (0.25, 0.5, 1.0, 2.0, 3.0)


@pytest.mark.parametrize("factor", [1, 1.05, 1.1, 1.25, 1.5, 2, 3])
def test_capacity_is_the_published_bound(factor: float) -> None:
    """Exhaustive over requests in flight and shares; the ceiling in exact arithmetic."""
    for in_flight in range(200):
        for weight, total in ((1, 1), (1, 2), (1, 3), (1, 7), (1, 10), (2, 10), (3, 10), (7, 8)):
            exact = Fraction(str(factor)) * (in_flight + 1) * Fraction(weight, total)
            found = capacity(in_flight, weight / total, float(factor), 0.0)
            assert found == math.ceil(exact), (in_flight, weight, total)


def test_products_that_are_whole_are_not_rounded_up() -> None:
    assert capacity(9, 1.0, 1.1, 0.0) == 11  # 1.1 * 10 is 11.000000000000002
    assert capacity(99, 0.1, 1.1, 0.0) == 11


def test_slack_lets_small_numbers_exceed_their_share() -> None:
    assert capacity(0, 1 / 8, 1.25, 8.0) == 8
    assert capacity(8, 1 / 8, 1.25, 8.0) == 9
    assert capacity(800, 1 / 8, 1.25, 8.0) == 126  # the factor has overtaken
    assert capacity(5, 1 / 8, 1.25, 0.5) == 1  # 0.625 + 0.5 is no second request


@given(st.integers(0, 10**6), st.floats(1e-6, 1.0), st.floats(1.0, 4.0), st.floats(0.0, 64.0))
def test_slack_and_factor_only_ever_allow_more(
    in_flight: int, part: float, factor: float, slack: float
) -> None:
    textbook = capacity(in_flight, part, factor, 0.0)
    assert (
        capacity(in_flight, part, factor, slack) >= textbook >= capacity(in_flight, part, 1.0, 0.0)
    )


def group(weights: tuple[float, ...], in_flight: tuple[int, ...]) -> Group:
    states = []
    for number, (weight, held) in enumerate(zip(weights, in_flight, strict=True)):
        state = EndpointState(Endpoint(f"http://gpu-{number}", weight=weight))
        state.in_flight = held
        states.append(state)
    ring = Ring([(s.endpoint.id, s.endpoint.weight) for s in states], virtual_nodes=4)
    return Group((0, ""), states, ring, [state.endpoint for state in states])


@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0])
def test_somebody_always_has_room_below_the_textbook_bound(factor: float) -> None:
    """The bounds of all sum up to more than the requests in flight."""
    for weights in itertools.product(WEIGHTS, repeat=3):
        for in_flight in itertools.product(range(4), repeat=3):
            some = group(weights, in_flight)
            limits = Bound(factor, 0.0).limits(some, range(3), range(3))
            assert any(in_flight[i] < limits[i] for i in range(3)), (weights, in_flight)


def test_limits_count_only_who_is_available() -> None:
    some = group((1.0, 1.0, 2.0), (10, 0, 2))
    limits = Bound(1.25, 0.0).limits(some, (1, 2), (1, 2))
    assert limits == {1: math.ceil(1.25 * 3 / 3), 2: math.ceil(1.25 * 3 * 2 / 3)}


# -- what engines report -------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        {"running": -1},
        {"waiting": -1},
        {"waiting": float("nan")},
        {"waiting": float("inf")},
        {"waiting": "3"},
        {"waiting": None},
        {"running": True},
        {"kv_usage": -0.1},
        {"kv_usage": float("nan")},
        {"kv_usage": "half"},
    ],
)
def test_a_report_that_cannot_be_is_refused(field: dict[str, object]) -> None:
    name = next(iter(field))
    with pytest.raises(ConfigurationError, match=rf"EngineLoad\({name}=.* must be a finite number"):
        EngineLoad(**field)  # type: ignore[arg-type]


def test_counts_may_be_the_floats_that_engines_print() -> None:
    assert EngineLoad(running=3.0, waiting=2.0) == EngineLoad(running=3, waiting=2)  # type: ignore[arg-type]
