"""Plots of a ring, of a router's counts, of an explanation, and of a simulation, with matplotlib.

>>> from prefixroute import Router
>>> from prefixroute.plot import plot_ring
>>> axes = plot_ring(Router(["http://gpu-0:8000/v1", "http://gpu-1:8000/v1"]))  # doctest: +SKIP

Each draws into ``ax``, or into a figure of its own, and returns the ``Axes``; nothing is shown or
saved. Colours and type are those of your style. Importing this loads no matplotlib (extra
``plot``), and who gives an ``ax`` has loaded it already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from prefixroute.core.checks import refusal
from prefixroute.core.explain import Explanation
from prefixroute.core.ring_view import RingView
from prefixroute.core.router import RouterCore
from prefixroute.core.stats import Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Formatter
    from matplotlib.typing import ColorType

    from prefixroute.simulator.report import PolicyResult, Simulation

__all__ = ["plot_explanation", "plot_hit_rate", "plot_load", "plot_ring", "plot_ttft"]

_Load: TypeAlias = "Stats | PolicyResult | Simulation"

_WINDOWS: Final = 60
"""Of a run: loads are drawn as means over these."""


def plot_ring(ring: RouterCore | RingView, *, ax: Axes | None = None) -> Axes:
    """Draw whose share of the keys is how large, beside what is fair by weight.

    Args:
        ring: A router (the ring of its lowest tier), or ``router.ring(model, tier=...)``.
        ax: Where to.
    """
    view = ring if isinstance(ring, RingView) else ring.ring()
    axes = _axes(ax)
    places = range(len(view.members))
    axes.barh(places, [member.share for member in view.members], label="share")
    _marks(axes, [member.fair_share for member in view.members], "fair by weight")
    _named(axes, [member.id for member in view.members])
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel(f"share of the keys, by {view.virtual_nodes:,} virtual nodes")
    _legend_above(axes)
    return axes


def plot_load(
    of: _Load, *, policy: str | None = None, routers: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw how many requests each endpoint has had, or what a simulated run put on each replica.

    Args:
        of: ``router.stats()``: bars, the requests that were sent there for another home apart. A
            simulation, or one of its results: requests at each replica over time.
        policy: Of a simulation: which rule's.
        routers: Of a simulation: with how many routers.
        ax: Where to.

    Raises:
        ConfigurationError: A simulation of which not exactly one result is meant.
    """
    if isinstance(of, Stats):
        return _requests(of, _axes(ax))
    result = _one(of, policy, routers)
    axes = _axes(ax)
    for replica, (times, loads) in enumerate(_smooth(result)):
        axes.plot(times, loads, label=f"replica {replica}", linewidth=1.0)
    many = "" if result.routers == 1 else "s"
    axes.set(
        xlabel="time, seconds",
        ylabel="requests at each replica, mean",
        title=f"Load with {result.policy}, {result.routers} router{many}",
    )
    axes.set_ylim(bottom=0)
    return axes


def plot_ttft(
    simulation: Simulation, *, routers: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the distribution of the times to first token, a line for each rule.

    Args:
        simulation: What ``simulate`` returned.
        routers: With how many routers; default: the most.
        ax: Where to.

    Raises:
        ConfigurationError: There is no result with so many routers.
    """
    count = max(simulation.routers) if routers is None else routers
    results = simulation.with_routers(count)
    if not results:
        there = ", ".join(map(str, simulation.routers))
        raise refusal("plot_ttft", "routers", routers, f"one of: {there}")
    axes = _axes(ax)
    for result in results:
        shares = [at / 100 for at in range(1, len(result.ttft_quantiles_s) + 1)]
        axes.plot(result.ttft_quantiles_s, shares, label=result.policy)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(_plain())
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set(
        xlabel="time to first token, seconds",
        ylabel="requests answered",
        ylim=(0.0, 1.0),
        title=f"Time to first token, {count} router{'' if count == 1 else 's'}",
    )
    axes.legend()
    return axes


def plot_hit_rate(of: Stats | Simulation, *, ax: Axes | None = None) -> Axes:
    """Draw what share of the prompt tokens came from a cache.

    Args:
        of: ``router.stats()``: of each endpoint, as replies reported it and as it was expected. A
            simulation: of each rule, against the number of routers if there were several, and what
            one cache as large as all would have had.
        ax: Where to.
    """
    axes = _axes(ax)
    if isinstance(of, Stats):
        _reported(of, axes)
    elif len(of.routers) == 1:
        _simulated(of, axes)
    else:
        _by_routers(of, axes)
    return axes


def plot_explanation(explanation: Explanation, *, ax: Axes | None = None) -> Axes:
    """Draw a prompt as it is cut: how large its parts are, and how hot.

    The height of a part is the share of the traffic that starts with the prompt up to its end; the
    number on it is how many endpoints these requests are given; the line is the end of the key.

    Args:
        explanation: What ``router.explain(body)`` returned.
        ax: Where to.
    """
    axes = _axes(ax)
    start, depth = 0.0, explanation.decision.depth
    for at, boundary in enumerate(explanation.boundaries):
        height, width = boundary.share or 0.0, boundary.tokens - start
        axes.bar(start, height, width, align="edge", color="C1", edgecolor=axes.get_facecolor())
        if boundary.spread is not None and boundary.spread > 1:
            middle = (start + width / 2, height)
            axes.annotate(f"{boundary.spread}", middle, ha="center", va="bottom")
        if at == depth:
            axes.axvline(boundary.tokens, color="C0", label=f"key {boundary.key}")
            axes.legend()
        start = boundary.tokens
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set(
        xlabel="prompt, tokens",
        ylabel="share of the traffic",
        ylim=(0.0, 1.1),
        title=f"Goes to {explanation.decision.endpoint.id}",
    )
    return axes


# -- parts ------------------------------------------------------------------------------


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot  # noqa: PLC0415 - an extra, and takes a while
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "prefixroute.plot needs matplotlib: pip install 'prefixroute[plot]'", name=error.name
        ) from error
    _, made = pyplot.subplots(layout="constrained")
    return made


def _named(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _legend_above(axes: Axes) -> None:
    """Put the legend where no bar is."""
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False)


def _plain() -> Formatter:
    """Return what labels the minor ticks of a logarithmic axis: few, and no powers of ten."""
    from matplotlib.ticker import LogFormatter  # noqa: PLC0415 - who has axes has loaded it

    return LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.5))


def _ink(axes: Axes) -> ColorType:
    """Return the colour of text: black, or what a dark style has."""
    return axes.xaxis.label.get_color()


def _marks(axes: Axes, values: Sequence[float], label: str) -> None:
    """Mark a value on each row."""
    places = range(len(values))
    axes.plot(values, places, "|", color=_ink(axes), markersize=16, markeredgewidth=2, label=label)


def _requests(stats: Stats, axes: Axes) -> Axes:
    places = range(len(stats.endpoints))
    spills = [one.spills for one in stats.endpoints]
    home = [one.requests - one.spills for one in stats.endpoints]
    axes.barh(places, home, label="at home")
    axes.barh(places, spills, left=home, label="for another home")
    mean = stats.requests / len(stats.endpoints)
    axes.axvline(mean, color=_ink(axes), linewidth=1.0, label="mean")
    _named(axes, [one.id for one in stats.endpoints])
    most = max((one.requests for one in stats.endpoints), default=0)
    axes.set_xlim(0.0, 1.05 * max(1, most))
    axes.set_xlabel(f"requests: {stats.requests:,}, of these {stats.in_flight:,} in flight")
    _legend_above(axes)
    return axes


def _reported(stats: Stats, axes: Axes) -> None:
    places = range(len(stats.endpoints))
    rates = [one.hit_rate or 0.0 for one in stats.endpoints]
    expected = [one.expected_cached_tokens / max(1, one.prompt_tokens) for one in stats.endpoints]
    axes.barh(places, rates, label="reported")
    _marks(axes, expected, "expected")
    _named(axes, [one.id for one in stats.endpoints])
    _of_tokens(axes)


def _of_tokens(axes: Axes) -> None:
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set(xlabel="prompt tokens from a cache", xlim=(0.0, 1.0))
    _legend_above(axes)


def _simulated(simulation: Simulation, axes: Axes) -> None:
    results = simulation.results
    axes.barh(range(len(results)), [result.hit_rate for result in results])
    axes.axvline(simulation.pooled_hit_rate, **_bound(simulation, axes))
    _named(axes, [result.policy for result in results])
    _of_tokens(axes)


def _by_routers(simulation: Simulation, axes: Axes) -> None:
    counts, results = simulation.routers, simulation.results
    for policy in simulation.policies:
        mine = [result for result in results if result.policy == policy]
        places = [counts.index(result.routers) for result in mine]
        axes.plot(places, [result.hit_rate for result in mine], marker="o", label=policy)
    axes.axhline(simulation.pooled_hit_rate, **_bound(simulation, axes))
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.yaxis.set_major_formatter("{x:.0%}")
    highest = max([simulation.pooled_hit_rate, *(result.hit_rate for result in results)])
    axes.set_ylim(0.0, 1.1 * highest or 1.0)
    axes.set(xlabel="routers that share nothing", ylabel="prompt tokens from a cache")
    axes.legend()


def _bound(simulation: Simulation, axes: Axes) -> dict[str, Any]:
    """Return what the line of the bound looks like."""
    label = f"one pooled cache: {simulation.pooled_hit_rate:.1%}"
    return {"color": _ink(axes), "linestyle": "--", "label": label}


def _one(of: PolicyResult | Simulation, policy: str | None, routers: int | None) -> PolicyResult:
    """Return the result that is meant.

    Raises:
        ConfigurationError: None or several are.
    """
    results: Sequence[PolicyResult] = getattr(of, "results", None) or [cast("PolicyResult", of)]
    found = [
        result
        for result in results
        if policy in (None, result.policy) and routers in (None, result.routers)
    ]
    if len(found) != 1:
        there = ", ".join(f"{result.policy} with {result.routers}" for result in results)
        raise refusal("plot_load", "policy", policy, f"of one result, with routers=: {there}")
    return found[0]


def _smooth(result: PolicyResult) -> Iterable[tuple[list[float], list[float]]]:
    """Yield times and loads of each replica, as means over windows."""
    size = max(1, len(result.load) // _WINDOWS)
    windows = [result.load[at : at + size] for at in range(0, len(result.load), size)]
    for replica in range(len(result.load[-1][1]) if result.load else 0):
        times, loads = [], []
        for window in windows:
            seen = [load[replica] for _, load in window if replica < len(load)]
            if seen:
                times.append((window[0][0] + window[-1][0]) / 2)
                loads.append(sum(seen) / len(seen))
        yield times, loads
