"""Token counts, from the replies of every engine."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.usage import Usage, find_usage, read_reply, read_usage

BOTH = Usage(prompt_tokens=120, cached_tokens=100)
UNKNOWN = Usage(prompt_tokens=120, cached_tokens=None)

REPLIES: list[tuple[str, Any, Usage | None]] = [
    (
        "OpenAI",
        {"usage": {"prompt_tokens": 120, "prompt_tokens_details": {"cached_tokens": 100}}},
        BOTH,
    ),
    (
        "responses",
        {"usage": {"input_tokens": 120, "input_tokens_details": {"cached_tokens": 100}}},
        BOTH,
    ),
    (
        "the last event of responses",
        {
            "type": "response.completed",
            "response": {
                "usage": {"input_tokens": 120, "input_tokens_details": {"cached_tokens": 100}}
            },
        },
        BOTH,
    ),
    (
        "Anthropic counts cached tokens apart",
        {"usage": {"input_tokens": 15, "cache_read_input_tokens": 100, "output_tokens": 9}},
        Usage(prompt_tokens=115, cached_tokens=100),
    ),
    (
        "Anthropic, some written to the cache",
        {
            "usage": {
                "input_tokens": 5,
                "cache_creation_input_tokens": 15,
                "cache_read_input_tokens": 100,
            }
        },
        BOTH,
    ),
    (
        "Anthropic's message_start",
        {
            "type": "message_start",
            "message": {"usage": {"input_tokens": 20, "cache_read_input_tokens": 100}},
        },
        BOTH,
    ),
    (
        "Anthropic, nothing said of the cache",
        {"usage": {"input_tokens": 120, "cache_read_input_tokens": None}},
        UNKNOWN,
    ),
    ("DeepSeek", {"usage": {"prompt_tokens": 120, "prompt_cache_hit_tokens": 100}}, BOTH),
    ("SGLang", {"text": "", "meta_info": {"prompt_tokens": 120, "cached_tokens": 100}}, BOTH),
    ("SGLang, silent", {"meta_info": {"prompt_tokens": 120}}, UNKNOWN),
    ("llama.cpp", {"content": "", "timings": {"prompt_n": 20, "cache_n": 100}}, BOTH),
    (
        "llama.cpp's chat: the timings know more than the usage",
        {"usage": {"prompt_tokens": 120}, "timings": {"prompt_n": 20, "cache_n": 100}},
        BOTH,
    ),
    ("llama.cpp, silent", {"timings": {"prompt_n": 20}}, None),
    (
        "a batch",
        [
            {"meta_info": {"prompt_tokens": 60, "cached_tokens": 40}},
            {"meta_info": {"prompt_tokens": 60, "cached_tokens": 60}},
        ],
        BOTH,
    ),
    (
        "a batch that says only half",
        [{"meta_info": {"prompt_tokens": 60}}, {"meta_info": {"prompt_tokens": 60}}],
        UNKNOWN,
    ),
    ("no details", {"usage": {"prompt_tokens": 120}}, UNKNOWN),
    ("null details", {"usage": {"prompt_tokens": 120, "prompt_tokens_details": None}}, UNKNOWN),
    (
        "null count",
        {"usage": {"prompt_tokens": 120, "prompt_tokens_details": {"cached_tokens": None}}},
        UNKNOWN,
    ),
    (
        "zero is a count",
        {"usage": {"prompt_tokens": 120, "prompt_tokens_details": {"cached_tokens": 0}}},
        Usage(prompt_tokens=120, cached_tokens=0),
    ),
    (
        "nonsense is no count",
        {"usage": {"prompt_tokens": 120, "prompt_tokens_details": {"cached_tokens": -1}}},
        UNKNOWN,
    ),
    ("null", {"usage": None}, None),
    ("empty", {"usage": {}}, None),
    ("a text", {"usage": "free"}, None),
    ("a bool", {"usage": {"prompt_tokens": True}}, None),
    ("a fraction", {"usage": {"prompt_tokens": 1.5}}, None),
    ("nothing", {}, None),
    ("an empty list", [], None),
    ("no object", "hello", None),
]


@pytest.mark.parametrize(("reply", "usage"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])
def test_usage(reply: Any, usage: Usage | None) -> None:
    assert read_usage(reply) == usage


@pytest.mark.parametrize(
    ("reply", "usage"),
    [r[1:] for r in REPLIES if "event" not in r[0] and "message_start" not in r[0]],
)
def test_usage_of_a_whole_body(reply: Any, usage: Usage | None) -> None:
    for indent in (None, 2):
        body = json.dumps(reply, indent=indent).encode()
        assert read_reply(body)[0] == usage


def test_the_id_of_a_body() -> None:
    assert read_reply(b'{"output": [{"id": "msg_1"}], "id": "resp_1"}')[1] == "resp_1"
    assert read_reply(b'{"id": 7}')[1] is None
    assert read_reply(b"[]")[1] is None
    assert read_reply(b'{"id": "resp_1", "text": "\\ud800"}')[1] == "resp_1"
    assert read_reply(b"")[1] is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "\\ud800", "usage": {"prompt_tokens": 120}}',
        b'{"logprob": NaN, "usage": {"prompt_tokens": 120}}',
        b'{"usage": {"prompt_tokens": 120}, "text": "\xff"}',
        b'{"usage": {"prompt_tokens": 120}, "text": "cut o',
    ],
)
def test_a_body_that_is_not_quite_json(body: bytes) -> None:
    assert read_reply(body)[0] == UNKNOWN


def test_the_last_usage_of_a_part() -> None:
    usage = json.dumps(REPLIES[0][1]).encode()
    assert find_usage(b'lo"}} ' + usage + b"\n\ndata: [DONE]") == BOTH
    assert find_usage(b'{"usage": {"prompt_tokens": 1}}' + usage + b'{"usage":null}') == BOTH
    assert find_usage(b'{"usage" :\n {"prompt_tokens": 120}') == UNKNOWN
    assert find_usage(b'{"usage": {"prompt_tokens": 120') is None
    assert find_usage(usage + b'{"tools": [{"usage": {"type": "object"}}]}') == BOTH


def test_what_a_model_writes_about_usage_is_not_usage() -> None:
    text = json.dumps({"usage": {"prompt_tokens": 1}})
    body = json.dumps({"usage": {"prompt_tokens": 120}, "text": text}).encode()
    assert find_usage(body) == UNKNOWN


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_at_all(body: bytes) -> None:
    for wrapped in (body, b'{"usage":{' + body, b'{"usage":' + body + b"}", b'{"id":' + body):
        usage, response_id = read_reply(wrapped)
        assert usage is None or isinstance(usage, Usage)
        assert response_id is None or isinstance(response_id, str)
        find_usage(wrapped)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["usage", "meta_info", "timings", "message"]), JSON))
def test_any_json_at_all(reply: Any) -> None:
    usage = read_usage(reply)
    assert usage is None or isinstance(usage, Usage)
    read_reply(msgspec.json.encode(reply))


def test_deep_nesting() -> None:
    deep = b'{"usage":' + b"[" * 100_000
    assert read_reply(deep) == (None, None)
    assert find_usage(b'{"usage":{"a":' + b"[" * 100_000) is None
