"""Requests rendered as prompts: turns extend each other, equal content is equal."""

from __future__ import annotations

import pytest

from prefixroute.testing.prompts import (
    chat_prompt,
    completion_prompts,
    messages_prompt,
    response_prompt,
    turns_of_input,
)
from prefixroute.testing.wire import RequestError

SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object, **fields: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **fields}


def test_the_next_turn_extends_the_answered_one() -> None:
    first = chat_prompt({"messages": [SYSTEM, user("Hi")]})
    second = chat_prompt({"messages": [SYSTEM, user("Hi"), assistant("Hello!"), user("Bye")]})
    assert second.text.startswith(first.text + b"Hello!")


def test_parts_equal_text() -> None:
    parts = [{"type": "text", "text": "H"}, {"text": "i"}]
    assert chat_prompt({"messages": [user(parts)]}) == chat_prompt({"messages": [user("Hi")]})


def test_tools_come_first() -> None:
    with_tools = chat_prompt({"messages": [user("Hi")], "tools": [TOOL]})
    without = chat_prompt({"messages": [user("Hi")]})
    assert with_tools.text.endswith(without.text)
    assert b"look" in with_tools.text


def test_tool_calls_and_their_output_are_part_of_it() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    messages = [user("Hi"), assistant(None, tool_calls=[call])]
    text = chat_prompt({"messages": messages}).text
    assert b'"arguments": {"a": 1}' in text
    assert chat_prompt({"messages": [user("Hi"), assistant(None, tool_calls=None)]}).text != text


@pytest.mark.parametrize("field", ["model", "cache_salt", "chat_template"])
def test_some_fields_only_tell_prompts_apart(field: str) -> None:
    plain = chat_prompt({"messages": [user("Hi")]})
    other = chat_prompt({"messages": [user("Hi")], field: "x"})
    assert (plain.text, plain.salt != other.salt) == (other.text, True)


def test_pictures_count_by_their_content() -> None:
    pictures = [
        [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 2000}{end}"}}]
        for end in "xyx"
    ]
    one, two, three = (chat_prompt({"messages": [user(parts)]}).text for parts in pictures)
    assert one == three != two
    assert len(one) == len(two)


def test_a_lone_surrogate_is_text() -> None:
    assert chat_prompt({"messages": [user("\ud800")]}).text


def test_anthropic_renders_like_chat() -> None:
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    expected = chat_prompt({"messages": [SYSTEM, user("Hi")]})
    for system in ("Be brief.", blocks):
        assert messages_prompt({"system": system, "messages": [user("Hi")]}) == expected


def test_anthropic_blocks() -> None:
    use = {"type": "tool_use", "id": "1", "name": "look", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    text = messages_prompt({"messages": [assistant([thinking, use]), user([result])]}).text
    assert b'"arguments": {"a": 1}' in text
    assert b"<tool_response>\nr\n" in text
    assert b"hm" not in text


def test_responses_render_like_chat() -> None:
    expected = chat_prompt({"messages": [SYSTEM, user("Hi")]})
    part = {"type": "input_text", "text": "Hi"}
    for given in ("Hi", [user("Hi")], [{"type": "message", **user([part])}]):
        body = {"instructions": "Be brief.", "input": given}
        assert response_prompt(body, turns_of_input(body)) == expected


def test_response_items() -> None:
    items = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "found"},
    ]
    text = turns_of_input({"input": items})
    assert b"look" in text
    assert text.endswith(b"tool\nfound<|im_end|>\n")


def test_completion_prompts() -> None:
    def texts(prompt: object) -> list[bytes]:
        return [one.text for one in completion_prompts(prompt, b"", 4)]

    assert texts("abc") == [b"abc"]
    assert texts(["a", "b"]) == [b"a", b"b"]
    assert texts([1, 258]) == [b"\1\0\0\0\2\1\0\0"]
    assert texts([[1], [2]]) == [b"\1\0\0\0", b"\2\0\0\0"]


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], {}, 5, [1.5], [True], [1, -2], [{}]])
def test_bad_completion_prompts(prompt: object) -> None:
    with pytest.raises(RequestError):
        completion_prompts(prompt, b"", 4)


@pytest.mark.parametrize("messages", [None, [], "Hi", ["Hi"], [{"role": "user", "content": 5}]])
def test_bad_messages(messages: object) -> None:
    with pytest.raises(RequestError):
        chat_prompt({"messages": messages})


@pytest.mark.parametrize("value", [None, [], 5])
def test_bad_input(value: object) -> None:
    with pytest.raises(RequestError):
        turns_of_input({"input": value})
