from __future__ import annotations

import json

import pytest

import prefixroute.simulator as package
from prefixroute.core.fixed import Fixed
from prefixroute.core.nested import Nested
from prefixroute.errors import ConfigurationError
from prefixroute.simulator import PolicyResult, chats, policy_names, simulate
from prefixroute.simulator.policies import PolicyLike
from prefixroute.simulator.report import quantile

from .support import model, request, scripted, trace

TRAFFIC = chats(requests_per_s=10.0, duration_s=10.0, seed=1)


def test_every_rule_is_run_with_every_number_of_routers() -> None:
    made = simulate(TRAFFIC, replicas=3, routers=[1, 4])
    assert [(r.policy, r.routers) for r in made.results] == [
        (name, count) for count in (1, 4) for name in policy_names()
    ]
    assert {r.requests for r in made.results} == {len(TRAFFIC)}
    for result in made.results:
        assert 0.0 <= result.hit_rate <= made.pooled_hit_rate + 0.01
        assert 0.0 < result.ttft_p50_s <= result.ttft_p90_s <= result.ttft_p99_s
        assert 1.0 <= result.requests_max_over_mean <= 3.0
        assert 1.0 <= result.work_max_over_mean <= 3.0
        assert result.keys_moved is None
        assert result.decisions_per_s > 0.0
        assert len(result.ttft_quantiles_s) == 99
        assert len(result.load[0][1]) == 3


def test_a_result_says_what_was_measured() -> None:
    factory, _ = scripted(0, 1, 1)
    traffic = trace(request(0.0, [1], out=1), request(1.0, [2, 3]), request(2.0, [2, 3, 4]))
    made = simulate(traffic, policies=[factory], replicas=[model(), model()])
    (result,) = made.results
    assert (made.trace, made.requests, made.duration_s) == ("test", 3, 2.0)
    assert (made.prompt_tokens, made.replicas) == (600, 2)
    assert made.pooled_hit_rate == pytest.approx(200 / 600)
    assert result.hit_rate == pytest.approx(200 / 600)
    assert result.ttft_mean_s == pytest.approx(0.4 / 3)
    assert (result.ttft_p50_s, result.ttft_p99_s) == pytest.approx((0.1, 0.2))
    assert result.requests_max_over_mean == pytest.approx(2 / 1.5)
    assert result.work_max_over_mean == pytest.approx(0.3 / 0.2)


def test_placements_with_settings_of_their_own_are_policies() -> None:
    wanted: list[PolicyLike] = [Nested(target=0.5), Fixed(prefix_bytes=4096)]
    made = simulate(TRAFFIC, policies=wanted, replicas=2)
    assert [result.policy for result in made.results] == [repr(one) for one in wanted]


def test_results_are_json_and_a_table_in_a_notebook() -> None:
    made = simulate(TRAFFIC, policies=["nested", "random"], replicas=2)
    found = json.loads(json.dumps(made.to_dict()))
    assert [row["policy"] for row in found["results"]] == ["nested", "random"]
    assert found["results"][0]["ttft_mean_s"] == made.results[0].ttft_mean_s
    html = made._repr_html_()
    assert html.count('<th scope="row">') == 3  # both, and the bound
    assert "chats" in html
    assert found["results"][0]["source"].startswith("prefixroute")
    assert len(found["results"][0]["load"][0][1]) == 2
    assert found["setting"]["cache_report"] == "end"
    assert len(repr(made)) < 2000


def test_names_in_a_table_are_escaped() -> None:
    factory, _ = scripted(0)
    risky = package.PolicyFactory(name="<script>", start=factory.start)
    assert "<script>" not in simulate(TRAFFIC, policies=[risky], replicas=1)._repr_html_()


def test_several_processes_give_the_same() -> None:
    def figures(jobs: int) -> list[tuple[str, float, float]]:
        made = simulate(TRAFFIC, policies=["nested", "prefix-tree"], replicas=2, jobs=jobs)
        return [(r.policy, r.hit_rate, r.ttft_mean_s) for r in made.results]

    assert figures(2) == figures(1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_names_the_run(jobs: int) -> None:
    told: list[tuple[str, int, int, int]] = []
    simulate(
        TRAFFIC,
        policies=["random"],
        replicas=2,
        routers=(2,),
        jobs=jobs,
        progress=lambda *at: told.append(at),
    )
    assert told[-1] == ("random", 2, len(TRAFFIC), len(TRAFFIC))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": []}, "replicas"),
        ({"routers": [1, 0]}, "routers"),
        ({"routers": []}, "routers"),
        ({"policies": ["none"]}, "unknown"),
        ({"jobs": 0}, "jobs"),
        ({"report_every_s": -1.0}, "report_every_s"),
    ],
)
def test_what_cannot_be_simulated_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        simulate(TRAFFIC, **settings)  # type: ignore[arg-type]


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [quantile(values, q) for q in (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)] == [
        1,
        1,
        50,
        90,
        99,
        100,
    ]
    assert quantile([7.0], 0.5) == 7.0
    assert quantile([], 0.5) == 0.0


def test_an_empty_trace_gives_empty_results() -> None:
    (result,) = simulate(trace(), policies=["nested"], replicas=2).results
    assert isinstance(result, PolicyResult)
    assert (result.requests, result.hit_rate, result.ttft_mean_s) == (0, 0.0, 0.0)


def test_the_public_names_are_sorted_and_there() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
