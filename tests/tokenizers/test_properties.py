"""A chain made of tokens keeps what the chain of bytes promises, over whatever hypothesis finds."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute.core.pieces import Pieces
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.rendered import split_rendered
from tests.core.bodies import TOOL
from tests.core.test_prompt_properties import (
    bodies,
    body_of,
    check_shape,
    cuts,
    few,
    paths,
    prompts,
    texts,
    turns,
    unhurried,
)
from tests.tokenizers.support import TEMPLATES, Letters, Templated, chatml, flat, read

templates = st.sampled_from(sorted(TEMPLATES))

# The templates that go on as a chat goes on, whatever its messages hold.
STABLE = ["chatml", "llama2", "llama3"]
words = st.text(alphabet="abc <|im_end|>\n", max_size=12)
said = st.one_of(words, texts)
messages = st.builds(
    lambda first, rest: [("user", first), *rest],  # llama2 needs one to put the system prompt into
    said,
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), said), min_size=1),
)


@unhurried
@given(bodies, paths, cuts, st.none() | few, st.none() | templates)
def test_any_json_gives_a_prompt(
    body: dict[str, Any], path: str | None, cut: Cut, session: str | None, template: str | None
) -> None:
    tokenizer = Letters() if template is None else Templated(TEMPLATES[template])
    prompt = read(body, tokenizer, path=path, cut=cut, session=session)
    check_shape(prompt)
    assert read(json.dumps(body).encode(), tokenizer, path=path, cut=cut, session=session) == prompt
    assert prompt.counted or not prompt.chain


@unhurried
@given(
    st.none() | texts, st.booleans(), st.lists(turns, min_size=2, max_size=8), st.integers(1, 900)
)
def test_a_growing_chat_extends_its_chain(
    system: str | None, tools: bool, given_turns: list[Any], block: int
) -> None:
    def prompt(count: int, cut: Cut) -> Prompt:
        leading = [] if system is None else [{"role": "system", "content": system}]
        body = {"tools": [TOOL] if tools else None, "messages": [*leading, *given_turns[:count]]}
        return read(body, Letters(), cut=cut)

    for cut in (Cut(), Cut(block_bytes=block)):
        check_growth([prompt(count + 1, cut) for count in range(len(given_turns))])


@unhurried
@given(st.none() | words, messages, st.integers(1, 900), st.sampled_from(STABLE))
def test_so_does_one_that_is_rendered(
    system: str | None, given_turns: list[tuple[str, str]], block: int, template: str
) -> None:
    leading = [] if system is None else [("system", system)]
    bodies = [
        {
            "messages": [
                {"role": role, "content": text} for role, text in [*leading, *given_turns[:count]]
            ]
        }
        for count in range(1, len(given_turns) + 1)
    ]
    if not whole_prompts_extend(bodies, template):
        return  # the engine has to begin anew as well
    for cut in (Cut(), Cut(block_bytes=block)):
        check_growth([read(body, Templated(TEMPLATES[template]), cut=cut) for body in bodies])


def whole_prompts_extend(bodies: list[dict[str, Any]], template: str) -> bool:
    """Whether what the engine computes for each turn begins with the turns before it."""
    for body in bodies:
        rendered = TEMPLATES[template](body["messages"])
        for text in (flat(message["content"]).strip() for message in body["messages"]):
            if text and text not in rendered:
                return False
    return True


def check_growth(grown: list[Prompt]) -> None:
    for shorter, longer in pairwise(grown):
        assert longer.chain[: len(shorter.chain)] == shorter.chain
        assert longer.ends[: len(shorter.ends)] == shorter.ends
        assert len(longer.chain) > len(shorter.chain)
        assert longer.root_blocks == shorter.root_blocks
        assert shorter.ends[-1] <= shorter.size


@unhurried
@given(st.lists(prompts, min_size=2, max_size=8, unique=True), st.integers(1, 8))
def test_no_two_chats_share_an_encoding(several: list[Any], block: int) -> None:
    for cut in (Cut(), Cut(block_bytes=block)):
        keys = {read(body_of(prompt), Letters(), cut=cut).chain[-1] for prompt in several}
        assert len(keys) == len(several)


@unhurried
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["user", "assistant"]), few), min_size=1, max_size=3
        ).map(tuple),
        min_size=2,
        max_size=6,
        unique=True,
    )
)
def test_nor_do_two_that_render_differently(several: list[Any]) -> None:
    rendered = {}
    for turns_ in several:
        body = {"messages": [{"role": role, "content": text} for role, text in turns_]}
        rendered[chatml(body["messages"])] = read(body, Templated(chatml)).chain[-1]
    assert len(set(rendered.values())) == len(rendered)


@unhurried
@given(messages, st.none() | words, templates)
def test_the_pieces_of_a_rendered_chat_are_all_of_it(
    given_turns: list[tuple[str, str]], system: str | None, template: str
) -> None:
    leading = [] if system is None else [("system", system)]
    chat = [{"role": role, "content": text} for role, text in [*leading, *given_turns]]
    text = TEMPLATES[template](chat)
    root, pieces, tail = split_rendered(text, chat, {})
    assert "".join([root, *pieces, tail]) == text
    assert len(pieces) == len(given_turns)


@unhurried
@given(st.integers(0, 3), st.data())
def test_texts_that_start_alike_are_cut_alike(seed: int, data: Any) -> None:
    unit = st.sampled_from(["word ", "a", "  ", "中文。", "😀", "x.y", "1,", "\n", " " * 1500])
    text = "".join(data.draw(st.lists(unit, min_size=200, max_size=400))) * 20
    longer = text + data.draw(st.text(max_size=20)) * 3000
    pieces = Pieces(lambda text: [len(text), seed], lambda kind, why: None)
    one, two = list(pieces.runs(text.encode())), list(pieces.runs(longer.encode()))
    assert b"".join(piece for _, piece in one) == text.encode()
    assert two[: len(one) - 1] == one[:-1]


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_an_ordinary_chat_has_a_boundary_for_each_message(template: str) -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "You are kind.\n"},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hello!"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "?"}],
        },
    ]
    root, pieces, tail = split_rendered(TEMPLATES[template](chat), chat, {})
    assert "You are kind." in root
    assert "Hello" not in root
    contents = ["Hello?", "Hello!", "?"]
    assert all(c in piece[-8:] for piece, c in zip(pieces, contents, strict=True))
    assert "?" not in tail
