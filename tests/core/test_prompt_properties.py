"""Properties of prompts, over all the bodies that hypothesis can think of."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefixroute.core.body import Fields
from prefixroute.core.prompt import Cut, KeySource, Prompt
from prefixroute.core.request import read_prompt
from tests.core.bodies import CHAT, MAKERS, TOOL, chat, user

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Few letters: prompts that are nearly the same are the ones that could be mistaken for each other.
few = st.text(alphabet='ab"\x00é', max_size=3)
long = st.builds(
    lambda text, times: text * times, st.text(min_size=1, max_size=4), st.integers(1, 900)
)
texts = few | long
ids = st.lists(st.integers(0, 3), min_size=1, max_size=4)

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
any_text = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=6)
scalars = st.none() | st.booleans() | numbers | any_text
names = st.sampled_from(
    ["role", "content", "type", "text", "name", "tool_calls", "output", "source", "cache_control"]
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(names | any_text, inner, max_size=4)
    ),
    max_leaves=12,
)
field_names = st.sampled_from(sorted(Fields.__struct_fields__))
bodies = st.dictionaries(field_names, values, max_size=5)
paths = st.sampled_from(
    [None, CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/v1/models"]
)
cuts = st.builds(
    Cut, block_bytes=st.integers(1, 2000), window_bytes=st.none() | st.integers(1, 2000)
)


def check_shape(prompt: Prompt) -> None:
    assert len(prompt.chain) == len(prompt.ends)
    assert list(prompt.ends) == sorted(prompt.ends)
    assert prompt.root_blocks <= len(prompt.chain)
    assert all(0 <= key < 2**64 for key in prompt.chain)
    assert len(set(prompt.chain)) == len(prompt.chain)
    assert (prompt.source is KeySource.NONE) == (not prompt.chain)
    if prompt.chain:
        assert prompt.ends[0] >= 0
        assert prompt.ends[-1] <= prompt.size


# -- nothing raises -------------------------------------------------------------------------------


@unhurried
@given(st.binary(max_size=200), paths, cuts)
def test_any_bytes_give_a_prompt(data: bytes, path: str | None, cut: Cut) -> None:
    check_shape(read_prompt(data, path=path, cut=cut))


@unhurried
@given(bodies, paths, cuts, st.none() | any_text)
def test_any_json_gives_a_prompt(
    body: dict[str, Any], path: str | None, cut: Cut, session: str | None
) -> None:
    check_shape(read_prompt(body, path=path, cut=cut, session=session))


@unhurried
@given(st.lists(values, min_size=1, max_size=5))
def test_messages_of_any_kind_have_a_key(messages: list[Any]) -> None:
    prompt = read_prompt({"messages": messages})
    assert prompt.chain
    assert len(prompt.chain) >= prompt.root_blocks >= 1


@unhurried
@given(
    st.one_of(values, st.binary(), st.sets(scalars, max_size=2), st.builds(object)),
    st.one_of(values, st.binary(), st.builds(object)),
    st.one_of(values, st.binary(), st.dictionaries(any_text, values, max_size=2)),
    st.one_of(values, st.binary()),
)
def test_any_objects_give_a_prompt(body: Any, path: Any, headers: Any, session: Any) -> None:
    check_shape(read_prompt(body, path=path, headers=headers, session=session))


# -- one prompt, one chain ------------------------------------------------------------------------


@unhurried
@given(bodies, paths)
def test_a_mapping_agrees_with_its_serialisation(body: dict[str, Any], path: str | None) -> None:
    prompt = read_prompt(body, path=path)
    assert read_prompt(json.dumps(body).encode(), path=path) == prompt
    raw = json.dumps(body, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    assert read_prompt(raw, path=path) == prompt
    try:
        data = msgspec.json.encode(body)
    except UnicodeEncodeError:
        return
    assert read_prompt(data, path=path) == prompt


@unhurried
@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "x"]), texts), min_size=1)
)
def test_a_text_agrees_with_its_one_part(turns: list[tuple[str, str]]) -> None:
    plain = [{"role": role, "content": text} for role, text in turns]
    parts = [
        {"role": role, "content": [{"type": "text", "text": text, "cache_control": {}}]}
        for role, text in turns
    ]
    assert read_prompt(chat(*plain)) == read_prompt(chat(*parts))


@unhurried
@given(texts, st.lists(texts, max_size=3))
def test_a_batch_is_placed_by_its_first_prompt(first: str, others: list[str]) -> None:
    batch = read_prompt({"prompt": [first, *others]})
    if first:
        assert batch.chain == read_prompt(first).chain
    assert batch.size == sum(len(text.encode()) for text in [first, *others])


# -- different prompts, different chains ----------------------------------------------------------

parts = st.lists(few, min_size=2, max_size=3).map(tuple)
calls = st.lists(few, max_size=2).map(tuple)
messages = st.tuples(
    st.sampled_from(["user", "assistant", "system", "tool", ""]),
    st.none() | few,  # name
    st.one_of(st.none(), few, parts),  # content
    calls,
)
prompts = st.tuples(
    st.none() | few,  # model
    st.none() | few,  # salt
    calls,  # tools
    st.lists(messages, min_size=1, max_size=3).map(tuple),
)


def body_of(prompt: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    model, salt, tools, turns = prompt
    return {
        "model": model,
        "cache_salt": salt,
        "tools": [{"name": name} for name in tools],
        "messages": [
            {
                "role": role,
                "name": name,
                "content": [{"type": "text", "text": part} for part in content]
                if isinstance(content, tuple)
                else content,
                "tool_calls": [{"id": call} for call in called],
            }
            for role, name, content, called in turns
        ],
    }


@unhurried
@given(st.lists(prompts, min_size=2, max_size=8, unique=True), st.integers(1, 8))
def test_no_two_chats_share_an_encoding(several: list[Any], block: int) -> None:
    for cut in (Cut(), Cut(block_bytes=block), Cut(window_bytes=10**6)):
        keys = {read_prompt(body_of(prompt), cut=cut).chain[-1] for prompt in several}
        if cut.window_bytes is None:
            assert len(keys) == len(several)
        else:  # root and first message alone
            firsts = {(p[:3], head_of(p[3])) for p in several}
            assert len(keys) == len(firsts)


def head_of(turns: tuple[Any, ...]) -> tuple[Any, ...]:
    count = 0
    while count < len(turns) and turns[count][0] == "system":
        count += 1
    return turns[: count + 1]


@unhurried
@given(
    st.lists(
        st.one_of(
            few.filter(bool),
            ids.map(tuple),
            st.lists(few.filter(bool) | st.integers(0, 3), min_size=2, max_size=4)
            .filter(lambda items: len({type(item) for item in items}) == 2)
            .map(tuple),
        ),
        min_size=2,
        max_size=8,
        unique=True,
    ),
    st.integers(1, 8),
)
def test_no_two_plain_prompts_share_an_encoding(several: list[Any], block: int) -> None:
    for cut in (Cut(), Cut(block_bytes=block), Cut(window_bytes=10**6)):
        keys = {read_prompt({"prompt": prompt}, cut=cut).chain[-1] for prompt in several}
        assert len(keys) == len(several)


@unhurried
@given(st.lists(st.none() | few, min_size=2, max_size=6, unique=True))
def test_sessions_and_prefix_ids_keep_apart(chosen: list[str | None]) -> None:
    named = {read_prompt(chat(user("x")), session=name).chain for name in chosen}
    assert len(named) == len({name or None for name in chosen})
    keyed = {read_prompt(chat(user("x"), prompt_cache_key=name)).chain for name in chosen}
    assert len(keyed) == len({name or None for name in chosen})


@unhurried
@given(st.text(min_size=1, max_size=3000), st.integers(1, 700), st.data())
def test_a_block_in_common_means_equal_up_to_there(text: str, block: int, data: Any) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    other = text[:at] + ("b" if text[at] == "a" else "a") + text[at + 1 :]
    same = len(text[:at].encode())
    for make in MAKERS:
        one, two = (read_prompt(make(each), cut=Cut(block_bytes=block)) for each in (text, other))
        shared = [end for key, end in zip(one.chain, one.ends, strict=True) if key in two.chain]
        assert max(shared) <= same
        common = [end for end, key in zip(one.ends, one.chain, strict=True) if end <= same]
        assert len(shared) == len(common)


# -- growing --------------------------------------------------------------------------------------

turns = st.one_of(
    st.builds(user, texts | st.lists(texts.map(lambda text: {"type": "text", "text": text}))),
    texts.map(lambda text: {"role": "assistant", "content": text}),
    texts.map(
        lambda text: {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": text}}],
        }
    ),
    texts.map(lambda text: {"role": "tool", "tool_call_id": "c", "content": text}),
)


@unhurried
@given(
    st.none() | texts,
    st.booleans(),
    st.lists(turns, min_size=2, max_size=8),
    st.integers(1, 1500),
    st.sampled_from(["message", "field", "input"]),
)
def test_a_growing_chat_extends_its_chain(
    system: str | None, tools: bool, given_turns: list[Any], block: int, shape: str
) -> None:
    def prompt(count: int, cut: Cut) -> Prompt:
        body: dict[str, Any] = {"model": "m", "tools": [TOOL] if tools else None}
        turns = given_turns[:count]
        if shape == "input":
            return read_prompt({**body, "instructions": system, "input": turns}, cut=cut)
        if shape == "field":
            return read_prompt({**body, "system": system, "messages": turns}, cut=cut)
        leading = [] if system is None else [{"role": "system", "content": system}]
        return read_prompt({**body, "messages": [*leading, *turns]}, cut=cut)

    for cut in (Cut(), Cut(block_bytes=block)):
        for count in range(1, len(given_turns)):
            shorter, longer = prompt(count, cut), prompt(count + 1, cut)
            assert longer.chain[: len(shorter.chain)] == shorter.chain
            assert longer.ends[: len(shorter.ends)] == shorter.ends
            assert len(longer.chain) > len(shorter.chain)
            assert longer.root_blocks == shorter.root_blocks
    window = Cut(window_bytes=block)
    assert len({prompt(count + 1, window).chain for count in range(len(given_turns))}) == 1
