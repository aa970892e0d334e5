"""Answers: deterministic, as long as they may be, and valid where JSON is asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixroute.testing import EngineModel, RenderedPrompt
from prefixroute.testing.answers import (
    CallTool,
    Finish,
    Limits,
    WriteJson,
    WriteText,
    minimal_json,
    write_answer,
)

MODEL = EngineModel(output_tokens=10)
PROMPT = RenderedPrompt(text=b"Hello")


def test_the_same_prompt_has_the_same_answer() -> None:
    def text(prompt: bytes, seed: int = 0) -> str:
        rendered = RenderedPrompt(text=prompt)
        return write_answer(rendered, WriteText(), Limits(), MODEL, seed).text

    assert text(b"a") == text(b"a")
    assert len({text(b"a"), text(b"b"), text(b"a", seed=1)}) == 3


@settings(deadline=None)
@given(
    st.none() | st.integers(1, 50),
    st.integers(0, 50),
    st.booleans(),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_lengths(
    most: int | None, least: int, ignore_eos: bool, token_bytes: int, per_event: int
) -> None:
    model = EngineModel(output_tokens=10, bytes_per_token=token_bytes, tokens_per_event=per_event)
    limits = Limits(most_tokens=most, least_tokens=least, ignore_eos=ignore_eos)
    answer = write_answer(PROMPT, WriteText(), limits, model, 0)
    wanted = max(10, least)
    if most is not None:
        wanted = most if ignore_eos else min(most, wanted)
    assert answer.tokens == wanted
    assert len(answer.rendered) == wanted * token_bytes
    assert "".join(piece for _, piece in answer.pieces) == answer.text
    assert len(answer.pieces) == -(-wanted // per_event)
    assert answer.pieces[-1][0] == wanted
    is_cut = most is not None and (ignore_eos or most < max(10, least))
    assert answer.finish is (Finish.LENGTH if is_cut else Finish.STOP)


def test_a_tool_is_called() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    answer = write_answer(PROMPT, CallTool(name="look", schema=schema), Limits(), MODEL, 0)
    assert (answer.tool, answer.finish) == ("look", Finish.TOOL)
    assert json.loads(answer.text) == {"q": ""}
    assert b"look" in answer.rendered


def test_json_can_be_cut() -> None:
    schema = {"const": "x" * 100}
    answer = write_answer(PROMPT, WriteJson(schema=schema), Limits(most_tokens=2), MODEL, 0)
    assert answer.finish is Finish.LENGTH
    assert answer.tokens == 2


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        (True, {}),
        (None, {}),
        ({"type": "string"}, ""),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": ["integer", "null"]}, 0),
        ({"type": "integer", "minimum": 5, "maximum": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 0.5}, 1),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2}, [None, None]),
        ({"type": "array"}, []),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": None}, None),
        ({"default": 7}, 7),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        (
            {
                "allOf": [
                    {"properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"b": {"const": 2}}, "required": ["b"]},
                ]
            },
            {"a": 1, "b": 2},
        ),
        ({"allOf": [{"type": "string"}]}, ""),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "boolean"}}}, False),
        ({"$ref": "#/missing"}, {}),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"a": None}),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, {}),
    ],
)
def test_minimal_json(schema: object, expected: object) -> None:
    assert minimal_json(schema) == expected


def test_a_schema_that_recurs_without_end_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert "null" in json.dumps(minimal_json(node))
