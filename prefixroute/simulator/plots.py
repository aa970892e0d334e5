"""The plots of a simulation's page. Rules have the colours of the classes ``c0``, ``c1``, ..."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from prefixroute.simulator import svg
from prefixroute.simulator.report import PolicyResult, Simulation

__all__ = ["plots", "routers_text", "seconds"]

_PANELS: Final = 4
"""Rules whose load over time is drawn."""

_WINDOWS: Final = 60
"""Of a run: loads are drawn as means over these."""

_OWN: Final = "nested"
_PLAIN: Final = ("least-loaded", "round-robin", "random")


def plots(simulation: Simulation) -> Iterator[str]:
    """Yield the figures: times to first token, hit rates, loads."""
    for count in simulation.routers:
        yield _distribution(simulation, count)
    if len(simulation.routers) > 1:
        yield _hit_rates(simulation)
    yield from _loads(simulation)


def seconds(value: float) -> str:
    """Return seconds with about three digits."""
    return f"{value:.3f}" if value < 1.0 else f"{value:.2f}" if value < 10.0 else f"{value:,.1f}"


def routers_text(count: int) -> str:
    """Return a number of routers in words."""
    return "1 router that sees all" if count == 1 else f"{count} routers that share nothing"


def _short(value: float) -> str:
    """Return seconds for an axis."""
    return f"{value * 1000:g} ms" if value < 1.0 else f"{value:g} s"


def _css(simulation: Simulation, policy: str, more: str = "") -> str:
    own = " own" if policy == _OWN and not more else ""
    return f"c{simulation.policies.index(policy)}{own}{more}"


def _figure(title: str, picture: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{picture}</figure>"


def _distribution(simulation: Simulation, routers: int) -> str:
    results = simulation.with_routers(routers)
    every = [q for result in simulation.results for q in result.ttft_quantiles_s]
    x = svg.log_axis("time to first token", every, _short)
    y = svg.Axis(
        label="requests answered",
        low=0.0,
        high=1.0,
        ticks=[(q / 4, f"{q * 25} %") for q in range(5)],
    )
    lines = [
        svg.Line(
            css=_css(simulation, result.policy),
            points=[(value, at / 100) for at, value in enumerate(result.ttft_quantiles_s, 1)],
            title=f"{result.policy}: median {seconds(result.ttft_p50_s)} s",
        )
        for result in reversed(results)
    ]
    title = f"Time to first token, {routers_text(routers)}"
    return _figure(title, svg.chart(title, x, y, lines))


def _hit_rates(simulation: Simulation) -> str:
    counts = simulation.routers
    x = svg.steps_axis("routers", [f"{count}" for count in counts])
    highest = max([simulation.pooled_hit_rate, *(r.hit_rate for r in simulation.results)])
    y = svg.linear_axis("hit rate; dashed: one pooled cache", highest, lambda v: f"{v * 100:g} %")
    bound = simulation.pooled_hit_rate
    lines = [
        svg.Line(css="bound", points=[(x.low, bound), (x.high, bound)], title=f"bound: {bound:.1%}")
    ]
    for policy in reversed(simulation.policies):
        mine = [r for r in simulation.results if r.policy == policy]
        points = [(float(counts.index(r.routers)), r.hit_rate) for r in mine]
        said = ", ".join(f"{r.hit_rate:.1%} with {r.routers}" for r in mine)
        css = _css(simulation, policy)
        lines.append(svg.Line(css=css, points=points, title=f"{policy}: {said}", dots=True))
    title = "Hit rate against the number of routers"
    return _figure(title, svg.chart(title, x, y, lines))


def _panels(simulation: Simulation, routers: int) -> list[PolicyResult]:
    """Return the rules whose loads are drawn: the product's, the best other, the plain ones."""
    ranked = sorted(simulation.with_routers(routers), key=lambda result: result.ttft_mean_s)
    own = [result for result in ranked if result.policy == _OWN]
    others = [result for result in ranked if result.policy not in (_OWN, *_PLAIN)]
    plain = [result for name in _PLAIN for result in ranked if result.policy == name]
    wanted = [*own, *others[:1], *plain[:1], *others[1:], *plain[1:]]
    return wanted[:_PANELS]


def _loads(simulation: Simulation) -> Iterable[str]:
    """Yield the load over time, with one scale for all."""
    if not simulation.requests:
        return
    routers = max(simulation.routers)
    shown = {result.policy: _smooth(result) for result in _panels(simulation, routers)}
    most = max(load for lines in shown.values() for line in lines for _, load in line)
    x = svg.time_axis("seconds", simulation.duration_s, lambda v: f"{v:,.0f}")
    y = svg.linear_axis("requests at each replica, mean", most, lambda v: f"{v:,g}")
    for policy, loads in shown.items():
        css = _css(simulation, policy, " thin")
        lines = [
            svg.Line(css=css, points=points, title=f"replica {replica}")
            for replica, points in enumerate(loads)
        ]
        title = f"Load with {policy}, {routers} router{'' if routers == 1 else 's'}"
        yield _figure(title, svg.chart(title, x, y, lines))


def _smooth(result: PolicyResult) -> list[list[tuple[float, float]]]:
    """Return the load of each replica, as means over windows."""
    size = max(1, len(result.load) // _WINDOWS)
    lines: list[list[tuple[float, float]]] = [[] for _ in result.load[-1][1]]
    for start in range(0, len(result.load), size):
        window = result.load[start : start + size]
        middle = (window[0][0] + window[-1][0]) / 2
        for replica, line in enumerate(lines):
            seen = [load[replica] for _, load in window if replica < len(load)]
            if seen:
                line.append((middle, sum(seen) / len(seen)))
    return lines
