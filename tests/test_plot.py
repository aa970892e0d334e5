"""Plots show the figures that they are given; what they look like is for people to judge."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from prefixroute import ConfigurationError, Endpoint, Fixed, Router
from prefixroute.plot import plot_explanation, plot_hit_rate, plot_load, plot_ring, plot_ttft
from prefixroute.simulator import Simulation, chats, simulate


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    trace = chats(requests_per_s=5.0, duration_s=20.0)
    return simulate(trace, policies=["nested", "random"], replicas=3, routers=[1, 4])


@pytest.fixture
def router() -> Router:
    made = Router([Endpoint("http://a", id="a"), Endpoint("http://b", id="b", weight=3.0)], seed=0)
    for number in range(20):
        with made.acquire(body(number)) as lease:
            lease.usage(prompt_tokens=100, cached_tokens=60)
    return made


@pytest.fixture
def ax() -> Axes:
    made: Axes = Figure(layout="constrained").subplots()
    return made


@pytest.fixture(autouse=True)
def _nothing_is_shown_or_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def shown(*_: object, **__: object) -> None:
        raise AssertionError("a plot must not be shown by a library")

    monkeypatch.setattr(pyplot, "show", shown)
    yield
    pyplot.close("all")


def body(number: int) -> dict[str, Any]:
    system = {"role": "system", "content": "You help in a library. " * 200}
    return {"messages": [system, {"role": "user", "content": f"question {number} " * 50}]}


def drawn(axes: Axes) -> Axes:
    """The axes, drawn, which must warn of nothing."""
    assert isinstance(axes.figure, Figure)
    canvas: Any = FigureCanvasAgg(axes.figure)
    canvas.draw()
    return axes


def widths(axes: Axes) -> list[float]:
    return [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]


def line(axes: Axes, at: int = 0) -> tuple[list[float], list[float]]:
    """The x and the y of a line."""
    drawn: Any = axes.lines[at]
    return list(drawn.get_xdata()), list(drawn.get_ydata())


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def test_a_ring_shows_shares_and_what_is_fair(router: Router, ax: Axes) -> None:
    assert plot_ring(router, ax=ax) is ax
    view = router.ring()
    assert widths(drawn(ax)) == [member.share for member in view.members]
    assert line(ax)[0] == [0.25, 0.75]
    assert names(ax) == ["a", "b"]
    other: Axes = Figure().subplots()
    assert widths(plot_ring(view, ax=other)) == widths(ax)


def test_loads_of_a_router_are_its_requests(router: Router, ax: Axes) -> None:
    stats = router.stats()
    assert plot_load(stats, ax=ax) is ax
    bars = widths(drawn(ax))
    assert [home + spilled for home, spilled in zip(bars[:2], bars[2:], strict=True)] == [
        one.requests for one in stats.endpoints
    ]
    assert bars[2:] == [one.spills for one in stats.endpoints]
    assert line(ax)[0] == [10.0, 10.0]  # the mean
    assert "requests: 20, of these 0 in flight" in ax.get_xlabel()


def test_loads_of_a_run_are_lines_over_time(simulation: Simulation, ax: Axes) -> None:
    assert plot_load(simulation, policy="nested", routers=4, ax=ax) is ax
    assert len(drawn(ax).lines) == 3
    result = next(r for r in simulation.results if (r.policy, r.routers) == ("nested", 4))
    total = sum(sum(load) for _, load in result.load) / len(result.load)
    means = [sum(line(ax, at)[1]) / len(line(ax, at)[1]) for at in range(3)]
    assert sum(means) == pytest.approx(total, rel=0.05)  # the last window may be shorter
    other: Axes = Figure().subplots()
    assert len(plot_load(result, ax=other).lines) == 3


@pytest.mark.parametrize("meant", [{}, {"policy": "nested"}, {"policy": "fixed", "routers": 1}])
def test_one_result_must_be_meant(simulation: Simulation, meant: dict[str, Any], ax: Axes) -> None:
    with pytest.raises(ConfigurationError, match=r"plot_load\(policy=.*random with 4"):
        plot_load(simulation, **meant, ax=ax)
    assert not ax.lines


def test_times_to_first_token_are_a_line_for_each_rule(simulation: Simulation, ax: Axes) -> None:
    assert plot_ttft(simulation, ax=ax) is ax
    assert legend(drawn(ax)) == ["nested", "random"]
    assert "4 routers" in ax.get_title()
    nested = simulation.with_routers(4)[0]
    times, shares = line(ax)
    assert times[shares.index(0.5)] == nested.ttft_p50_s
    assert ax.get_xscale() == "log"
    other: Axes = Figure().subplots()
    assert "1 router" in plot_ttft(simulation, routers=1, ax=other).get_title()
    with pytest.raises(ConfigurationError, match=r"plot_ttft\(routers=9\) must be one of: 1, 4"):
        plot_ttft(simulation, routers=9, ax=ax)


def test_hit_rates_of_a_router_are_beside_what_was_expected(router: Router, ax: Axes) -> None:
    assert plot_hit_rate(router.stats(), ax=ax) is ax
    stats = router.stats()
    assert widths(drawn(ax)) == [one.hit_rate or 0.0 for one in stats.endpoints]
    assert legend(ax) == ["expected", "reported"] or legend(ax) == ["reported", "expected"]


def test_hit_rates_of_rules_are_beside_their_bound(simulation: Simulation, ax: Axes) -> None:
    plot_hit_rate(simulation, ax=ax)
    labels = [str(one.get_label()) for one in drawn(ax).lines]
    assert line(ax, labels.index("nested"))[1] == [
        result.hit_rate for result in simulation.results if result.policy == "nested"
    ]
    bound = labels.index(f"one pooled cache: {simulation.pooled_hit_rate:.1%}")
    assert set(line(ax, bound)[1]) == {simulation.pooled_hit_rate}


def test_hit_rates_with_one_number_of_routers_are_bars(ax: Axes) -> None:
    trace = chats(requests_per_s=5.0, duration_s=5.0)
    simulation = simulate(trace, policies=["nested", "random"], replicas=2)
    plot_hit_rate(simulation, ax=ax)
    assert widths(drawn(ax)) == [result.hit_rate for result in simulation.results]
    assert names(ax) == ["nested", "random"]


def test_an_explanation_shows_parts_and_key(router: Router, ax: Axes) -> None:
    explanation = router.explain(body(99))
    assert plot_explanation(explanation, ax=ax) is ax
    assert sum(widths(drawn(ax))) == pytest.approx(explanation.boundaries[-1].tokens)
    heights = [patch.get_height() for patch in ax.patches]  # type: ignore[attr-defined]
    assert heights == [boundary.share for boundary in explanation.boundaries]
    spreads = [boundary.spread for boundary in explanation.boundaries]
    assert [text.get_text() for text in ax.texts] == [str(s) for s in spreads if s and s > 1]
    assert legend(ax) == [f"key {explanation.decision.key}"]


def test_an_explanation_without_traffic_or_key_can_be_drawn(ax: Axes) -> None:
    for placement, prompt in ((Fixed(), "hello " * 900), (None, {})):
        axes = plot_explanation(Router(["http://a"], placement=placement).explain(prompt), ax=ax)
        assert "http://a/v1" in drawn(axes).get_title()


@pytest.mark.parametrize(
    "plot",
    [
        lambda router, _: plot_ring(router),
        lambda router, _: plot_load(router.stats()),
        lambda router, _: plot_hit_rate(router.stats()),
        lambda router, _: plot_explanation(router.explain("hello")),
        lambda _, simulation: plot_load(simulation.results[0]),
        lambda _, simulation: plot_ttft(simulation),
        lambda _, simulation: plot_hit_rate(simulation),
    ],
)
def test_without_axes_each_has_a_figure_of_its_own(
    plot: Callable[[Router, Simulation], Axes], router: Router, simulation: Simulation
) -> None:
    one, other = plot(router, simulation), plot(router, simulation)
    assert drawn(one).figure is not drawn(other).figure


@pytest.mark.parametrize("style", ["default", "dark_background", "grayscale"])
def test_marks_have_the_colour_of_text(style: str, router: Router) -> None:
    with pyplot.style.context(style):
        axes = plot_ring(router)
    assert axes.lines[0].get_color() == axes.xaxis.label.get_color()


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_loads_no_matplotlib() -> None:
    done = run("import sys, prefixroute.plot; print('matplotlib' in sys.modules)")
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_what_is_missing_is_named() -> None:
    done = run(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from prefixroute import Router\n"
        "from prefixroute.plot import plot_ring\n"
        "plot_ring(Router(['http://a']))"
    )
    assert done.returncode == 1
    assert "pip install 'prefixroute[plot]'" in done.stderr
