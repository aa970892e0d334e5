"""A prompt is the same whether its earlier turns were seen or not."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixroute.core import turns
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.request import read_prompt
from prefixroute.core.turns import SeenTurns

from .bodies import CHAT, TOOL
from .support import make_router

ANTHROPIC = "/v1/messages"


def said(role: str, number: int, times: int = 400) -> dict[str, Any]:
    return {"role": role, "content": f"{role} says {number}. " * times}


def talk(messages: int, of: int = 0) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    system = {"role": "system", "content": "You are brief."}
    return [system, *[said(roles[i % 2], 1000 * of + i) for i in range(messages)]]


def sent(body: object, **options: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), **options).encode()


def read(body: bytes, seen: SeenTurns | None, **options: Any) -> Prompt:
    return read_prompt(body, path=CHAT, seen=seen, **options)


def found(seen: SeenTurns, body: bytes) -> bool:
    return seen.find(body) is not None


def test_the_next_turn_is_found_and_read_the_same() -> None:
    seen = SeenTurns()
    for messages in (3, 5, 7, 9, 15):
        body = sent({"messages": talk(messages), "model": "m", "stream": True})
        assert found(seen, body) is (messages > 3)
        assert read(body, seen) == read(body, None)


@pytest.mark.parametrize(
    "before", [{"model": "m"}, {"model": "m", "stream": True}, {"max_tokens": 9}, {}]
)
def test_what_stands_before_the_messages_counts(before: dict[str, Any]) -> None:
    seen = SeenTurns()
    for messages in (3, 5):
        body = sent({**before, "messages": talk(messages), "temperature": 0})
        assert found(seen, body) is (messages == 5)
        assert read(body, seen) == read(body, None)


@pytest.mark.parametrize(
    "before",
    [{"system": "Be brief."}, {"tools": [TOOL]}, {"cache_salt": "secret"}, {"session_id": "s"}],
)
def test_text_and_secrets_before_the_messages_are_not_kept(before: dict[str, Any]) -> None:
    seen = SeenTurns()
    for messages in (3, 5):
        body = sent({**before, "messages": talk(messages)})
        assert not found(seen, body)
        assert read(body, seen) == read(body, None)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"tools": [TOOL]}, {}),
        ({}, {"tools": [TOOL]}),
        ({"system": "Be brief."}, {"system": "Be long."}),
        ({"model": "m"}, {"model": "n"}),
        ({}, {"prompt_cache_key": "k"}),
        ({}, {"session_id": "s"}),
        ({"stop": ["x"]}, {"stop": ["y"], "stream": True}),
        ({}, {"previous_response_id": "r"}),
    ],
)
@pytest.mark.parametrize("path", [CHAT, ANTHROPIC, None, "/v1/completions"])
def test_what_follows_the_messages_is_read_anew(
    first: dict[str, Any], then: dict[str, Any], path: str | None
) -> None:
    seen = SeenTurns()
    read_prompt(sent({"messages": talk(3), **first}), path=path, seen=seen)
    body = sent({"messages": talk(5), **then})
    assert read_prompt(body, path=path, seen=seen) == read_prompt(body, path=path)


def test_sessions_and_windows_take_the_long_way() -> None:
    seen = SeenTurns()
    body = sent({"messages": talk(3)})
    for options in ({"session": "s"}, {"cut": Cut(window_bytes=100)}):
        assert read_prompt(body, path=CHAT, **options).chain
    assert read(body, seen, session="s") == read(body, None, session="s")
    assert not found(seen, body)
    assert make_router(2)._turns is not None


def test_a_chat_without_a_reply_and_a_short_one_are_not_remembered() -> None:
    seen = SeenTurns()
    for body in (sent({"messages": talk(1)}), sent({"messages": [said("assistant", 1, 2)]})):
        read(body, seen)
        assert not found(seen, body)
        assert not seen._young


@pytest.mark.parametrize(
    "body",
    [
        "text " * 9000,
        list(range(20_000)),
        bytearray(sent({"messages": talk(5)})),
        {"messages": talk(5)},
    ],
)
def test_what_are_no_bytes_takes_the_long_way(body: Any) -> None:
    seen = SeenTurns()
    read(sent({"messages": talk(3)}), seen)
    prompt = read_prompt(body, seen=seen)
    assert prompt == read_prompt(body)
    assert prompt.chain


def test_turns_that_differ_anywhere_are_not_found() -> None:
    seen = SeenTurns()
    read(sent({"messages": talk(5)}), seen)
    for at in range(1, 6):
        messages = talk(7)
        messages[at]["content"] = messages[at]["content"].replace("s", "z", 1)
        body = sent({"messages": messages})
        assert not found(seen, body)
        assert read(body, None) == read(body, seen)
        seen = SeenTurns()
        read(sent({"messages": talk(5)}), seen)


def test_a_last_message_that_goes_on_is_another_one() -> None:
    """``1`` and ``12`` begin alike; so do a list and a list of lists."""
    seen = SeenTurns()
    for last in ("1", "12", "1 ", "[1]", "1,2"):
        body = sent({"messages": [*talk(3), "LAST"]}).replace(b'"LAST"', last.encode())
        assert read(body, seen) == read(body, None), last


@pytest.mark.parametrize(
    "tail",
    [
        b',"messages":[{"role":"user","content":"another list"}]}',
        b',"\\u006dessages":3}',
        b"}}",
        b"",
        b',"model":NaN}',
        b',"model":"\\ud800"}',
        b', "documents": [{"text": "d"}] }',
    ],
)
def test_whatever_follows(tail: bytes) -> None:
    seen = SeenTurns()
    start = sent({"messages": talk(3)})[:-1]
    read(start + b"}", seen)
    assert read(start + tail, seen) == read(start + tail, None)
    longer = sent({"messages": talk(5)})[:-1] + tail
    assert read(longer, seen) == read(longer, None)


@pytest.mark.parametrize("options", [{"indent": 2}, {"separators": (" , ", " : ")}])
def test_white_space_and_escapes_do_not_matter(options: dict[str, Any]) -> None:
    seen = SeenTurns()
    for messages in (3, 5, 7):
        chat = talk(messages)
        chat[1]["content"] += ' "messages":["] \\ \u00e9 \U0001f600'
        body = json.dumps({"messages": chat, "model": "m"}, **options).encode()
        assert found(seen, body) is (messages > 3)
        assert read(body, seen) == read(body, None)


def test_a_second_list_of_messages_replaces_the_first() -> None:
    seen = SeenTurns()
    body = sent({"messages": talk(3)})[:-1] + b"," + sent({"messages": talk(5, of=1)})[1:]
    for _ in range(2):
        assert read(body, seen) == read(body, None) == read(sent({"messages": talk(5, of=1)}), None)
    assert not seen._young


def test_the_word_in_a_text_before_the_messages_is_no_list_of_messages() -> None:
    seen = SeenTurns()
    for body in (
        {"user": {"messages": [1]}, "messages": talk(3)},
        {"metadata": '"messages":[', "messages": talk(3)},
    ):
        data = sent(body)
        assert read(data, seen) == read(data, None)
        longer = sent({**body, "messages": talk(5)})
        assert read(longer, seen) == read(longer, None)


def test_the_same_turns_again_are_found_again() -> None:
    seen = SeenTurns()
    body = sent({"messages": talk(5)})
    prompts = [read(body, seen) for _ in range(3)]
    assert prompts == [read(body, None)] * 3
    assert found(seen, body)


def test_chats_that_begin_alike_are_told_apart() -> None:
    """They share more than half of their bytes."""
    seen, shared = SeenTurns(), talk(9)
    for turn in (1, 2):
        for chat in range(turns._ALIKE):
            ends = [said("user", 7000 + 10 * chat + i, 5) for i in range(turn)]
            body = sent({"messages": [*shared, *ends]})
            assert found(seen, body) is (turn == 2)
            assert read(body, seen) == read(body, None)


def test_of_those_that_begin_alike_a_few_are_remembered() -> None:
    seen, shared = SeenTurns(), talk(9)
    for chat in range(turns._ALIKE + 2):
        read(sent({"messages": [*shared, said("user", chat, 5)]}), seen)
    assert [len(alike) for alike in seen._young.values()] == [turns._ALIKE]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_MAX_BLOCKS", 400)
    seen = SeenTurns()
    for chat in range(100):
        read(sent({"messages": talk(9, of=chat)}), seen)
        kept = [
            one for table in (seen._young, seen._old) for alike in table.values() for one in alike
        ]
        assert sum(len(one) for one in kept) <= 420
    assert found(seen, sent({"messages": talk(11, of=99)}))
    assert not found(seen, sent({"messages": talk(11, of=0)}))


def test_no_text_is_kept() -> None:
    seen = SeenTurns()
    read(sent({"messages": talk(5), "system": "secret", "user": "secret", "model": "m"}), seen)
    (alike,) = seen._young.values()
    for name in alike[0].__slots__:
        kept = repr(getattr(alike[0], name))
        assert "says" not in kept
        assert "secret" not in kept


message = st.one_of(
    st.builds(
        said, st.sampled_from(["user", "assistant", "system", "tool"]), st.integers(0, 3),
        st.sampled_from([0, 1, 40, 400]),
    ),
    st.sampled_from(
        [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image"}]},
            {"type": "reasoning", "content": "hm"},
            "text",
            7,
            None,
        ]
    ),
)  # fmt: skip
others = st.dictionaries(
    st.sampled_from(["model", "stream", "system", "tools", "stop", "prompt_cache_key", "input"]),
    st.sampled_from([None, True, "a", "b", [], ["a"], [{"messages": [1]}]]),
    max_size=3,
)


@settings(deadline=None)
@given(
    st.lists(message, max_size=6),
    st.lists(st.lists(message, max_size=3), max_size=4),
    others,
    st.lists(others, min_size=5, max_size=5),
    st.booleans(),
)
def test_any_chat_is_read_as_if_it_were_new(
    start: list[Any],
    more: list[list[Any]],
    before: dict[str, Any],
    after: list[dict[str, Any]],
    spaced: bool,
) -> None:
    seen, messages = SeenTurns(), [*start, *talk(3)]
    for further, end in zip([[], *more], after, strict=False):
        messages = [*messages, *further]
        fields = {**before, "messages": messages, **end}
        body = json.dumps(fields, indent=1 if spaced else None).encode()
        assert read(body, seen) == read(body, None)


def test_threads_share_what_was_seen() -> None:
    seen, wrong = SeenTurns(), []

    def work(chat: int) -> None:
        for messages in range(3, 40, 2):
            body = sent({"messages": talk(messages, of=chat % 2)})
            if read(body, seen) != read(body, None):
                wrong.append(messages)

    threads = [threading.Thread(target=work, args=(chat,)) for chat in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
