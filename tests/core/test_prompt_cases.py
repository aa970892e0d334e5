"""Faults that were reported in public against software of this kind, at the level of prompts."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import msgspec
import pytest

from prefixroute.core.prompt import Cut, KeySource, Prompt
from prefixroute.core.request import read_prompt
from tests.core.bodies import ANTHROPIC_TOOL, CHAT, MAKERS, TOOL, chat, key, keys_differ, read, user

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


@pytest.mark.parametrize("path", [COMPLETIONS, "/completion", "/generate", None])
@pytest.mark.parametrize(
    "prompt",
    ["x", ["a", "b"], [1, 2, 3], [[1, 2], [3]], [12, 34, "string", 56], ["a", [1, 2], [3, "b"]]],
)
def test_case_01_completions_of_every_form(prompt: Any, path: str | None) -> None:
    body = {"model": "m", "prompt": prompt}
    before = json.dumps(body)
    one = read(body, path=path)
    assert one.chain
    assert json.dumps(body) == before
    assert read({"model": "m", "prompt": prompt, "max_tokens": 5}, path=path) == one
    assert key({"model": "n", "prompt": prompt}, path=path) != one.chain[-1]


def test_case_01_equal_ids_equal_key() -> None:
    forms = [[1, 2, 3], [[1, 2, 3]], [[1, 2, 3], [4]], [[1, 2, 3], "x"]]
    assert len({key({"prompt": form}) for form in forms}) == 1
    assert key({"prompt": "a"}) == key({"prompt": ["a"]}) == key({"prompt": ["a", "b"]})
    assert keys_differ(*({"prompt": form} for form in ("x", [1, 2, 3], [[1, 2], [3]], [3, 2, 1])))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", None),
        ("/v1/models", b""),
        ("/v1/embeddings", b'{"input": "x", "model": "m"}'),
        ("/v1/embeddings", b'{"input": ["x", "y"], "model": "m"}'),
        ("/v1/embeddings", b'{"input": [1, 2], "model": "m"}'),
        ("/v1/rerank", b'{"query": "x", "documents": ["y"]}'),
        ("/v1/responses/resp_1", None),
        ("/v1/chat/completions/unknown", b'{"messages": [{"role": "user", "content": "x"}]}'),
        ("/what/ever", b'{"prompt": "x"}'),
        (CHAT, None),
        (CHAT, b""),
        (CHAT, b"[]"),
        (CHAT, b"{}"),
        (CHAT, b"null"),
        (CHAT, b"3"),
        (CHAT, b'"text"'),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}'),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}]}}'),
        (CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}'),
        (CHAT, b"{'messages': []}"),
        (CHAT, b"\x00\x01\x02"),
        (CHAT, b"--boundary\r\nContent-Disposition: form-data\r\n\r\n\xff\xfe"),
        (CHAT, b"\xef\xbb\xbf"),
        (CHAT, b"{" * 100_000),
        (None, b"[1, 2, 3]"),
        (None, b"{"),
        (None, b'{"model": "m"}'),
    ],
)
def test_case_02_anything_else_has_no_key(path: str | None, body: bytes | None) -> None:
    prompt = read_prompt(body, path=path)
    assert (prompt.chain, prompt.source) == ((), KeySource.NONE)


def test_case_03_responses() -> None:
    text = read({"input": "hi"}, path=RESPONSES)
    assert text.chain == read({"input": [user("hi")]}, path=RESPONSES).chain
    parts = [{"type": "input_text", "text": "hi"}]
    assert text.chain == read({"input": [user(parts)]}, path=RESPONSES).chain
    typed = {"type": "message", "id": "msg_1", "status": "completed", **user("hi")}
    assert text.chain == read({"input": [typed]}, path=RESPONSES).chain
    assert text == read({"input": "hi", "instructions": None, "tools": []}, path=RESPONSES)
    assert keys_differ(
        {"input": "hi"},
        {"input": "ho"},
        {"input": "hi", "instructions": "be brief"},
        {"input": "hi", "tools": [TOOL]},
        {"input": "hi", "model": "m"},
        {"input": [user("hi"), user("hi")]},
        path=RESPONSES,
    )
    empty: tuple[object, ...] = (None, "", [], {}, 5)
    for nothing in empty:
        assert read({"input": nothing, "instructions": "x"}, path=RESPONSES).chain == ()


def test_case_05_prompts_that_differ_inside_the_first_block() -> None:
    shared = "x" * 50
    for make in MAKERS:
        texts = [shared + each for each in ("a", "b", "aa", "", "a" * 500, "b" * 5000)]
        assert keys_differ(*map(make, texts))
        assert keys_differ(*map(make, ["", "a", "b"][1:]))
        assert keys_differ(*map(make, texts), cut=Cut(window_bytes=1024))
    assert keys_differ(*({"prompt": ids} for ids in ([1], [2], [1, 2], [0], [0, 0])))
    first = read_prompt("a" * 200 + "b" * 2000)
    second = read_prompt("a" * 200 + "c" * 2000)
    assert first.chain[:2] == second.chain[:2]
    assert first.ends[1] == 128
    assert first.chain[2] != second.chain[2]


def test_case_07_block_hashes_are_chained() -> None:
    a, b = "a" * 1024, "b" * 1024
    plain = {name: read_prompt(text) for name, text in {"A": a, "B": b, "BA": b + a}.items()}
    assert set(plain["BA"].chain) & set(plain["B"].chain) > set(plain["A"].chain[:1])
    assert set(plain["BA"].chain) & set(plain["A"].chain) == set(plain["A"].chain[:1])  # the root
    chats = {name: read(chat(*map(user, name))) for name in ("A", "B", "BA", "AA")}
    assert chats["BA"].chain[:2] == chats["B"].chain
    assert chats["BA"].chain[2] not in chats["A"].chain + chats["AA"].chain
    blocks = [Prompt.from_blocks(ids, block_tokens=16) for ids in ([1], [2, 1], [1, 1])]
    assert len({key for prompt in blocks for key in prompt.chain}) == 4


def test_case_09_tool_schemas_and_billing_headers() -> None:
    other = {**ANTHROPIC_TOOL, "name": "other"}
    orders = [list(order) for order in itertools.permutations([ANTHROPIC_TOOL, other, TOOL])]
    assert keys_differ(*({"tools": tools, "messages": [user("x")]} for tools in orders))

    def call(cch: str) -> dict[str, Any]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={cch};"}
        mark = {"cache_control": {"type": "ephemeral"}}
        return {
            "system": [header, {"type": "text", "text": "You are a coder.", **mark}],
            "messages": [user([{"type": "text", "text": "hi", **(mark if cch == "1" else {})}])],
        }

    first, second = call("1"), call("2")
    before = json.dumps([first, second])
    assert read(first, path=MESSAGES) == read(second, path=MESSAGES)
    assert json.dumps([first, second]) == before


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "content": [{"text": "x"}]},
        {"role": "assistant", "content": [{"type": None}, {}, None, 5, "x", []]},
        {"role": "assistant", "content": {"text": "x"}},
        {"role": "assistant", "content": 5, "tool_calls": {}},
        {"role": "assistant", "tool_calls": "x", "function_call": 5},
        {"role": None, "content": "x", "name": {}},
        {"role": [], "content": True, "tool_call_id": []},
        {"content": "x"},
        {},
        "x",
        "",
        None,
        5,
        [],
        ["x"],
    ],
)
def test_case_10_messages_of_every_form(message: object) -> None:
    plain = chat(user("hi"), {"role": "assistant", "content": "hello"})
    assert keys_differ(chat(user("hi"), message), plain)
    assert keys_differ(chat(message, user("hi")), plain)


@pytest.mark.parametrize("messages", [None, [], {}, "x", 5, True, ""])
def test_case_10_no_messages(messages: object) -> None:
    for path in (CHAT, MESSAGES):
        assert read({"model": "m", "messages": messages, "tools": [TOOL]}, path=path).chain == ()


def test_case_10_tool_calls_count() -> None:
    def call(*arguments: str) -> dict[str, Any]:
        calls = [{"id": "c", "function": {"name": "f", "arguments": each}} for each in arguments]
        return chat(user("x"), {"role": "assistant", "content": None, "tool_calls": calls})

    assert keys_differ(call(), call("{}"), call('{"a":1}'), call("{}", "{}"))


def test_case_11_a_list_of_parts_against_a_text() -> None:
    for role in ("user", "system", "assistant"):
        for value in ("hi", "", "x" * 3000):
            plain = chat({"role": role, "content": value}, user("x"))
            parts = [{"type": "text", "text": value}]
            assert read(plain) == read(chat({"role": role, "content": parts}, user("x")))
    assert keys_differ(
        *(chat(user([{"type": "text", "text": each} for each in split]))
          for split in (["hi"], ["ho"], ["h", "i"], ["hi", ""], ["hi", "hi"]))
    )  # fmt: skip


def test_case_12_images_that_begin_alike() -> None:
    head = "data:image/png;base64," + "A" * 2048
    images = [
        {"type": kind, field: {"url": head + tail}}
        for kind, field in (("image_url", "image_url"), ("video_url", "video_url"))
        for tail in ("B", "C", "", "A", "B" * 1000)
    ]
    assert keys_differ(*(chat(user([image])) for image in images))
    sources = [{"type": "base64", "data": "A" * 2048 + tail} for tail in "BC"]
    assert keys_differ(*(chat(user([{"type": "image", "source": each}])) for each in sources))


@pytest.mark.parametrize("as_bytes", [True, False])
def test_case_12_a_large_image_in_bounded_time(as_bytes: bool) -> None:
    url = "data:image/png;base64," + "A" * 20_000_000
    image = {"type": "image_url", "image_url": {"url": url}}
    body: Any = chat(user([{"type": "text", "text": "what is it?"}, image]))
    data = json.dumps(body).encode()
    body = data if as_bytes else body
    json_s = fastest(lambda: json.loads(data))
    assert fastest(lambda: read_prompt(body)) < 10 * json_s + 0.05
    assert read_prompt(body).tokens < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda text: chat(user(text)),
        lambda text: chat({"role": "system", "content": text}, user("x")),
        lambda text: {"prompt": text},
        lambda text: chat(user([{"type": "custom", "data": text}])),
        lambda text: chat(user("x"), tools=[{"description": text}]),
        lambda text: chat(user([text] * 10)),
        lambda text: chat(*[user(text[:100])] * (len(text) // 100)),
        lambda text: {"prompt": list(text.encode())},
        lambda text: {"system": " " * len(text), "messages": [user("x")]},
    ],
)
def test_case_12_long_texts_in_bounded_time(make: Any) -> None:
    data = json.dumps(make("a b\n" * 250_000)).encode()
    json_s = fastest(lambda: json.loads(data))
    assert fastest(lambda: read_prompt(data)) < 20 * json_s + 0.1
    assert read_prompt(data).chain


def fastest(call: Any) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


@pytest.mark.parametrize(
    "token", ["<|endoftext|>", "<|im_start|>", "<s>", "[INST]", "\x00", "</s>"]
)
def test_case_14_special_tokens_are_plain_text(token: str) -> None:
    for make in MAKERS:
        assert keys_differ(*(make(each) for each in (token, token + token, "x" + token)))
    split = chat(user("a"), {"role": "assistant", "content": "b"})
    assert keys_differ(split, chat(user(f"a{token}assistant\nb")))
    assert read_prompt(token).size == len(token)


@pytest.mark.parametrize("letter", ["😀", "漢", "é", "👩‍👩‍👧", "\u2028", "\x7f"])
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("block", [128, 1024, 2048])
def test_case_15_a_boundary_inside_a_character(letter: str, offset: int, block: int) -> None:
    text = "a" * (block - offset) + letter * 300
    for body in (
        chat(user(text)),
        chat({"role": "system", "content": text}, user(text)),
        {"prompt": text},
        {"input": text},
        chat(user("x"), tools=[{"description": text}]),
    ):
        prompt = read_prompt(json.dumps(body).encode())
        assert prompt == read_prompt(json.dumps(body, ensure_ascii=False).encode())
        assert prompt == read_prompt(msgspec.json.encode(body))
        assert prompt == read_prompt(body)
        assert prompt.chain
    other = text[:-1] + "x"
    assert keys_differ(chat(user(text)), chat(user(other)))
