"""A share of the conversations is placed by a baseline; both groups are counted, side by side."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random
from typing import Any

import pytest

from prefixroute.core.certainty import Gain, difference, jackknife, student
from prefixroute.core.decision import Reason
from prefixroute.core.fixed import Fixed, LeastLoaded, RoundRobin
from prefixroute.core.holdout import conversation_of
from prefixroute.core.nested import Nested
from prefixroute.core.prompt import Prompt
from prefixroute.core.request import read_prompt
from prefixroute.core.router import RouterCore
from prefixroute.errors import ConfigurationError
from tests.core.support import FakeClock, blocks, chat, conversation, text, urls

HOT = text("everybody's system prompt", 5000)


def router_with(holdout: float = 0.5, **given: Any) -> RouterCore:
    settings = {"clock": FakeClock(), "wall_clock": lambda: 0.0, "seed": 0, **given}
    return RouterCore(urls(4), holdout=holdout, **settings)


def is_out(router: RouterCore, body: Any) -> bool:
    aside = router.read(body).aside
    assert aside is not None
    return aside.held_out


class TestWhoIsHeldOut:
    def test_a_conversation_stays_in_its_group_turn_after_turn(self) -> None:
        router = router_with()
        found: list[bool] = []
        for number in range(60):
            turns = conversation(number, 5, system=HOT)
            groups = {is_out(router, body) for body in turns}
            assert len(groups) == 1
            found += groups
        assert 15 < sum(found) < 45  # a hot system prompt puts nobody's group in danger

    def test_every_process_holds_out_the_same(self) -> None:
        bodies = [chat(text(number, 300), system=HOT) for number in range(50)]
        one, other = router_with(seed=None), router_with(seed=None)
        assert [is_out(one, b) for b in bodies] == [is_out(other, b) for b in bodies]

    @pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
    def test_the_share_is_met(self, share: float) -> None:
        router = router_with(share)
        out = sum(is_out(router, chat(text(n, 80), system=HOT)) for n in range(2000))
        assert abs(out / 2000 - share) < 0.03

    def test_long_first_questions_that_start_alike_are_told_apart(self) -> None:
        router = router_with()
        document = text("a document", 20_000)
        groups = {is_out(router, chat(document + text(n, 50))) for n in range(20)}
        assert groups == {True, False}

    def test_a_greeting_of_the_assistant_is_no_conversation(self) -> None:
        def greeted(number: int, *more: str) -> dict[str, Any]:
            messages = [
                {"role": "system", "content": HOT},
                {"role": "assistant", "content": "Hello! How can I help?"},
                {"role": "user", "content": text(number, 100)},
            ]
            for at, said in enumerate(more):
                messages.append({"role": ("assistant", "user")[at % 2], "content": said})
            return {"model": "m", "messages": messages}

        router = router_with()
        assert len({is_out(router, greeted(n)) for n in range(20)}) == 2
        for number in range(20):
            later = greeted(number, "An answer.", "And then?", "Another.", "So?")
            assert is_out(router, later) == is_out(router, greeted(number))

    def test_a_session_stays_whatever_its_text(self) -> None:
        router = router_with()
        for number in range(20):
            first, second = (
                router.read(chat(text((number, turn), 200)), session=f"s{number}").aside
                for turn in range(2)
            )
            assert first == second
        assert len({router.read({"prompt": "x"}, session=f"s{n}").aside for n in range(99)}) > 2

    def test_what_has_no_prompt_is_in_no_group(self) -> None:
        router = router_with(0.99)
        assert conversation_of(read_prompt({"model": "m"})) is None
        router.acquire({"model": "m"}).release()
        holdout = router.stats().holdout
        assert holdout is not None
        assert (holdout.routed.requests, holdout.held_out.requests) == (0, 0)

    def test_a_prompt_of_ones_own_is_its_own_conversation(self) -> None:
        router = router_with()
        assert len({is_out(router, blocks(1, number)) for number in range(20)}) == 2

    def test_a_window_placement_tells_conversations_apart_all_the_same(self) -> None:
        router = router_with(placement=Fixed(prefix_bytes=64))
        turns = [conversation(number, 3, system=HOT) for number in range(20)]
        groups = [{is_out(router, body) for body in bodies} for bodies in turns]
        assert all(len(group) == 1 for group in groups)
        assert set.union(*groups) == {True, False}

    def test_far_more_than_its_share_is_not_held_out(self) -> None:
        """Prompts that nothing tells apart must not all go to the baseline."""
        router = router_with(0.05)
        bodies = (chat(text(number, 200)) for number in range(1000))
        same = next(body for body in bodies if is_out(router, body))
        for _ in range(400):
            router.acquire(same).release()
        holdout = router.stats().holdout
        assert holdout is not None
        assert holdout.held_out.requests <= 0.1 * 400 + 35
        assert holdout.excess == 400 - holdout.held_out.requests


class TestPlacing:
    def test_the_baseline_places_its_group_alone(self) -> None:
        router = router_with()
        reasons: Counter[Reason] = Counter()
        for number in range(80):
            body = chat(text(number, 300))
            lease = router.acquire(body)
            assert (lease.decision.reason is Reason.BASELINE) == is_out(router, body)
            reasons[lease.decision.reason] += 1
            lease.release()
        assert len(reasons) > 1

    def test_round_robin_goes_round_for_those_held_out(self) -> None:
        router = router_with()
        out = [b for n in range(60) if is_out(router, b := chat(text(n, 300)))]
        went = []
        for body in out[:8]:
            with router.acquire(body) as lease:
                went.append(lease.endpoint.id)
        assert went[:4] == went[4:]
        assert len(set(went)) == 4

    def test_the_placement_learns_nothing_of_those_held_out(self) -> None:
        router = router_with()
        prompt = next(b for n in range(60) if is_out(router, b := chat(text(n, 300))))
        for _ in range(20):
            router.acquire(prompt).release()
        policy: Any = router._ledger.policy
        assert len(policy._routed._map) == 0

    def test_a_baseline_that_cuts_otherwise_gets_its_own_cut(self) -> None:
        router = router_with(holdout_placement=Fixed(prefix_bytes=4096))
        for number in range(40):
            body = chat(text(number, 300), system=HOT)
            lease = router.acquire(body)
            if is_out(router, body):
                assert lease.decision.depth == 0
            lease.failed(OSError())
            lease.release()

    def test_the_other_way_round(self) -> None:
        """A careful start: the old placement for most, the new one for a few."""
        router = router_with(0.3, placement=RoundRobin(), holdout_placement=Nested())
        homes: dict[int, set[str]] = {}
        for number in range(30):
            for body in conversation(number, 4):
                with router.acquire(body) as lease:
                    if is_out(router, body):
                        homes.setdefault(number, set()).add(lease.endpoint.id)
        assert len(homes) > 2
        assert all(len(went) == 1 for went in homes.values())

    def test_two_of_a_kind_share_the_endpoints_bits(self) -> None:
        router = router_with(holdout_placement=Nested(target=1.0))
        for change in range(100):
            made = router.add(f"http://other-{change}:8000/v1")
            router.eject(made)
            router.readmit(made)
            for number in range(6):
                with router.acquire(chat(text((change, number), 300))) as lease:
                    lease.usage(prompt_tokens=80, cached_tokens=0)
            router.remove(made)
        policy: Any = router._ledger.policy
        living = sum(state.bit for state in router._members.states)
        assert policy._routed._map._alive == policy._baseline._map._alive == living

    def test_explain_speaks_of_the_baseline(self) -> None:
        router = router_with(0.99)
        assert "baseline" in str(router.explain(chat(text(1, 300)))).lower()

    def test_the_fingerprint_tells(self) -> None:
        plain = RouterCore(urls(4), clock=FakeClock(), wall_clock=lambda: 0.0, seed=0)
        assert router_with(0.05).fingerprint == router_with(0.05).fingerprint
        prints = {
            plain.fingerprint,
            router_with(0.05).fingerprint,
            router_with(0.06).fingerprint,
            router_with(0.05, holdout_placement=LeastLoaded()).fingerprint,
        }
        assert len(prints) == 4

    def test_a_ring_that_is_another_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="virtual_nodes of the placement"):
            router_with(holdout_placement=Fixed(virtual_nodes=64))
        with pytest.raises(ConfigurationError, match="RoundRobin"):
            router_with(holdout_placement=RoundRobin)


def serve(router: RouterCore, clock: FakeClock, *, gain: float, conversations: int) -> None:
    """Let routed conversations find ``gain`` more of their tokens, and be answered sooner."""
    random = Random(7)
    for number in range(conversations):
        for body in conversation(number, 3):
            lease = router.acquire({**body, "stream": True})
            out = is_out(router, body)
            clock.tick(random.uniform(0.1, 0.3) + 0.2 * out)
            lease.first_token()
            cached = random.uniform(0.1, 0.3) + (0.0 if out else gain)
            lease.usage(prompt_tokens=1000, cached_tokens=round(1000 * cached))
            lease.release()


class TestCounting:
    def test_both_groups_side_by_side(self) -> None:
        clock = FakeClock()
        router = router_with(clock=clock)
        serve(router, clock, gain=0.4, conversations=200)
        stats = router.stats()
        holdout = stats.holdout
        assert holdout is not None
        routed, out = holdout.routed, holdout.held_out
        assert routed.requests + out.requests == 600 == stats.requests
        assert routed.prompt_tokens + out.prompt_tokens == stats.prompt_tokens
        assert routed.cached_tokens + out.cached_tokens == stats.cached_tokens
        assert routed.placement.startswith("Nested(")
        assert out.placement == "RoundRobin()"
        assert out.hit_rate == pytest.approx(0.2, abs=0.02)
        assert routed.hit_rate == pytest.approx(0.6, abs=0.02)
        assert (routed.ttft_count, out.ttft_count) == (routed.requests, out.requests)
        for group, mean_s in ((routed, 0.2), (out, 0.4)):
            assert group.ttft_mean_s == pytest.approx(mean_s, abs=0.02)
            assert group.ttft_p50_s == pytest.approx(mean_s, abs=0.02)
            assert group.ttft_p95_s == pytest.approx(mean_s + 0.09, abs=0.02)
        hits, times = holdout.hit_rate_gain, holdout.ttft_gain_s
        assert hits is not None
        assert times is not None
        assert hits.low < 0.4 < hits.high
        assert times.low < 0.2 < times.high
        assert hits.sure
        assert times.sure
        assert "chance" not in holdout.sentence
        assert "RoundRobin()" in holdout.sentence

    def test_no_difference_is_said_to_be_chance(self) -> None:
        clock = FakeClock()
        router = router_with(clock=clock)
        serve(router, clock, gain=0.0, conversations=200)
        holdout = router.stats().holdout
        assert holdout is not None
        assert holdout.hit_rate_gain is not None
        assert not holdout.hit_rate_gain.sure
        assert "it may be chance" in holdout.sentence

    def test_few_conversations_tell_nothing(self) -> None:
        clock = FakeClock()
        router = router_with(clock=clock)
        serve(router, clock, gain=0.4, conversations=8)
        holdout = router.stats().holdout
        assert holdout is not None
        assert holdout.hit_rate_gain is None
        assert holdout.ttft_gain_s is None
        assert holdout.sentence.count("not enough") == 2

    def test_what_is_not_reported_is_unknown_and_not_zero(self) -> None:
        router = router_with(0.99)
        for number in range(10):
            with router.acquire(chat(text(number, 100))) as lease:
                lease.usage(prompt_tokens=100, cached_tokens=50 if number < 4 else None)
        holdout = router.stats().holdout
        assert holdout is not None
        assert holdout.held_out.hit_rate == 0.5
        assert (holdout.held_out.reports, holdout.held_out.unreported) == (4, 6)
        assert holdout.held_out.ttft_mean_s is None

    def test_a_further_try_is_no_further_request(self) -> None:
        router = router_with(0.99)
        body = chat(text(1, 300))
        first = router.acquire(body)
        first.failed(OSError())
        first.release()
        router.acquire(body, exclude=[first.endpoint.id]).release()
        holdout = router.stats().holdout
        assert holdout is not None
        assert (holdout.held_out.requests, holdout.held_out.failed) == (1, 1)

    def test_what_follows_a_pin_counts_in_no_group(self) -> None:
        router = router_with(0.99)
        with router.acquire(chat(text(1, 300))) as lease:
            lease.answered("resp_1")
        body = {"model": "m", "input": "and then?", "previous_response_id": "resp_1"}
        with router.acquire(body, path="/v1/responses") as lease:
            assert lease.decision.reason is Reason.PINNED
        holdout = router.stats().holdout
        assert holdout is not None
        assert holdout.held_out.requests + holdout.routed.requests == 1

    def test_a_dropped_lease_is_counted_too(self) -> None:
        router = router_with(0.99)
        lease = router.acquire(chat(text(1, 300)))
        lease.usage(prompt_tokens=10, cached_tokens=5)
        del lease
        holdout = router.stats().holdout
        assert holdout is not None
        assert holdout.held_out.cached_tokens == 5

    def test_the_sample_of_times_stays_small_and_true(self) -> None:
        clock = FakeClock()
        router = router_with(0.99, clock=clock)
        body = next(b for n in range(99) if is_out(router, b := chat(text(n, 99), stream=True)))
        prompt = router.read(body)
        for number in range(6000):
            with router.lease(prompt) as lease:
                clock.tick(0.001 * (1 + number % 1000))
                lease.first_token()
        holdout = router.stats().holdout
        assert holdout is not None
        out = holdout.held_out
        assert out.ttft_count == 6000
        assert out.ttft_p50_s == pytest.approx(0.5, abs=0.05)
        assert out.ttft_p95_s == pytest.approx(0.95, abs=0.03)
        assert router._trials is not None
        assert router._trials.groups is not None
        assert len(router._trials.groups.held_out._sample) == 2048

    def test_threads(self) -> None:
        router = router_with()

        def use(thread: int) -> None:
            for number in range(100):
                with router.acquire(chat(text((thread, number), 100))) as lease:
                    lease.usage(prompt_tokens=10, cached_tokens=5)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        stats = router.stats()
        holdout = stats.holdout
        assert holdout is not None
        assert holdout.routed.requests + holdout.held_out.requests == 800
        assert holdout.routed.cached_tokens + holdout.held_out.cached_tokens == 4000
        assert stats.in_flight == 0

    def test_without_a_holdout_nothing_is_kept(self) -> None:
        router = RouterCore(urls(2), clock=FakeClock(), wall_clock=lambda: 0.0)
        with router.acquire(chat(text(1, 300))) as lease:
            assert lease._loan.trial is None
        assert router.read(chat("x")).aside is None
        assert router.stats().holdout is None
        assert router.stats().shadow is None


class TestCertainty:
    @pytest.mark.parametrize(
        ("freedom", "quantile"), [(5, 2.571), (7, 2.365), (15, 2.131), (31, 2.040), (1000, 1.962)]
    )
    def test_student(self, freedom: int, quantile: float) -> None:
        assert student(freedom) == pytest.approx(quantile, rel=0.005)

    def test_the_variance_is_that_of_a_mean(self) -> None:
        """With equal denominators the jackknife is the textbook's variance of a mean."""
        values = [Random(3).gauss(0.5, 0.1) for _ in range(32)]
        mean = sum(values) / 32
        textbook = sum((v - mean) ** 2 for v in values) / 31 / 32
        found = jackknife([10 * v for v in values], [10] * 32)
        assert found is not None
        assert found[0] == pytest.approx(mean)
        assert found[1] == pytest.approx(textbook)
        assert found[2] == 32

    def test_the_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        """Conversations whose requests are alike, as real ones are."""
        random, held = Random(5), 0
        for _ in range(400):
            groups = []
            for true in (0.6, 0.5):
                tops, bottoms = [0.0] * 32, [0.0] * 32
                for _ in range(120):
                    part, own = random.randrange(32), random.gauss(true, 0.15)
                    for _ in range(random.randrange(1, 10)):
                        tops[part] += 100 * own
                        bottoms[part] += 100
                groups.append((tops, bottoms))
            gain = difference(groups[0], groups[1])
            assert gain is not None
            held += gain.low <= 0.1 <= gain.high
        assert 0.91 <= held / 400 <= 0.985

    def test_few_parts_tell_nothing(self) -> None:
        few = [1.0] * 7 + [0.0] * 25
        assert jackknife(few, few) is None
        assert difference((few, few), ([1.0] * 32, [2.0] * 32)) is None

    def test_sure_is_what_chance_does_not_explain(self) -> None:
        assert Gain(value=0.2, low=0.1, high=0.3).sure
        assert Gain(value=-0.2, low=-0.3, high=-0.1).sure
        assert not Gain(value=0.1, low=-0.1, high=0.3).sure


def test_the_first_turn_names_the_conversation() -> None:
    first, second = (read_prompt(body) for body in conversation("c", 2, system=HOT))
    assert conversation_of(first) == first.chain[-1] == conversation_of(second)
    assert conversation_of(Prompt()) is None
