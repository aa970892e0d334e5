"""The figures of ``benchmarks.outage`` say what they claim, on calls that are written down."""

from __future__ import annotations

import math

import pytest

from benchmarks.outage_figures import (
    Attempt,
    Call,
    Outage,
    Phase,
    Record,
    avoided_after_s,
    half_share_after_s,
    may_have_reached_dying,
    percentile,
    traffic_after_s,
)
from benchmarks.outage_report import summary, tables

OUTAGE = Outage(fault="killed", endpoint=1, began=10.0, ended=20.0)


def call(due: float, *, ended: float | None = None, error: str = "", number: int = 0) -> Call:
    ended = due + 0.1 if ended is None else ended
    return Call(number=number, due=due, made=due, ended=ended, error=error)


def attempt(
    began: float, *, endpoint: int = 1, ended: float | None = None, error: str = "", number: int = 0
) -> Attempt:
    ended = began + 0.1 if ended is None else ended
    return Attempt(call=number, endpoint=endpoint, began=began, ended=ended, error=error)


@pytest.mark.parametrize(
    ("one", "reached"),
    [
        (attempt(12.0, error="status 500"), True),
        (attempt(9.9, ended=10.1, error="RemoteProtocolError"), True),  # killed on the way
        (attempt(12.0, endpoint=2, error="status 500"), False),
        (attempt(9.0, error="status 500"), False),
        (attempt(20.1, error="status 500"), False),
        (attempt(12.0, error="ConnectError"), False),
        (attempt(12.0, error="ConnectTimeout"), False),
        (attempt(12.0, error="ReadTimeout"), True),
    ],
)
def test_a_call_is_excused_by_what_was_sent_to_an_endpoint_while_it_failed(
    one: Attempt, *, reached: bool
) -> None:
    failed = call(one.began, ended=one.ended, error="APIConnectionError")
    fine = attempt(one.began, endpoint=0)
    assert may_have_reached_dying(failed, [fine, one], [OUTAGE]) is reached


def test_an_answer_whose_body_broke_off_when_the_endpoint_was_killed_excuses_its_call() -> None:
    headers_came = attempt(9.0, ended=9.5)
    assert may_have_reached_dying(call(9.0, ended=10.1, error="E"), [headers_came], [OUTAGE])
    assert not may_have_reached_dying(call(9.0, ended=9.9, error="E"), [headers_came], [OUTAGE])


def test_an_endpoint_is_avoided_from_its_last_attempt_that_is_no_probe() -> None:
    before = [9.0, 9.5]
    assert avoided_after_s([*before, 10.2, 10.5], OUTAGE) == pytest.approx(0.5)
    assert avoided_after_s([*before, 10.2, 13.0, 16.0], OUTAGE) == pytest.approx(0.2)  # two probes
    assert avoided_after_s([*before, 10.2, 13.0, 13.1], OUTAGE) == pytest.approx(3.1)  # a burst
    assert avoided_after_s([*before, 20.5], OUTAGE) == 0.0
    assert avoided_after_s([10.0 + 0.5 * step for step in range(20)], OUTAGE) is None


def test_traffic_returns_with_the_first_answer_after_the_fault() -> None:
    assert traffic_after_s([9.0, 19.0, 23.0, 24.0], OUTAGE) == pytest.approx(3.0)
    assert traffic_after_s([9.0], OUTAGE) is None


def test_half_of_the_traffic_is_back_when_two_seconds_bring_half_of_it() -> None:
    begins = [21.0, 23.5, 24.0, 24.2, 24.4, 24.6, 24.8, 25.0]
    assert half_share_after_s(begins, OUTAGE, 4.0, 30.0) == pytest.approx(3.5)  # 4 in 2 s
    assert half_share_after_s(begins, OUTAGE, 8.0, 30.0) is None
    assert half_share_after_s(begins, OUTAGE, 4.0, 25.4) is None  # too near to the end to say


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50.0, 99.0)
    assert percentile([3.0], 0.99) == 3.0
    assert math.isnan(percentile([], 0.5))


def record() -> Record:
    """A call while all was well, and three in the outage: one retried, two failed."""
    return Record(
        calls=[
            call(1.0, number=1),
            call(11.0, number=2, ended=13.0),
            call(12.0, number=3, error="InternalServerError"),
            call(12.5, number=4, error="APIConnectionError"),
        ],
        attempts=[
            attempt(1.0, number=1),
            attempt(11.0, number=2, error="ConnectError"),
            attempt(11.1, number=2, endpoint=0),
            attempt(12.0, number=3, error="status 500"),
            attempt(12.5, number=4, error="ConnectError"),
        ],
        outages=[OUTAGE],
        phases=[
            Phase(name="well", began=0.0, ended=10.0),
            Phase(name="killed", began=10.0, ended=20.0),
        ],
        versions={},
    )


def test_the_summary_tells_failures_that_have_an_excuse_from_those_that_have_none() -> None:
    figures = summary(record())
    killed = figures["phases"]["killed"]
    assert (killed["calls"], killed["failed"]) == (3, 2)
    assert (killed["failed_sent_to_failing"], killed["failed_never_sent_to_failing"]) == (1, 1)
    assert figures["failed_never_sent_to_failing"] == 1
    assert killed["attempts_per_call"] == pytest.approx(4 / 3)
    assert killed["added_p99_ms"] == pytest.approx(1900.0)  # 2 s against 0.1 s
    assert figures["outages"]["killed"]["attempts_while_failing"] == 3


def test_the_tables_have_every_client_and_name_what_could_not_be_measured() -> None:
    text = tables({"one": summary(record()), "other": {"error": "no network"}})
    assert "| killed | one | 3 | 2 | 1 |" in text
    assert "other: no network" in text
    assert tables({"other": {"error": "no network"}}).endswith("other: no network")
