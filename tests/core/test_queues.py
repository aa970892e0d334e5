from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from prefixroute.core.crowding import keeps, note_crowd, uniform
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load import EndpointState, EngineLoad, Loan
from prefixroute.core.prompt import Prompt
from prefixroute.core.queues import Queues
from prefixroute.core.ratios import Ratios

STREAMED = Prompt(stream=True, size=8000, tokens_per_unit=1.0)
WHOLE = Prompt(stream=False, size=8000, tokens_per_unit=1.0)


class Bench:
    """Queues with some endpoints, and requests sent by hand."""

    def __init__(self, count: int = 2, *, foreign: bool = True, now: float = 0.0) -> None:
        self.queues = Queues(half_life_s=600.0, foreign=foreign)
        self.states = [EndpointState(Endpoint(f"http://gpu-{number}")) for number in range(count)]
        self.queues.set_members(self.states)
        self.queues.advance(now)
        self.serial = 0

    def send(self, at: int, tokens: float, now: float, prompt: Prompt = STREAMED) -> Loan:
        self.serial += 1
        loan = Loan(self.serial, 0, self.states[at], prompt)
        loan.tokens = loan.uncached_tokens = tokens
        self.queues.advance(now)
        self.states[at].in_flight += 1
        self.queues.sent(loan, now)
        return loan

    def first(self, loan: Loan, now: float, cached: int | None = 0) -> None:
        loan.first_at, loan.cached_tokens = now, cached
        self.queues.answered(loan)
        self.queues.learn(loan)

    def own_s(self, at: int, now: float) -> float:
        return self.queues.own_s(self.states[at], now)

    def foreign_s(self, at: int, now: float) -> float:
        return self.queues.foreign_s(self.states[at], now)

    def wait_over_service(self, at: int, now: float) -> float | None:
        return self.queues.outlook(self.states[at], now, self.queues.scale())[2]

    def pressure(self, at: int) -> float:
        return self.queues.outlook(self.states[at], 0.0, self.queues.scale())[3]

    def report(self, at: int, now: float, **counts: int) -> None:
        self.queues.report(self.states[at], EngineLoad(**counts), now)


# -- own requests --------------------------------------------------------------


def test_a_streamed_request_is_in_the_way_until_its_first_token() -> None:
    bench = Bench()
    loan = bench.send(0, 8000.0, 0.0)
    assert bench.own_s(0, 0.0) == 1.0
    assert bench.own_s(0, 0.25) == pytest.approx(0.75)  # it is being computed
    assert bench.own_s(1, 0.0) == 0.0
    bench.first(loan, 1.0)
    assert bench.own_s(0, 1.0) == 0.0


def test_an_overdue_request_is_in_the_way_again() -> None:
    bench = Bench()
    bench.send(0, 8000.0, 0.0)
    waits = [bench.own_s(0, seconds / 4) for seconds in range(40)]
    assert min(waits) == 0.0
    assert waits[-1] == 1.0  # the longer it is overdue, the less is known
    assert all(0.0 <= wait <= 1.0 for wait in waits)


def test_work_of_a_call_that_is_not_streamed_drains_at_the_prefill_rate() -> None:
    bench = Bench()
    bench.send(0, 8000.0, 0.0, WHOLE)
    assert bench.own_s(0, 0.25) == pytest.approx(0.75)
    bench.send(0, 8000.0, 0.5, WHOLE)
    assert bench.own_s(0, 0.5) == pytest.approx(1.5)
    assert bench.own_s(0, 10.0) == 0.0


def test_an_answer_is_taken_out_of_the_queue_once() -> None:
    bench = Bench()
    first, second = bench.send(0, 1000.0, 0.0), bench.send(0, 3000.0, 0.0)
    for _ in range(3):
        bench.queues.answered(first)
    assert bench.states[0].queued == 3000.0
    bench.queues.answered(second)
    assert bench.states[0].queued == 0.0
    silent = bench.send(0, 500.0, 0.0, WHOLE)
    for _ in range(2):
        bench.queues.answered(silent)
    assert bench.states[0].backlog == 0.0


def test_sums_of_many_fractions_come_back_to_0() -> None:
    bench = Bench()
    loans = [bench.send(0, 0.1 * number, 0.0) for number in range(1, 50)]
    for loan in loans[::2] + loans[1::2]:
        bench.queues.answered(loan)
        assert bench.states[0].queued >= 0.0
    assert bench.states[0].queued == 0.0


# -- the prefill rate ----------------------------------------------------------


def test_the_rate_is_that_of_the_fastest_reply() -> None:
    bench = Bench()
    assert bench.queues.rate == 8000.0
    for took in (4.0, 1.0, 2.0):
        bench.first(bench.send(0, 4000.0, 0.0), took)
    assert bench.queues.rate == pytest.approx(4000.0, rel=0.01)


def test_one_unlucky_reply_does_not_make_an_endpoint_slow() -> None:
    """Else it would get no further requests to show that it is not."""
    bench = Bench()
    bench.first(bench.send(0, 8000.0, 0.0), 1.0)
    bench.first(bench.send(1, 1.0, 0.0), 0.05)
    bench.first(bench.send(1, 4000.0, 0.0), 30.0)
    assert bench.queues.rate == pytest.approx(8000.0, rel=0.01)
    bench.send(0, 8000.0, 100.0)
    bench.send(1, 8000.0, 100.0)
    assert bench.own_s(0, 100.0) == bench.own_s(1, 100.0)


def test_engines_that_got_slower_are_followed_slowly() -> None:
    bench = Bench()
    bench.first(bench.send(0, 8000.0, 0.0), 1.0)
    for _ in range(1400):
        bench.first(bench.send(0, 8000.0, 0.0), 8.0)
    assert bench.queues.rate == pytest.approx(4000.0, rel=0.05)


def test_without_reports_of_cached_tokens_the_rate_is_a_quantile() -> None:
    bench = Bench()
    for number in range(400):
        sent = 10.0 * number
        took = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.01)[number % 10]
        bench.first(bench.send(0, 8000.0, sent), sent + took, cached=None)
    assert 5000.0 < bench.queues.rate < 13_000.0


def test_replies_that_take_no_time_teach_no_rate() -> None:
    bench = Bench()
    bench.first(bench.send(0, 4000.0, 5.0), 5.0)
    bench.first(bench.send(0, 4000.0, 5.0), 4.0)
    assert bench.queues.rate == 8000.0
    assert bench.states[0].rate == 0.0


# -- others' requests ----------------------------------------------------------


def test_waits_that_own_requests_do_not_explain_are_others() -> None:
    bench = Bench()
    bench.first(bench.send(0, 8000.0, 0.0), 1.0)
    assert bench.queues.waits.mean_s == 0.0
    for start in range(10, 100, 10):
        bench.first(bench.send(0, 8000.0, float(start)), start + 3.0)
    assert bench.queues.waits.mean_s == pytest.approx(2.0, rel=0.2)
    assert bench.foreign_s(1, 200.0) > 0.5
    over = bench.wait_over_service(0, 200.0)
    assert over is not None
    assert over > 1.0


def test_an_own_queue_is_not_taken_for_others() -> None:
    bench = Bench()
    bench.first(bench.send(0, 8000.0, 0.0), 1.0)
    loans = [bench.send(0, 8000.0, 10.0) for _ in range(4)]
    for number, loan in enumerate(loans, 1):
        bench.first(loan, 10.0 + number)
    assert bench.queues.waits.mean_s == pytest.approx(0.0, abs=0.01)


def test_a_wait_just_felt_relaxes_to_the_mean() -> None:
    bench = Bench()
    for start in range(0, 200, 10):
        took = {0: 1.0, 190: 9.0}.get(start, 2.0)
        bench.first(bench.send(0, 8000.0, float(start)), start + took)
    felt = bench.foreign_s(0, 199.0)
    later = [bench.foreign_s(0, 199.0 + seconds) for seconds in (0.0, 0.5, 1.0, 60.0)]
    assert felt > 4.0
    assert later == sorted(later, reverse=True)
    assert later[-1] == pytest.approx(bench.queues.waits.mean_s, rel=0.01)


def test_an_overdue_request_means_that_others_queue_there() -> None:
    bench = Bench()
    for start in range(0, 100, 10):
        bench.first(bench.send(0, 8000.0, float(start)), start + (2.0 if start else 1.0))
    bench.send(1, 8000.0, 100.0)
    assert bench.foreign_s(1, 101.0) < 2.0
    assert bench.foreign_s(1, 130.0) > 10.0
    assert bench.foreign_s(0, 130.0) < 2.0


def test_an_endpoint_that_keeps_one_waiting_again_and_again_is_known_for_it() -> None:
    bench, rng = Bench(4), random.Random(0)
    for start in range(0, 1200, 10):
        for at in range(4):
            wait = rng.expovariate(1.0) * (3.0 if at == 0 else 0.5)
            bench.first(bench.send(at, 800.0, float(start)), start + 0.1 + wait)
    waits = [bench.queues.waits.at(state) for state in bench.states]
    assert waits[0] > 2.0 * max(waits[1:])
    assert bench.foreign_s(0, 5000.0) > 2.0 * bench.foreign_s(1, 5000.0)


def test_chance_is_not_taken_for_an_endpoints_habit() -> None:
    different = 0
    for seed in range(20):
        bench, rng = Bench(8), random.Random(seed)
        for start in range(0, 300, 10):
            at = rng.randrange(8)
            bench.first(bench.send(at, 800.0, float(start)), start + 0.1 + rng.expovariate(1.0))
        factors = [state.wait_factor for state in bench.states]
        different += max(factors) > 1.25 * min(factors)
    assert different <= 3


@pytest.mark.parametrize("count", [2, 64])
def test_a_lone_conversation_does_not_make_the_others_look_empty(count: int) -> None:
    """All waits were met at one endpoint; they say little of the queues elsewhere."""
    bench = Bench(count)
    for start in range(0, 300, 10):
        bench.first(bench.send(0, 400.0, float(start)), start + 0.3)
    mean = bench.queues.waits.mean_s
    assert bench.foreign_s(0, 400.0) == pytest.approx(mean, rel=0.1)
    assert bench.foreign_s(1, 400.0) == pytest.approx(mean, rel=0.1)


def test_a_late_reply_of_who_left_does_no_harm() -> None:
    bench = Bench(2)
    late = [bench.send(at, 800.0, 0.0) for at in (0, 1)]
    bench.queues.set_members([EndpointState(Endpoint("http://new"))])
    for loan in late:
        bench.first(loan, 1.0)


@pytest.mark.parametrize("half_lives", [0, 20, 300])
def test_pressure_is_own_requests_a_second(half_lives: int) -> None:
    began = half_lives * 600.0
    bench = Bench(2)
    bench.queues.advance(began)
    for second in range(0, 4000, 2):  # one in two seconds, each of a tenth of a second
        loan = bench.send(0, 800.0, began + second)
        bench.queues.answered(loan)
    pressure = bench.pressure(0)
    assert pressure == pytest.approx(0.5 / (1 - 0.05), rel=0.1)
    assert bench.pressure(1) == 0.0


def test_pressure_is_finite_where_estimates_say_overload() -> None:
    bench = Bench(1)
    for _ in range(500):
        bench.queues.answered(bench.send(0, 80_000.0, 0.0))
    assert 0.0 < bench.pressure(0) < 1000.0


def test_a_router_that_runs_for_years_neither_overflows_nor_forgets() -> None:
    bench = Bench()
    for week in range(200):
        now = week * 7 * 86_400.0
        for minute in range(20):
            bench.first(bench.send(0, 8000.0, now + minute * 60), now + minute * 60 + 2.0)
        assert math.isfinite(bench.foreign_s(0, now + 3600))
        assert 0.0 < bench.states[0].work < math.inf
    bench.queues.advance(1e15)
    assert math.isfinite(bench.foreign_s(0, 1e15))


def test_alone_in_front_of_the_endpoints_nothing_is_guessed() -> None:
    bench = Bench(foreign=False)
    for start in range(0, 100, 10):
        bench.first(bench.send(0, 8000.0, float(start)), start + 5.0)
    assert bench.foreign_s(0, 100.0) == bench.foreign_s(1, 100.0) == 0.0
    assert bench.wait_over_service(0, 100.0) == 0.0
    bench.report(0, 100.0, waiting=4)  # but what an engine reports is no guess
    assert bench.foreign_s(0, 100.0) > 0.0


# -- reports -------------------------------------------------------------------


def test_a_report_counts_whom_own_requests_do_not_explain() -> None:
    bench = Bench()
    bench.send(0, 4000.0, 0.0)
    bench.report(0, 0.0, running=3, waiting=5)
    assert bench.foreign_s(0, 0.0) == pytest.approx(4 * 4000.0 / 8000.0)
    assert bench.foreign_s(0, 0.5) == pytest.approx(1.5)  # they are worked off meanwhile
    assert bench.states[0].foreign_requests == 7
    bench.report(0, 1.0, running=0, waiting=0)
    assert (bench.foreign_s(0, 1.0), bench.states[0].foreign_requests) == (0.0, 0)


def test_a_report_goes_stale_after_three_of_its_intervals() -> None:
    bench = Bench()
    for now in range(60):
        bench.report(0, float(now), waiting=100)
    state = bench.states[0]
    assert bench.queues.fresh(state, 59.0 + 2.9)
    assert not bench.queues.fresh(state, 59.0 + 3.1)
    for now in range(60, 300, 10):
        bench.report(0, float(now), waiting=100)
    assert bench.queues.fresh(state, 290.0 + 29.0)
    assert not bench.queues.fresh(state, 290.0 + 31.0)


def test_a_clock_that_steps_back_changes_no_weight() -> None:
    bench = Bench()
    bench.queues.answered(bench.send(0, 8000.0, 6000.0))
    before = bench.pressure(0)
    bench.queues.advance(-50_000.0)
    assert bench.pressure(0) == before


def test_who_never_reported_is_not_fresh() -> None:
    bench = Bench()
    assert not bench.queues.fresh(bench.states[0], 0.0)
    bench.report(0, 0.0)
    assert bench.queues.fresh(bench.states[0], 0.0)
    assert not bench.queues.fresh(bench.states[1], 0.0)


@pytest.mark.parametrize("step", [0.0, -5.0, -1e9])
def test_reports_out_of_order_do_no_harm(step: float) -> None:
    bench = Bench()
    bench.report(0, 10.0, waiting=3)
    bench.report(0, 10.0 + step, waiting=2)
    assert 0.0 <= bench.foreign_s(0, 10.0) < math.inf
    assert bench.states[0].interval_s == 1.0


# -- crowding ------------------------------------------------------------------


def crowded(*means: float, seconds: int = 4000, weights: tuple[float, ...] = ()) -> list[float]:
    bench = Bench(len(means))
    if weights:
        bench.states = [
            EndpointState(Endpoint(f"http://gpu-{at}", weight=w)) for at, w in enumerate(weights)
        ]
    for _ in range(seconds):
        for state, mean in zip(bench.states, means, strict=True):
            note_crowd(state, EngineLoad(running=round(mean)), 1.0)
    return keeps(bench.states) or []


def test_who_is_crowded_for_minutes_keeps_fewer_of_its_keys() -> None:
    keep = crowded(20, 10, 10, 10)
    assert keep[0] == pytest.approx((12.5 / 20) ** 2, rel=0.02)
    assert keep[1:] == [1.0] * 3
    assert crowded(20, 10, 10, 10, seconds=3)[0] > 0.98  # the first reports move nothing
    assert crowded(10, 10, 10, 10) == [1.0] * 4
    assert crowded(0, 0) == []


def test_crowding_is_relative_to_weights() -> None:
    assert crowded(20, 10, weights=(2.0, 1.0)) == [1.0, 1.0]


def test_without_reports_of_all_nobody_is_crowded() -> None:
    bench = Bench(3)
    note_crowd(bench.states[0], EngineLoad(running=50), 1.0)
    assert keeps(bench.states) is None


def test_all_routers_thin_out_the_same_keys() -> None:
    values = [uniform(key * 0x9E37_79B9_7F4A_7C15, 12345) for key in range(4000)]
    assert values == [uniform(key * 0x9E37_79B9_7F4A_7C15, 12345) for key in range(4000)]
    assert 0.0 <= min(values) < 0.01
    assert 0.99 < max(values) < 1.0
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)


# -- tokens in a byte ----------------------------------------------------------


def prompt(size: int, model: str | None = "m", per_unit: float = 0.25) -> Prompt:
    return Prompt(size=size, tokens_per_unit=per_unit, model=model)


def test_a_models_ratio_is_learned_from_what_replies_count() -> None:
    ratios = Ratios()
    assert ratios.of(prompt(1000)) == 0.25
    for _ in range(200):
        ratios.learn(prompt(8000), 4000)
    assert ratios.of(prompt(10)) == pytest.approx(0.5, rel=0.05)
    assert ratios.of(prompt(10, "other")) == 0.25
    assert ratios.of(prompt(10, None)) == 0.25


def test_one_reply_of_a_short_prompt_teaches_little() -> None:
    ratios = Ratios()
    ratios.learn(prompt(4), 40)  # the chat template counts, too
    assert ratios.of(prompt(10)) == pytest.approx(0.25, rel=0.05)


def test_what_cannot_be_teaches_nothing() -> None:
    ratios = Ratios()
    ratios.learn(prompt(0), 40)
    ratios.learn(prompt(100), 0)
    ratios.learn(prompt(100), -3)
    ratios.learn(prompt(100, per_unit=1.0), 40)
    assert ratios.of(prompt(10)) == 0.25
    assert ratios.of(prompt(10, per_unit=1.0)) == 1.0


def test_a_batch_teaches_nothing() -> None:
    ratios = Ratios()
    batch = replace(prompt(80_000), batch=True)
    for _ in range(50):
        ratios.learn(batch, 200)  # of a hundred prompts, as llama.cpp counts them: of the first
    assert ratios.of(prompt(10)) == 0.25


def test_models_are_bounded() -> None:
    ratios = Ratios()
    for number in range(5000):
        ratios.learn(prompt(100, f"model {number}"), 30)
    assert len(ratios._sums) <= 256
