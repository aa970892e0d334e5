"""The blocks that a model wrote: whoever was sent what stands before them has them already."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.hashing import ChainBuilder, Segment, pack_fields
from prefixroute.core.prompt import Prompt
from tests.core.bodies import chat, read, user
from tests.core.support import make_router

HEAD = pack_fields(b"M", [])
SYSTEM = {"role": "system", "content": "You are kind. " * 20}
REPLY = {"role": "assistant", "content": "It is sunny. " * 40}

segments = st.lists(
    st.tuples(st.integers(0, 45), st.booleans(), st.booleans()).map(
        lambda drawn: (
            (
                HEAD,
                b"x" * drawn[0] if drawn[1] else [(b"t", b"x" * drawn[0], drawn[0])],
            ),
            drawn[2],
        )
    ),
    max_size=8,
)


@given(segments, st.integers(0, 2))
def test_are_those_of_the_segments_named(drawn: list[tuple[Segment, bool]], before: int) -> None:
    builder, single = ChainBuilder(10), ChainBuilder(10)
    for made in (builder, single):
        for _ in range(before):
            made.add(HEAD, [])
    builder.add_all(
        [segment for segment, _ in drawn], replies=[at for at, (_, own) in enumerate(drawn) if own]
    )
    expected: list[int] = []
    for segment, own in drawn:
        start = len(single.chain)
        single.add_all([segment])
        expected += range(start, len(single.chain)) if own else ()
    assert builder.chain == single.chain
    assert builder.replies == expected


@pytest.mark.parametrize(
    "written",
    [
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"role": "assistant", "content": "x", "name": "n"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "summary": []},
        {"type": "web_search_call", "id": "w"},
    ],
)
def test_are_what_a_model_says(written: Any) -> None:
    for body in ({"messages": [user("a"), written]}, {"input": [user("a"), written]}):
        assert read(body).replies == (2,)


@pytest.mark.parametrize(
    "written",
    [
        user("x"),
        SYSTEM,
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        "text",
        None,
        {},
        {"role": ["assistant"]},
    ],
)
def test_are_nothing_else(written: Any) -> None:
    assert read({"messages": [user("a"), written]}).replies == ()


@pytest.mark.parametrize(
    ("replies", "blocks", "held"),
    [
        ((), 3, 3),
        ((3,), 2, 2),
        ((3,), 3, 4),
        ((3,), 4, 4),
        ((3, 4, 5), 3, 6),
        ((3, 4, 5), 4, 4),  # it was sent another reply, that starts alike
        ((1, 3, 4, 6), 3, 5),
        ((1, 3, 4, 6), 6, 7),
    ],
)
def test_are_held_by_who_was_sent_what_stands_before(
    replies: tuple[int, ...], blocks: int, held: int
) -> None:
    assert Prompt(chain=tuple(range(8)), ends=(0,) * 8, replies=replies).with_reply(blocks) == held


def test_are_expected_in_the_cache_of_who_wrote_them() -> None:
    router = make_router(4, peers=1)
    turns: list[Any] = [SYSTEM, user("How is it?")]
    with router.acquire(chat(*turns)) as lease:
        lease.first_token()
    later = router.read(chat(*turns, REPLY, user("And then?")))
    decision = router.route(later)
    assert decision.endpoint is lease.endpoint
    assert decision.expected_cached_tokens == later.ends[2] * later.tokens_per_unit
