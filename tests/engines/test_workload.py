"""The workload against a made-up engine whose cache is known exactly."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.engines.chat import Message, Reply, Send
from tests.engines.workload import WorkloadSpec, run_workload

SPEC = WorkloadSpec(assistants=5, turns=4, concurrency=3)


def one_token_a_word(slots: int, block: int = 1) -> Send:
    """An engine that remembers the last prompts, a word being a token, and one word of reply."""
    lock = threading.Lock()
    remembered: list[list[str]] = []

    def send(messages: Sequence[Message]) -> Reply:
        words = " ".join(f"<{m['role']}> {m['content']}" for m in messages).split()
        with lock:
            cached = [shared(words, held) for held in remembered]
            best = max(range(len(cached)), key=cached.__getitem__, default=None)
            found = cached[best] if best is not None else 0
            if best is not None and found > 5:
                remembered.pop(best)
            remembered.append([*words, "<assistant>"])
            del remembered[:-slots]
        return Reply(
            cached_tokens=found - found % block,
            prompt_tokens=len(words),
            completion_tokens=2,  # the role, which is computed, and the last word, which is not
            ttft_s=0.01 * len(words),
            endpoint="here",
            text="Yes.",
        )

    return send


def shared(one: list[str], other: list[str]) -> int:
    """The length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_a_slot_for_each_assistant_reaches_the_ceiling() -> None:
    result = run_workload(one_token_a_word(slots=SPEC.assistants), SPEC)
    assert result.hit_rate == pytest.approx(result.ceiling)


def test_the_ceiling_of_an_engine_with_blocks_counts_whole_ones() -> None:
    result = run_workload(one_token_a_word(slots=SPEC.assistants, block=16), SPEC, block_tokens=16)
    assert result.hit_rate == pytest.approx(result.ceiling)
    exact = run_workload(one_token_a_word(slots=SPEC.assistants), SPEC)
    assert result.ceiling < exact.ceiling


def test_too_few_slots_stay_below_the_ceiling() -> None:
    result = run_workload(one_token_a_word(slots=2), SPEC)
    assert result.hit_rate < result.ceiling - 0.1


def test_later_conversations_stay_within_the_ceiling() -> None:
    spec = WorkloadSpec(assistants=3, conversations=3, turns=3)
    result = run_workload(one_token_a_word(slots=3), spec)
    assert result.ceiling - 0.05 < result.hit_rate <= result.ceiling


def test_equal_specs_send_the_same_chats() -> None:
    def chats(spec: WorkloadSpec) -> set[str]:
        sent: set[str] = set()

        def send(messages: Sequence[Message]) -> Reply:
            sent.add(repr(messages))
            return engine(messages)

        engine = one_token_a_word(slots=4)
        run_workload(send, spec)
        return sent

    assert chats(SPEC) == chats(SPEC)
    assert len(chats(SPEC)) == SPEC.assistants * SPEC.turns
    assert chats(SPEC).isdisjoint(chats(WorkloadSpec(seed=1, assistants=5, turns=4)))


def test_every_turn_extends_the_one_before_it() -> None:
    result = run_workload(one_token_a_word(slots=5), SPEC)
    places = [(e.assistant, e.conversation, e.turn) for e in result.exchanges]
    assert places == [(a, 0, t) for a in range(5) for t in range(4)]
    lengths = [e.reply.prompt_tokens for e in result.exchanges]
    assert all(lengths[i] < lengths[i + 1] for i in range(19) if (i + 1) % 4)


def test_the_error_of_a_request_ends_the_workload() -> None:
    calls = 0

    def send(_messages: Sequence[Message]) -> Reply:
        nonlocal calls
        calls += 1
        raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"):
        run_workload(send, SPEC)
    assert calls <= 2 * SPEC.concurrency


def test_quantiles_are_of_the_nearest_rank() -> None:
    result = run_workload(one_token_a_word(slots=5), WorkloadSpec(assistants=1, turns=2))
    short, long = (exchange.reply.ttft_s for exchange in result.exchanges)
    assert (result.ttft_s(0.5), result.ttft_s(0.95)) == (short, long)
    assert result.requests_per_endpoint == {"here": 2}
