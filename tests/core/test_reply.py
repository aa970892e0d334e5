"""A reply's body as it passes: first token, errors, usage and id, in bounded memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.reply import ReplyReader, has_content
from prefixroute.core.usage import Usage

BOTH = Usage(prompt_tokens=120, cached_tokens=100)
USAGE = '{"prompt_tokens":120,"prompt_tokens_details":{"cached_tokens":100}}'


def event(data: Any, name: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def read(*chunks: bytes, events: bool = True) -> ReplyReader:
    reader = ReplyReader(events=events)
    for chunk in chunks:
        reader.feed(chunk)
    return reader


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


CONTENT = [
    delta(content="Hi"),
    delta(role="assistant", content="Hi"),
    delta(reasoning_content="Hm"),
    delta(tool_calls=[{"index": 0}]),
    {"choices": [{"text": "Hi"}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"type": "content_block_delta", "delta": {"text": "Hi"}},
    {"type": "response.output_text.delta", "delta": "Hi"},
    {"type": "response.completed", "response": {}},
    {"content": "Hi", "stop": False},
    {"text": "Hi", "meta_info": {}},
    {"token": {"id": 1, "text": "Hi"}},
]
NO_CONTENT: list[Any] = [
    delta(role="assistant", content=""),
    delta(role="assistant", content=None, refusal=None),
    delta(),
    {"choices": []},
    {"choices": None},
    {"choices": ["x", {"delta": None}]},
    {"type": "message_start", "message": {}},
    {"type": "ping"},
    {"type": "content_block_start", "content_block": {"text": ""}},
    {"type": "response.created", "response": {"error": None}},
    {"type": "response.in_progress"},
    {"content": "", "stop": False},
    {"prompt_progress": {"total": 100, "processed": 50}},
    [],
    "text",
    None,
]


@pytest.mark.parametrize("given", CONTENT)
def test_content_is_the_first_token(given: Any) -> None:
    assert has_content(given)
    assert read(event(given)).first_token


@pytest.mark.parametrize("given", NO_CONTENT)
def test_what_comes_before_is_not(given: Any) -> None:
    assert not has_content(given)
    reader = read(event(given), b": keep-alive\n\n", b"\n\n", event("[DONE]"))
    assert not reader.first_token
    assert reader.error is None
    reader.feed(event(CONTENT[0]))
    assert reader.first_token


def test_an_event_that_is_too_long_to_read_counts_as_the_first_token() -> None:
    reader = read(b"data: {" + b"x" * 70_000)
    assert reader.first_token


ERRORS = [
    (event({"error": {"message": "x", "code": 503}}), 503),
    (event({"error": {"message": "x", "code": "internal", "type": "server_error"}}), 500),
    (event({"error": "text"}), 500),
    (event({"type": "error", "error": {"type": "overloaded_error"}}, "error"), 503),
    (event({"type": "error", "error": {"type": "invalid_request_error"}}, "error"), 400),
    (event({"error": {"type": "BadRequestError", "code": 400}}), 400),
    (event({"error": {"type": "rate_limit_error"}}), 429),
    (event({"error": {"type": "authentication_error"}}), 401),
    (event({"error": {"type": "permission_error"}}), 403),
    (event({"error": {"type": "not_found_error"}}), 404),
    (event({"error": {"message": "x"}, "status": 404}), 404),
    (event({"error": {"code": 99999}}), 500),
    (event({"type": "response.failed", "response": {}}), 500),
    (event("not json", "error"), 500),
    (b"event: error\n\n", 500),
]


@pytest.mark.parametrize(("given", "status"), ERRORS)
def test_an_error_in_place_of_content(given: bytes, status: int) -> None:
    reader = read(event(NO_CONTENT[0]), given, event(CONTENT[0]))
    assert reader.error == status
    assert not reader.first_token


def test_a_stream_may_begin_with_a_byte_order_mark() -> None:
    assert read(b"\xef\xbb\xbf", event(delta(content="Hi"))).first_token
    assert read(b"\xef\xbb\xbf" + event({"error": {"code": 503}})).error == 503


def test_an_error_whose_event_is_not_over_when_the_stream_breaks_off() -> None:
    reader = read(event({"error": {"code": 503}}).rstrip())
    reader.close()
    assert reader.error == 503


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\r\r", b"\n\n"])
def test_the_ends_of_lines_may_come_alone(end: bytes) -> None:
    given = event(delta(content="Hi")).rstrip() + end
    for cut in range(len(given)):
        assert read(given[:cut], given[cut:], b"\n").first_token


@pytest.mark.parametrize(
    "given", [{"error": None, **CONTENT[0]}, {"type": "response.created", "error": None}]
)
def test_an_error_that_is_null_is_none(given: Any) -> None:
    assert read(event(given)).error is None


@pytest.mark.parametrize("tail", [b"", event("[DONE]")])
@pytest.mark.parametrize(("given", "status"), [e for e in ERRORS if b'"error"' in e[0]])
def test_an_error_that_ends_a_stream(given: bytes, status: int, tail: bytes) -> None:
    reader = read(event(CONTENT[0]), event(CONTENT[0]), given + tail)
    assert reader.error is None
    reader.close()
    assert reader.error == status


def test_a_text_about_errors_is_none() -> None:
    reader = read(event(CONTENT[0]), event(delta(content='data: {"error": 1}')), event("[DONE]"))
    reader.close()
    assert reader.error is None


# -- usage -----------------------------------------------------------------------------------------


def test_usage_of_a_stream() -> None:
    last = event('{"choices":[],"usage":' + USAGE + "}")
    reader = read(event(CONTENT[0]), last, event("[DONE]"), b": tail\n\n")
    assert reader.close()[0] == BOTH


def test_usage_that_is_null_in_every_event() -> None:
    reader = read(*[event({**CONTENT[0], "usage": None})] * 500, event("[DONE]"))
    assert reader.close()[0] is None


def test_usage_that_is_repeated_counts_as_last_said() -> None:
    early = event({**CONTENT[0], "usage": {"prompt_tokens": 1}})
    reader = read(*[early] * 50, event('{"choices":[],"usage":' + USAGE + "}"))
    assert reader.close()[0] == BOTH


def anthropic(last: dict[str, Any]) -> ReplyReader:
    start = {"input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1}
    return read(
        event({"type": "message_start", "message": {"usage": start}}, "message_start"),
        *[event({"type": "content_block_delta", "delta": {"text": "x" * 500}})] * 400,
        event({"type": "message_delta", "delta": {}, "usage": last}, "message_delta"),
        event({"type": "message_stop"}, "message_stop"),
    )


def test_anthropics_usage_is_said_at_the_start() -> None:
    assert anthropic({"output_tokens": 9}).close()[0] == BOTH
    assert anthropic({"output_tokens": 9, "input_tokens": 20}).close()[0] == BOTH


def test_anthropics_usage_may_be_corrected_at_the_end() -> None:
    last = {"input_tokens": 5, "cache_read_input_tokens": 300, "output_tokens": 9}
    assert anthropic(last).close()[0] == Usage(prompt_tokens=305, cached_tokens=300)


@pytest.mark.parametrize("size", [100, 5_000, 200_000])
@pytest.mark.parametrize("first", [True, False], ids=["usage first", "usage last"])
def test_usage_in_an_event_that_is_longer_than_what_is_kept(size: int, *, first: bool) -> None:
    usage = '"usage":' + USAGE.replace("prompt", "input")
    text = f'"output":"{"x" * size}"'
    parts = (usage, text) if first else (text, usage)
    data = '{"type":"response.completed","response":{' + ",".join(parts) + "}}"
    whole = event(CONTENT[0]) + event(data)
    for step in (10_000, 65_536):
        chunks = [whole[at : at + step] for at in range(0, len(whole), step)]
        assert read(*chunks).close()[0] == BOTH


@pytest.mark.parametrize("first", [True, False], ids=["usage first", "usage last"])
@pytest.mark.parametrize("size", [1_000, 3_000_000])
def test_usage_of_a_long_body(size: int, *, first: bool) -> None:
    parts = ['"usage":' + USAGE, f'"text":"{"x" * size}"']
    whole = ("{" + ",".join(parts if first else reversed(parts)) + "}").encode()
    chunks = [whole[at : at + 65_536] for at in range(0, len(whole), 65_536)]
    assert read(*chunks, events=False).close()[0] == BOTH


@pytest.mark.parametrize("events", [True, False])
def test_memory_is_bounded(*, events: bool) -> None:
    reader = ReplyReader(events=events)
    chunk = event(CONTENT[0]) * 20
    for _ in range(5_000):
        reader.feed(chunk)
        held = sum(map(len, reader._chunks)) + len(reader._head) + len(reader._buffer)
        assert held < 2**21
    reader.close()


# -- ends and ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\r\n\r\n", True),
        (b"data: [DONE]\n\n" + b": tail\n\n" * 100, True),
        (event({"type": "message_stop"}), True),
        (event({"type": "response.completed", "response": {}}), True),
        (event({"type": "response.incomplete", "response": {}}), True),
        (event({"type": "response.in_progress"}), False),
        (event(delta(content="data: [DONE]")), False),
        (event(delta(content='"type": "message_stop"')), False),
        (b"", False),
    ],
)
def test_whether_a_stream_is_over(last: bytes, ended: bool) -> None:
    assert read(event(CONTENT[0]), last).ended is ended
    assert not read(last, events=False).ended


def test_the_id_of_a_stream() -> None:
    response = {"id": "resp_1", "instructions": "x" * 20_000, "output": []}
    created = event({"type": "response.created", "response": response})
    assert read(created, event(CONTENT[0])).close()[1] == "resp_1"
    assert read(created[:30], created[30:]).close()[1] == "resp_1"
    assert read(event(delta(content="x"))).close()[1] is None


def test_the_id_of_a_body() -> None:
    assert read(b'{"id":"resp_1"}', events=False).close()[1] == "resp_1"
    assert read(b'{"id":', b'"resp_1"', b"}", events=False).close()[1] == "resp_1"


EVENTS = [event(one) for one in [*CONTENT, *NO_CONTENT]] + [one for one, _ in ERRORS]


@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=6),
    size=st.integers(1, 50),
    carriage=st.booleans(),
)
def test_pieces_make_no_difference(events: list[bytes], size: int, *, carriage: bool) -> None:
    whole = b"".join(events)
    if carriage:
        whole = whole.replace(b"\n", b"\r\n")
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    one, other = read(whole), read(*pieces)
    assert (one.first_token, one.error) == (other.first_token, other.error)
    assert one.close() == other.close()
    assert one.ended == other.ended


@given(chunks=st.lists(st.binary(max_size=60), max_size=8), events=st.booleans())
def test_any_bytes_at_all(chunks: list[bytes], *, events: bool) -> None:
    reader = read(*chunks, events=events)
    assert reader.ended in (True, False)
    reader.close()
