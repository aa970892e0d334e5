from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from prefixroute.errors import ConfigurationError
from prefixroute.simulator import CacheReport, Change, Trace, chats
from prefixroute.simulator.policies import policy_factory
from prefixroute.simulator.run import Outcome, Setting, run

from .support import model, request, scripted, trace

TWO = trace(request(0.0, [1, 2], out=5), request(1.0, [1, 2, 3], out=5))


def simple(
    traffic: Trace, *replicas: int, count: int = 2, setting: Setting | None = None
) -> Outcome:
    factory, _ = scripted(*replicas)
    return run(traffic, factory, [model()] * count, setting or Setting())


def test_a_run_adds_up() -> None:
    outcome = simple(TWO, 0, 0)
    assert list(outcome.ttft_s) == pytest.approx([0.2, 0.1])
    assert (outcome.prompt_tokens, outcome.cached_tokens) == (500, 200)
    assert outcome.requests == [2, 0]
    assert outcome.work_s == pytest.approx([0.3, 0.0])


def test_replicas_share_no_cache() -> None:
    outcome = simple(TWO, 0, 1)
    assert outcome.cached_tokens == 0
    assert outcome.requests == [1, 1]


@pytest.mark.parametrize(
    ("when", "first", "done"),
    [
        (CacheReport.START, [0, 200], [0, 200]),
        (CacheReport.END, [None, None], [0, 200]),
        (CacheReport.NEVER, [None, None], [None, None]),
    ],
)
def test_cached_tokens_are_reported_when_it_is_said(
    when: CacheReport, first: list[int | None], done: list[int | None]
) -> None:
    factory, made = scripted(0)
    run(TWO, factory, [model()], Setting(cache_report=when))
    assert [cached for _, cached in made[0].said("first")] == first
    assert [cached for _, _, cached in made[0].said("done")] == done
    assert [tokens for _, tokens, _ in made[0].said("done")] == [200, 300]


def test_replies_that_are_not_streamed_show_no_first_token() -> None:
    factory, made = scripted(0)
    outcome = run(TWO, factory, [model()], Setting(stream=False))
    assert made[0].said("first") == []
    assert len(made[0].said("done")) == len(outcome.ttft_s) == 2


def test_loads_are_reported_at_the_interval() -> None:
    factory, made = scripted(0, 0, 1)
    traffic = trace(*(request(n * 0.9, [n] * 5, out=30) for n in range(3)))
    run(traffic, factory, [model()] * 2, Setting(report_every_s=0.6))
    assert made[0].said("reported") == [
        (0.6, (1, 0), (0, 0)),
        (1.2, (1, 1), (0, 0)),
        (pytest.approx(1.8), (2, 0), (0, 0)),
    ]


def test_each_request_goes_through_a_random_router() -> None:
    factory, made = scripted(0)
    traffic = trace(*(request(float(n), [n]) for n in range(400)))
    run(traffic, factory, [model()], Setting(routers=4, seed=3))
    counts = [len(one.said("route")) for one in made]
    assert sum(counts) == 400
    assert min(counts) > 70
    assert all(len(one.said("done")) == len(one.said("route")) for one in made)


def test_routers_are_replaced_after_so_many_requests() -> None:
    factory, made = scripted(0)
    traffic = trace(*(request(n * 0.01, [n], out=100) for n in range(25)))
    run(traffic, factory, [model()], Setting(replace_after=10))
    assert [len(one.said("route")) for one in made] == [10, 10, 5]
    assert [len(one.said("done")) for one in made] == [10, 10, 5]  # also what was in flight


def test_a_replica_that_leaves_ends_what_it_has_and_comes_back_empty() -> None:
    factory, made = scripted(0, 1, 0)
    traffic = replace(
        trace(request(0.0, [1], out=50), request(2.0, [1]), request(4.0, [1])),
        changes=(
            Change(at_s=1.0, replica=0, joins=False),
            Change(at_s=3.0, replica=0, joins=True),
            Change(at_s=3.5, replica=2, joins=True),
        ),
    )
    outcome = run(traffic, factory, [model()] * 2, Setting())
    assert len(outcome.ttft_s) == 3
    assert outcome.cached_tokens == 0
    assert outcome.requests == [2, 1, 0]
    assert made[0].members == [0, 1, 2]
    assert len(outcome.moved) == 3


def test_the_last_replica_cannot_leave() -> None:
    leaves = (Change(at_s=0.5, replica=0, joins=False),)
    with pytest.raises(ConfigurationError, match="last replica"):
        simple(replace(TWO, changes=leaves), 0, count=1)


@pytest.mark.parametrize("policy", ["nested", "fixed", "first-block"])
def test_few_keys_move_when_a_replica_joins_or_leaves(policy: str) -> None:
    traffic = chats(requests_per_s=20.0, duration_s=40.0, turns=3, prompt_blocks=0, seed=5)
    changes = (
        Change(at_s=20.0, replica=3, joins=False), Change(at_s=30.0, replica=3, joins=True),
    )  # fmt: skip
    outcome = run(
        replace(traffic, changes=changes), policy_factory(policy), [model()] * 8, Setting()
    )
    assert len(outcome.moved) == 2
    assert all(0.02 < moved < 0.3 for moved in outcome.moved)  # 1/8 is what has to


def test_load_is_sampled_over_the_run() -> None:
    traffic = trace(*(request(float(n), [n]) for n in range(100)))
    samples = simple(traffic, 1).samples
    assert 200 < len(samples) <= 300
    assert {load[0] for _, load in samples} == {0}
    assert max(load[1] for _, load in samples) >= 1


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    factory, _ = scripted(0)
    traffic = trace(*(request(float(n), [n]) for n in range(600)))
    run(traffic, factory, [model()], Setting(), progress=lambda *at: told.append(at))
    assert told == [(256, 600), (512, 600), (600, 600)]


def test_a_run_is_repeatable() -> None:
    traffic = chats(requests_per_s=20.0, duration_s=20.0, seed=1)
    results = []
    for seed in (0, 0, 1):
        setting = Setting(routers=8, seed=seed, report_every_s=1.0)
        outcome = run(traffic, policy_factory("nested"), [model()] * 4, setting)
        results.append((list(outcome.ttft_s), outcome.requests))
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize(
    "settings", [{"routers": 0}, {"replace_after": 0}, {"report_every_s": 0.0}]
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        Setting(**settings)  # type: ignore[arg-type]


def test_no_request_is_lost_whatever_is_simulated() -> None:
    traffic = chats(requests_per_s=30.0, duration_s=10.0, seed=2)
    for stream in (True, False):
        for chunk in (None, 512):
            outcome = run(
                traffic,
                policy_factory("nested"),
                [model(prefill_tokens_per_s=20_000.0, chunk_tokens=chunk)] * 3,
                Setting(routers=3, stream=stream, replace_after=7),
            )
            assert len(outcome.ttft_s) == len(traffic) == sum(outcome.requests)
            assert min(outcome.ttft_s) > 0.0
    assert Counter(one.output_tokens for one in traffic.requests) == {150: len(traffic)}
