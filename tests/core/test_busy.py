from __future__ import annotations

import math

import pytest

from prefixroute.core.busy import Busy
from prefixroute.core.decision import Reason
from prefixroute.core.load import EngineLoad

from .support import FakeClock, chat, make_router, serve, text, urls


def test_half_busy_until_reports_tell() -> None:
    assert Busy().lengthening == pytest.approx(2.0)


@pytest.mark.parametrize("endpoints", [1, 8, 64])
@pytest.mark.parametrize("every_s", [0.5, 1.0, 5.0])
def test_the_share_is_that_of_the_reports_however_many_report(
    endpoints: int, every_s: float
) -> None:
    busy = Busy()
    for number in range(int(600 * endpoints / every_s)):
        busy.note(waiting=number % 5 == 0, since_s=every_s, endpoints=endpoints)
    assert busy.lengthening == pytest.approx(1.25, rel=0.15)


def test_minutes_are_remembered_not_hours() -> None:
    busy = Busy()
    for _ in range(3600):
        busy.note(waiting=True, since_s=1.0, endpoints=1)
    for _ in range(240):
        busy.note(waiting=False, since_s=1.0, endpoints=1)
    assert busy.lengthening < 1.05


def test_an_overload_has_a_price_too() -> None:
    busy = Busy()
    for _ in range(1000):
        busy.note(waiting=True, since_s=math.inf, endpoints=1)
    assert busy.lengthening == pytest.approx(20.0)


@pytest.mark.parametrize(("crowded", "stays"), [(False, False), (True, True)])
def test_a_queue_is_left_the_less_the_busier_all_are(crowded: bool, stays: bool) -> None:
    """The same queue at home; other routers' traffic, so that the copy would be lost on them."""
    clock = FakeClock()
    router = make_router(4, clock=clock)
    body = chat(text("prompt", 40_000), stream=True)
    home = serve(router, body, clock=clock)
    for _ in range(300):
        clock.tick(1.0)
        load = EngineLoad(running=1, waiting=2 * crowded)
        router.report_load(dict.fromkeys(urls(4), load))
    clock.tick(1.0)
    router.report_load({name: EngineLoad(waiting=9 * (name == home)) for name in urls(4)})
    decision = router.route(body)
    assert (decision.endpoint.id == home) is stays
    assert (decision.reason is Reason.HOME) is stays
