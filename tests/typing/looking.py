"""Simulations and plots, as in a notebook."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from matplotlib.axes import Axes

from prefixroute import Nested, Router
from prefixroute.plot import plot_explanation, plot_hit_rate, plot_load, plot_ring, plot_ttft
from prefixroute.simulator import PolicyResult, Simulation, chats, simulate


def simulated() -> Simulation:
    """Rules by name and placements, mixed."""
    trace = chats(requests_per_s=5.0, duration_s=10.0)
    simulation = simulate(trace, policies=["random", Nested()], replicas=4, routers=[1, 8])
    assert_type(simulation, Simulation)
    assert_type(simulation.results, tuple[PolicyResult, ...])
    assert_type(simulation.results[0].ttft_p50_s, float)
    return simulation


def plotted(router: Router, simulation: Simulation, ax: Axes) -> None:
    """Every plot returns its axes."""
    assert_type(plot_ring(router), Axes)
    plot_ring(router.ring("m", tier=0), ax=ax)
    plot_load(router.stats(), ax=ax)
    plot_load(simulation, policy="nested", routers=8)
    plot_load(simulation.results[0])
    plot_ttft(simulation, routers=8, ax=ax)
    plot_hit_rate(router.stats())
    plot_hit_rate(simulation)
    plot_explanation(router.explain("Hello"), ax=ax)


def wrong(router: Router, ax: Axes) -> None:
    """What cannot work is an error before it runs."""
    plot_ring(router, ax)  # type: ignore[call-arg]
    plot_load(router)  # type: ignore[arg-type]
    plot_ttft(router.stats())  # type: ignore[arg-type]
