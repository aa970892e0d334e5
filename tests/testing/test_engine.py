"""The engine: its queue, its cache, its counts, and what a cancellation gives back."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixroute.testing import Engine, EngineModel, RenderedPrompt

MODEL = EngineModel(
    bytes_per_token=1,
    block_tokens=4,
    cache_blocks=64,
    prefill_tokens_per_s=10.0,
    request_overhead_s=0.5,
    decode_s_per_token=0.1,
)


def prompt(text: str, salt: bytes = b"") -> RenderedPrompt:
    return RenderedPrompt(text=text.encode(), salt=salt)


def test_an_idle_engine_prefills_at_once() -> None:
    admission = Engine(MODEL).admit(prompt("x" * 20), output=b"abc", now_s=7.0)
    assert admission.start_at_s == 7.0
    assert admission.first_token_at_s == pytest.approx(7.0 + 0.5 + 20 / 10)
    assert admission.done_at_s == pytest.approx(admission.first_token_at_s + 2 * 0.1)
    assert admission.token_at_s(2) == pytest.approx(admission.first_token_at_s + 0.1)
    assert (admission.prompt_tokens, admission.cached_tokens) == (20, 0)
    assert admission.completion_tokens == 3


def test_prefill_is_a_queue_and_decoding_runs_beside_it() -> None:
    engine = Engine(MODEL)
    first = engine.admit(prompt("a" * 10), output=b"x" * 100, now_s=0.0)
    second = engine.admit(prompt("b" * 10), now_s=0.1)
    assert second.start_at_s == first.first_token_at_s
    assert second.first_token_at_s < first.done_at_s


def test_a_second_request_finds_the_whole_blocks_of_the_first() -> None:
    engine = Engine(MODEL)
    engine.admit(prompt("aaaabbbbcc"), now_s=0.0)
    assert engine.cached_tokens(prompt("aaaabbbbccdd")) == 8
    later = engine.admit(prompt("aaaabbbbccdd"), now_s=10.0)
    assert later.cached_tokens == 8
    assert later.first_token_at_s == pytest.approx(10.0 + 0.5 + 4 / 10)


def test_a_full_hit_computes_the_last_block() -> None:
    engine = Engine(MODEL)
    for _ in range(2):
        last = engine.admit(prompt("aaaabbbb"), now_s=0.0)
    assert last.cached_tokens == 4


def test_salts_do_not_share() -> None:
    engine = Engine(MODEL)
    engine.admit(prompt("aaaabbbb", b"one"), now_s=0.0)
    assert engine.cached_tokens(prompt("aaaabbbb", b"two")) == 0


def test_the_answer_is_cached_when_it_is_done() -> None:
    engine = Engine(MODEL)
    admission = engine.admit(prompt("aaaab"), output=b"bbbcccc", now_s=0.0)
    next_turn = prompt("aaaabbbbccccdddd")
    assert engine.cached_tokens(next_turn) == 4
    engine.stats(admission.done_at_s)
    assert engine.cached_tokens(next_turn) == 12


def test_a_full_engine_makes_requests_wait_for_a_slot() -> None:
    engine = Engine(replace(MODEL, max_running=2))
    first = engine.admit(prompt("a"), output=b"x" * 100, now_s=0.0)
    second = engine.admit(prompt("b"), output=b"x" * 50, now_s=0.0)
    third = engine.admit(prompt("c"), output=b"x", now_s=0.0)
    assert third.start_at_s == min(first.done_at_s, second.done_at_s)
    stats = engine.stats(third.start_at_s - 0.01)
    assert (stats.running, stats.waiting) == (2, 1)


def test_a_freed_slot_is_used() -> None:
    engine = Engine(replace(MODEL, max_running=1))
    first = engine.admit(prompt("a"), output=b"x" * 100, now_s=0.0)
    engine.cancel(first, 1.0)
    assert engine.admit(prompt("b"), now_s=1.0).start_at_s == 1.0


def test_counts_follow_a_request() -> None:
    engine = Engine(MODEL)
    first = engine.admit(prompt("a" * 8), output=b"xx", now_s=0.0)
    engine.admit(prompt("b" * 8), output=b"xx", now_s=0.0)
    early = engine.stats(0.0)
    assert (early.running, early.waiting, early.requests) == (1, 1, 2)
    assert early.kv_usage == pytest.approx(3 / 64)
    late = engine.stats(100.0)
    assert (late.running, late.waiting, late.finished) == (0, 0, 2)
    assert (late.prompt_tokens, late.completion_tokens) == (16, 4)
    assert late.kv_usage == 0.0
    assert engine.stats(first.done_at_s).finished == 2


def test_a_cancelled_prefill_is_given_back_and_not_cached() -> None:
    engine = Engine(MODEL)
    engine.admit(prompt("a" * 10), now_s=0.0)
    waiting = engine.admit(prompt("b" * 40), now_s=0.0)
    engine.cancel(waiting, 0.1)
    assert engine.cached_tokens(prompt("b" * 40)) == 0
    later = engine.admit(prompt("c" * 10), now_s=0.1)
    assert later.start_at_s == pytest.approx(1.5)
    assert engine.stats(0.1).cancelled == 1


def test_what_was_prefilled_before_the_cancellation_stays() -> None:
    engine = Engine(replace(MODEL, request_overhead_s=0.0))
    admission = engine.admit(prompt("b" * 40 + "end"), now_s=0.0)
    engine.cancel(admission, 2.0)
    assert 12 <= engine.cached_tokens(prompt("b" * 40 + "end")) <= 20


def test_a_cancelled_decode_frees_the_engine_and_keeps_the_prompt() -> None:
    engine = Engine(MODEL)
    admission = engine.admit(prompt("b" * 10), output=b"x" * 100, now_s=0.0)
    engine.cancel(admission, admission.token_at_s(11))
    stats = engine.stats(admission.token_at_s(11))
    assert (stats.running, stats.cancelled, stats.completion_tokens) == (0, 1, 11)
    assert engine.cached_tokens(prompt("b" * 10)) == 8


def test_cancelling_twice_or_after_the_end_does_nothing() -> None:
    engine = Engine(MODEL)
    admission = engine.admit(prompt("a"), output=b"x", now_s=0.0)
    engine.cancel(admission, admission.done_at_s)
    engine.cancel(admission, admission.done_at_s + 1)
    stats = engine.stats(admission.done_at_s + 1)
    assert (stats.finished, stats.cancelled) == (1, 0)


def test_a_finalizer_may_cancel_while_its_thread_holds_the_lock() -> None:
    engine = Engine(MODEL)
    admission = engine.admit(prompt("a"), output=b"x" * 100, now_s=0.0)
    with engine._lock:
        engine.cancel(admission, 1.0)
    assert engine.stats(1.0).running == 0


def test_clearing_forgets_everything() -> None:
    engine = Engine(MODEL)
    admission = engine.admit(prompt("a" * 8), now_s=0.0)
    engine.clear()
    engine.cancel(admission, 0.0)
    stats = engine.stats(0.0)
    assert stats.requests == stats.cached_blocks == stats.cancelled == 0
    assert stats.hit_rate == 0.0


def test_threads_share_an_engine() -> None:
    engine = Engine(MODEL)

    def work(name: int) -> None:
        for turn in range(200):
            admission = engine.admit(prompt(f"{name}-{turn}" * 3), output=b"xx", now_s=turn)
            if turn % 2:
                engine.cancel(admission, turn)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = engine.stats(1e9)
    assert stats.requests == 800
    assert stats.finished + stats.cancelled == 800
    assert (stats.running, stats.waiting) == (0, 0)


steps = st.lists(
    st.tuples(
        st.floats(0, 3),  # seconds until the next step
        st.text(alphabet="ab", max_size=30),
        st.integers(0, 20),  # output tokens
        st.booleans(),  # cancel the oldest request that is open
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps, st.integers(1, 3), st.integers(0, 12))
def test_whatever_happens_the_promises_hold(
    taken: list[tuple[float, str, int, bool]], max_running: int, cache_blocks: int
) -> None:
    engine = Engine(replace(MODEL, max_running=max_running, cache_blocks=cache_blocks))
    now_s, admissions, open_ones, inserted = 0.0, [], [], [b""]
    for pause_s, text, output_tokens, cancels in taken:
        now_s += pause_s
        one = engine.admit(prompt(text), output=b"y" * output_tokens, now_s=now_s)
        assert now_s <= one.start_at_s <= one.first_token_at_s <= one.done_at_s
        assert 0 <= one.cached_tokens <= max(0, one.prompt_tokens - 1)
        assert one.cached_tokens % MODEL.block_tokens == 0
        hit = text.encode()[: one.cached_tokens]
        assert any(earlier.startswith(hit) for earlier in inserted)
        inserted.append(text.encode() + b"y" * output_tokens)
        admissions.append(one)
        open_ones.append(one)
        if cancels:
            engine.cancel(open_ones.pop(0), now_s)
        stats = engine.stats(now_s)
        assert stats.cached_blocks <= cache_blocks
        assert 0.0 <= stats.kv_usage <= 1.0
        assert stats.running + stats.waiting + stats.finished + stats.cancelled == len(admissions)
    end = engine.stats(1e9)
    assert end.running == end.waiting == 0
    assert end.cached_tokens == sum(one.cached_tokens for one in admissions)
    assert 0.0 <= end.hit_rate <= 1.0


@settings(deadline=None)
@given(steps, st.integers(1, 3))
def test_without_cancellations_no_more_run_than_may(
    taken: list[tuple[float, str, int, bool]], max_running: int
) -> None:
    engine = Engine(replace(MODEL, max_running=max_running))
    now_s, admissions = 0.0, []
    for pause_s, text, output_tokens, _ in taken:
        now_s += pause_s
        admissions.append(engine.admit(prompt(text), output=b"y" * output_tokens, now_s=now_s))
    for one in admissions:
        running = [other for other in admissions if other.start_at_s <= one.start_at_s]
        assert sum(other.done_at_s > one.start_at_s for other in running) <= max_running
    firsts = [one.first_token_at_s for one in admissions]
    assert firsts == sorted(firsts)
