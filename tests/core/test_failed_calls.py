"""A caller's own retry goes elsewhere, if there is an elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from prefixroute import Endpoint, Failover, Fixed, HealthPolicy, Reason
from prefixroute.core.failed_calls import FailedCalls
from prefixroute.core.prompt import Prompt
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Failure
from tests.core.support import FakeClock, make_router, text, urls
from tests.core.test_exchange import Driver, core_of, ends, fails, status

BODY = text("a", 4000)


class TestWhatIsRemembered:
    def test_all_who_failed_one_request_and_no_other(self) -> None:
        failed = FailedCalls()
        failed.note(1, "a", 0.0)
        failed.note(1, "b", 1.0)
        failed.note(2, "c", 1.0)
        assert failed.of(1, 2.0) == {"a", "b"}
        assert failed.of(2, 2.0) == {"c"}
        assert failed.of(3, 2.0) == frozenset()

    def test_for_as_long_as_an_sdk_may_wait_and_not_much_longer(self) -> None:
        failed = FailedCalls()
        failed.note(1, "a", 0.0)
        assert failed.of(1, 60.0) == {"a"}
        assert failed.of(1, 120.0) == frozenset()
        failed.note(1, "b", 120.0)
        assert failed.of(1, 120.0) == {"b"}, "what is too old does not come back"

    def test_it_is_bounded(self) -> None:
        failed = FailedCalls()
        for request in range(100_000):
            failed.note(request, "a", 0.0)
        kept = sum(bool(failed.of(request, 0.0)) for request in range(100_000))
        assert 500 <= kept <= 1024


class TestWhereARetryGoes:
    def test_elsewhere_in_the_order_of_candidates(self) -> None:
        core = make_router(4, placement=Fixed())
        prompt = core.read(BODY)
        order = [endpoint.id for endpoint in core.route(prompt).candidates]
        avoid: set[str] = set()
        for expected in order:
            with core.lease(prompt, avoid=frozenset(avoid)) as lease:
                assert lease.endpoint.id == expected
            avoid.add(expected)
        with core.lease(prompt, avoid=frozenset(avoid)) as lease:
            assert lease.endpoint.id == order[0], "all have failed it: as if none had"

    def test_into_a_higher_tier(self) -> None:
        near, far = urls(2)
        core = make_router([Endpoint(near), Endpoint(far, tier=1)])
        with core.lease(core.read(BODY), avoid=frozenset({core.endpoints[0].id})) as lease:
            assert lease.endpoint.url == far

    @pytest.mark.parametrize("other", ["ejected", "cooling", "draining", "full"])
    def test_back_if_the_others_are_unwell_or_full(self, other: str) -> None:
        core = make_router([Endpoint(url, max_in_flight=1) for url in urls(2)])
        failed, rest = core.endpoints
        held = None
        match other:
            case "ejected":
                core.eject(rest)
            case "cooling":
                with core.lease(Prompt(), exclude=frozenset({failed.id})) as lease:
                    lease.failed(status=503)
            case "draining":
                core.start_drain(rest)
            case "full":
                held = core.lease(Prompt(), exclude=frozenset({failed.id}))
        with core.lease(core.read(BODY), avoid=frozenset({failed.id})) as lease:
            assert lease.endpoint is failed
            assert lease.decision.reason is not Reason.PANIC
        if held is not None:
            held.release()

    def test_to_whoever_holds_what_it_continues(self) -> None:
        core = make_router(4)
        with core.acquire(BODY) as lease:
            lease.answered("resp_1")
        pinned = core.read({"input": "x", "previous_response_id": "resp_1"})
        with core.lease(pinned, avoid=frozenset({lease.endpoint.id})) as again:
            assert again.endpoint is lease.endpoint
            assert again.decision.reason is Reason.PINNED


def retried(core: Any, reply: Any, **options: Any) -> list[str]:
    """Where the attempts of an SDK's retry go."""
    driver = Driver(core, [reply], {"identity": lambda: 7, "retry": True, **options})
    ends(driver.run())
    return driver.sent


class TestWhatAnExchangeTells:
    @pytest.mark.parametrize(
        "reply",
        [status(500), status(429), status(408), status(409), status(501)],
        ids=["500", "429", "408", "409", "501"],
    )
    def test_an_answer_after_which_sdks_call_again(self, reply: Any) -> None:
        core = core_of(2, max_attempts=1, statuses=())
        driver = Driver(core, [reply], {"identity": lambda: 7})
        ends(driver.run())
        assert retried(core, status(200)) != driver.sent

    @pytest.mark.parametrize("code", [200, 400, 404, 422])
    def test_no_answer_after_which_they_do_not(self, code: int) -> None:
        core = core_of(2)
        driver = Driver(core, [status(code)], {"identity": lambda: 7})
        ends(driver.run())
        assert core.failed_lately(7) == frozenset()

    @pytest.mark.parametrize("failure", [Failure.SENT, Failure.NOT_CONNECTED])
    def test_a_failure(self, failure: Failure) -> None:
        core = core_of(2, max_attempts=1)
        driver = Driver(core, [fails(failure)], {"identity": lambda: 7})
        with pytest.raises(OSError, match=failure.value):
            driver.run()
        assert retried(core, status(200)) != driver.sent

    def test_nothing_that_says_nothing_of_the_endpoint(self) -> None:
        core = core_of(2)
        driver = Driver(core, [fails(Failure.NOT_OURS)], {"identity": lambda: 7})
        with pytest.raises(OSError, match="not_ours"):
            driver.run()
        assert core.failed_lately(7) == frozenset()

    def test_every_retry_goes_to_one_more(self) -> None:
        core = core_of(4, max_attempts=1, statuses=())
        sent = Driver(core, [status(500)], {"identity": lambda: 7}).run().lease
        assert sent is not None
        sent.release()
        went = [sent.endpoint.id, *retried(core, status(500)), *retried(core, status(500))]
        assert len(set(went)) == 3

    def test_only_a_retry_looks(self) -> None:
        failover, clock = Failover(statuses=()), FakeClock()
        core = RouterCore(
            urls(4), placement=Fixed(), failover=failover, clock=clock, wall_clock=clock
        )
        first = Driver(core, [status(500)], {"identity": lambda: 7}, core.read(BODY))
        ends(first.run())
        again = Driver(core, [status(500)], {"identity": lambda: 7}, core.read(BODY))
        ends(again.run())
        assert again.sent == first.sent, "the same prompt again is a request of its own"

    def test_a_request_without_a_digest(self) -> None:
        core = core_of(2, statuses=())
        ends(Driver(core, [status(500)]).run())
        assert retried(core, status(500), identity=lambda: None)

    def test_one_attempt(self) -> None:
        assert len(retried(core_of(3), status(503))) == 1


class TestARequestThatFailsEverywhere:
    def ask(self, core: RouterCore, number: int, first: Any, retried: Any) -> None:
        options = {"identity": lambda: number, "digest": lambda: 7}
        ends(Driver(core, [first], options).run())
        ends(Driver(core, [retried], {**options, "retry": True}).run())

    def test_counts_once(self) -> None:
        core = core_of(2, statuses=())
        for number in range(4):
            self.ask(core, number, status(500), status(500))
        assert core.stats().failures == 1

    def test_one_that_is_served_elsewhere_is_none(self) -> None:
        core = core_of(2, statuses=())
        for number in range(4):
            self.ask(core, number, status(500), status(200))
        assert core.stats().failures == 4

    def test_the_head_of_a_stream_says_little(self) -> None:
        core = core_of(2, statuses=())
        prompt = core.read({"model": "m", "prompt": "x", "stream": True})
        for reply in (500, 200, 500):
            ends(Driver(core, [status(reply)], {"digest": lambda: 7}, prompt).run())
        assert core.stats().failures == 1

    @pytest.mark.parametrize("code", [400, 404, 422])
    def test_one_that_is_refused_elsewhere_may_be(self, code: int) -> None:
        core = core_of(2, statuses=())
        for number in range(4):
            self.ask(core, number, status(500), status(code))
        assert core.stats().failures == 1

    def test_the_digest_is_asked_for_only_where_one_is_suspected(self) -> None:
        clock, asked = FakeClock(), []

        def digest() -> int:
            asked.append(clock.now)
            return 7

        core = core_of(2, clock=clock, statuses=())
        for reply, passed_s in ((200, 1.0), (500, 1.0), (200, 120.0), (200, 0.0)):
            ends(Driver(core, [status(reply)], {"digest": digest}).run())
            clock.tick(passed_s)
        assert len(asked) == 2, "of the 500, and of the 200 that came soon after it"


def test_it_is_forgotten_in_time() -> None:
    clock = FakeClock()
    core = make_router(2, clock=clock, health=HealthPolicy(failures=9))
    core.note_failed(7, "a")
    clock.tick(60.0)
    assert core.failed_lately(7) == {"a"}
    clock.tick(60.0)
    assert core.failed_lately(7) == frozenset()


def test_a_finalizer_inside_the_lock_takes_no_lock() -> None:
    core = make_router(2)
    with core._locked():
        core.note_failed(7, "a")
    assert core.failed_lately(7) == frozenset()
