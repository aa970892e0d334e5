"""What is remembered of requests: bounded, hidden, and cut after what is shared."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.bodies import Bodies, Remembered, hottest, priming_body
from prefixroute.core.prompt import Prompt
from prefixroute.core.request import read_prompt
from tests.core.support import chat, conversation, text

PATH = "/v1/chat/completions"
SECRET = "the treasure lies under the oak"


def read(body: bytes, path: str) -> Prompt:
    return read_prompt(body, path=path)


def note(bodies: Bodies, body: dict[str, Any], path: str = PATH, now: float = 0.0) -> None:
    data = json.dumps(body).encode()
    bodies.note(read(data, path), data, path, now)


def primed(one: Remembered) -> dict[str, Any]:
    made = one.request(read)
    assert made is not None
    found: dict[str, Any] = json.loads(made)
    assert read(made, one.path).chain[: one.shared] == one.prompt.chain[: one.shared]
    return found


class TestRemembering:
    def test_one_proves_nothing_and_two_do(self) -> None:
        bodies = Bodies(10**6)
        note(bodies, chat("Who?", system=text(1, 2000)))
        assert hottest(bodies.hot(), 0.0) == []
        note(bodies, chat("Where?", system=text(1, 2000)))
        [one] = hottest(bodies.hot(), 0.0)
        assert one.shared == one.prompt.root_blocks

    def test_the_most_tokens_saved_come_first_and_heat_fades(self) -> None:
        bodies = Bodies(10**6)
        for number, times in ((1, 2), (2, 6), (3, 4)):
            for time in range(times):
                note(bodies, chat(text((number, time), 50), system=text(number, 2000)))
        systems = [primed(one)["messages"][0]["content"] for one in hottest(bodies.hot(), 0.0)]
        assert systems == [text(number, 2000) for number in (2, 3, 1)]
        for time in range(2):
            note(bodies, chat(text(time, 50), system=text(1, 2000)), now=6000.0)
        [first, *_] = hottest(bodies.hot(), 6000.0)
        assert primed(first)["messages"][0]["content"] == text(1, 2000)

    def test_the_bound_holds(self) -> None:
        bodies = Bodies(10_000)
        for number in range(50):
            note(bodies, chat("x", system=text(number, 1500)))
            assert bodies.size_bytes <= 10_000
        assert 4 <= len(bodies) <= 6
        before = bodies.size_bytes
        note(bodies, chat("x", system=text("long", 5000)))  # would leave room for few others
        assert bodies.size_bytes == before
        bodies.clear()
        assert (len(bodies), bodies.size_bytes) == (0, 0)

    def test_replacing_counts_once(self) -> None:
        bodies = Bodies(10**6)
        for number in range(20):
            note(bodies, chat(text(number, 100), system=text(1, 1500)))
        assert len(bodies) == 1
        assert bodies.size_bytes < 2000

    def test_what_has_no_prompt_is_not_remembered(self) -> None:
        bodies = Bodies(10**6)
        for _ in range(3):
            note(bodies, {"model": "m"})
        assert len(bodies) == 0

    def test_nothing_shows_what_is_remembered(self) -> None:
        bodies = Bodies(10**6)
        for number in range(2):
            note(bodies, chat(f"{SECRET} {number}", system=SECRET * 9))
        [one] = hottest(bodies.hot(), 0.0)
        for thing in (bodies, one, one.prefix()):
            assert SECRET not in repr(thing)
            assert SECRET not in str(thing)
        for thing in (bodies, one):
            with pytest.raises(TypeError, match="not to be pickled"):
                pickle.dumps(thing)
            with pytest.raises(TypeError, match="not to be pickled"):
                copy.copy(thing)


def hot(*given: dict[str, Any], path: str = PATH) -> Remembered:
    bodies = Bodies(10**6)
    for body in given:
        note(bodies, body, path)
    [one] = hottest(bodies.hot(), 0.0)
    return one


class TestCutting:
    def test_a_system_prompt_alone_and_no_users_words(self) -> None:
        given = [chat(f"{SECRET} {n}", system=text(1, 2000), stream=True) for n in range(2)]
        found = primed(hot(*given))
        assert found["messages"][0] == given[0]["messages"][0]
        assert SECRET not in json.dumps(found)
        assert found["messages"][-1]["role"] == "user"
        assert len(found["messages"]) == 2
        assert (found["max_tokens"], found["stream"]) == (1, False)

    def test_turns_of_one_conversation_prove_nothing(self) -> None:
        bodies = Bodies(10**6)
        for body in conversation("c", 5, system=text(1, 2000)):
            note(bodies, body)
        assert bodies.hot() == []

    def test_what_conversations_share_stays_shared_through_their_turns(self) -> None:
        chats = [conversation(name, 3, system=text(1, 2000)) for name in "ab"]
        found = hot(chats[0][0], chats[1][0], chats[1][1], chats[1][2])
        assert found.shared == found.prompt.root_blocks
        assert len(primed(found)["messages"]) == 2

    def test_what_follows_an_answer_is_a_users(self) -> None:
        examples = ["Q1", "A1", "Q2", "A2"]
        found = primed(hot(*[chat(*examples, text(n, 300)) for n in range(2)]))
        assert [m["role"] for m in found["messages"]][-1] == "user"
        assert len(found["messages"]) == 5

    def test_a_text_is_cut_where_the_others_end(self) -> None:
        shared = text("shots", 5000)
        path = "/v1/completions"
        given = [{"model": "m", "prompt": shared + text(n, 300), "n": 3} for n in range(2)]
        found = primed(hot(*given, path=path))
        assert shared[:4000] in found["prompt"]
        assert len(found["prompt"]) <= 5000
        assert found["n"] == 1

    def test_a_shared_part_of_one_message_takes_the_whole(self) -> None:
        document = text("document", 5000)
        found = primed(hot(*[chat(document + text(n, 300)) for n in range(2)]))
        assert found["messages"][0]["content"] == document + text(1, 300)

    def test_anthropics_messages(self) -> None:
        given = [
            {"model": "m", "system": text(1, 2000), "max_tokens": 99, **chat(text(n, 50))}
            for n in range(2)
        ]
        found = primed(hot(*given, path="/v1/messages"))
        assert found["system"] == text(1, 2000)
        assert found["max_tokens"] == 1
        assert [m["content"] for m in found["messages"]] == ["."]

    def test_tools_are_part_of_the_prompt_and_stay(self) -> None:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        given = [chat(text(n, 50), tools=tools, temperature=0.3, best_of=4) for n in range(2)]
        found = primed(hot(*given))
        assert found["tools"] == tools
        assert "best_of" not in found

    @pytest.mark.parametrize("fields", [{"max_completion_tokens": 500}, {"stream_options": {}}])
    def test_what_lengthens_an_answer_goes(self, fields: dict[str, Any]) -> None:
        found = primed(hot(*[chat(text(n, 50), system=text(1, 900), **fields) for n in range(2)]))
        assert not found.keys() & fields.keys()

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b"3", b"\xff"])
    def test_what_is_no_object_is_none(self, body: bytes) -> None:
        assert priming_body(body, PATH, (1,), read) is None

    def test_only_what_can_be_asked_for_one_token(self) -> None:
        assert priming_body(b'{"input": "x"}', "/v1/embeddings", (1,), read) is None

    def test_token_ids_stay_whole(self) -> None:
        given = [{"model": "m", "prompt": [*range(3000), n]} for n in range(2)]
        assert primed(hot(*given, path="/v1/completions"))["prompt"] == given[1]["prompt"]

    def test_what_cannot_be_cut_safely_stays_whole(self) -> None:
        body = chat(*[text(n, 99) for n in range(5)])
        made = priming_body(json.dumps(body).encode(), PATH, (1, 2, 3), read)
        assert made is not None
        assert json.loads(made)["messages"] == body["messages"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(["messages", "prompt", "system", "tools", "n", "model", "stream"])


@given(st.dictionaries(FIELDS, JSON), st.sampled_from([PATH, "/v1/completions", "/v1/messages"]))
def test_any_body_is_remembered_and_cut_or_left(body: dict[str, Any], path: str) -> None:
    bodies = Bodies(10**6)
    for _ in range(2):
        note(bodies, body, path)
    for one in bodies.hot():
        made = one.request(read)
        if made is not None:
            assert read(made, path).chain[: one.shared] == one.prompt.chain[: one.shared]
            assert json.loads(made)["max_tokens"] == 1
