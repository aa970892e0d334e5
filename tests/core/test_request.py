"""From a request of any shape to its prompt."""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict, UserDict
from types import MappingProxyType
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from prefixroute.core.prompt import Cut, KeySource, Prompt
from prefixroute.core.request import read_prompt
from tests.core.bodies import CHAT, MAKERS, TOOL, chat, key, keys_differ, read, user

GENERATE = "/generate"
WINDOW = Cut(window_bytes=100)


class Model:
    """What an SDK returns: an object with pydantic's method."""

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, object]:
        assert mode == "json"
        assert exclude_unset
        return self._fields


class TestShapes:
    def test_chat(self) -> None:
        prompt = read(chat(user("hi"), stream=True))
        assert prompt.source is KeySource.MESSAGES
        assert prompt.model == "m"
        assert prompt.stream
        assert (prompt.root_blocks, len(prompt.chain)) == (1, 2)
        assert prompt == read(chat(user("hi"), stream=True), path=CHAT)

    @pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/completions", None])
    def test_completions(self, path: str | None) -> None:
        prompt = read({"prompt": "hello"}, path=path)
        assert prompt.source is KeySource.TEXT
        assert prompt.ends == (0, 5)
        assert prompt == read_prompt("hello")

    @pytest.mark.parametrize("field", ["text", "inputs", "prompt"])
    @pytest.mark.parametrize("path", [GENERATE, "/generate_stream", "/completion", None])
    def test_generate(self, field: str, path: str | None) -> None:
        assert read({field: "hello"}, path=path) == read_prompt("hello")

    @pytest.mark.parametrize("field", ["input_ids", "prompt"])
    def test_generate_by_token_ids(self, field: str) -> None:
        prompt = read({field: [1, 2, 3], "text": None}, path=GENERATE)
        assert prompt.source is KeySource.TOKENS
        assert (prompt.size, prompt.tokens, prompt.counted) == (3, 3, True)
        assert prompt == read_prompt([1, 2, 3])

    def test_the_first_field_with_a_prompt_counts(self) -> None:
        assert read({"text": "", "input_ids": [1, 2]}, path=GENERATE) == read_prompt([1, 2])

    def test_images_beside_a_text(self) -> None:
        bodies = [{"text": "what is it?", "image_data": data} for data in ("a", ["a", "b"], None)]
        assert keys_differ(*bodies, path=GENERATE)
        assert key(bodies[2], path=GENERATE) == read_prompt("what is it?").chain[-1]

    def test_responses(self) -> None:
        prompt = read({"input": "hi", "instructions": "be brief"})
        assert prompt.source is KeySource.INPUT
        assert prompt.root_blocks == 1
        assert prompt == read({"input": "hi", "instructions": "be brief"}, path="/v1/responses")

    def test_messages_of_anthropic(self) -> None:
        prompt = read({"system": "be brief", "messages": [user("hi")]}, path="/v1/messages")
        assert prompt.source is KeySource.MESSAGES
        other = read({"system": "be long", "messages": [user("hi")]}, path="/v1/messages")
        assert not set(prompt.chain) & set(other.chain)

    @pytest.mark.parametrize(
        ("body", "source"),
        [
            ({"messages": [user("x")], "prompt": "y", "input": "z"}, KeySource.MESSAGES),
            ({"messages": None, "prompt": "y", "input": "z"}, KeySource.TEXT),
            ({"prompt": {"id": "pmpt_1"}, "input": "z"}, KeySource.INPUT),
            ({"prompt": {"prompt_string": "x"}}, KeySource.TEXT),
            ({"input": "z", "text": {"format": {"type": "text"}}}, KeySource.INPUT),
            ({"text": "z"}, KeySource.TEXT),
            ({"input": [1, 2]}, KeySource.NONE),
            ({"input": [[1, 2], [3]]}, KeySource.NONE),
            ({}, KeySource.NONE),
        ],
    )
    def test_without_a_path_the_fields_tell(self, body: Any, source: KeySource) -> None:
        assert read(body).source is source

    def test_a_prompt_is_returned_as_it_is(self) -> None:
        prompt = Prompt.from_blocks([1, 2], block_tokens=512)
        assert read_prompt(prompt, path="/v1/models", session="s") is prompt


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "/v1/chat/completions",
            "/v1/v1/chat/completions",
            "/v1/chat/completions/",
            "v1/chat/completions",
            "chat/completions",
            "/v1/chat/completions?api-version=1&x=/v1/embeddings",
            "/v1/chat/completions#x",
            "/openai/deployments/gpt/chat/completions?api-version=2024-10-21",
            "http://h:8000/sub/v1/chat/completions?x=1",
            b"/v1/chat/completions?x=1",
            httpx.URL("http://h/v1/chat/completions?x=1"),
            httpx.URL("http://h/v1/chat/completions?x=1").raw_path,
            "",
            "/",
            "?x",
            b"",
            None,
        ],
    )
    def test_of_chats(self, path: Any) -> None:
        assert read_prompt(chat(user("hi")), path=path) == read(chat(user("hi")))

    @pytest.mark.parametrize(
        "path",
        [
            "/v1/models",
            "/v1/embeddings",
            "/v1/messages/count_tokens",
            "/v1/chat/completions/render",
            "/v1/audio/transcriptions",
            "/tokenize",
            "/xgenerate",
            "/v1/classify",
            "/metrics",
            "\ud800",
            b"\xff",
            5,
        ],
    )
    def test_of_anything_else_have_no_key(self, path: Any) -> None:
        body = chat(user("hi"), input="x", prompt="x", text="x", session_id="s")
        prompt = read_prompt(body, path=path, session="s")
        assert prompt == Prompt(model="m")

    def test_of_another_shape_have_no_key(self) -> None:
        assert read({"prompt": "x"}, path=CHAT).chain == ()
        assert read(chat(user("x")), path="/v1/completions").chain == ()

    def test_a_text_is_one_on_every_path_of_prompts(self) -> None:
        assert read_prompt("x", path=CHAT) == read_prompt("x", path=GENERATE) == read_prompt("x")
        assert read_prompt("x", path="/v1/embeddings").chain == ()


class TestBodies:
    @pytest.mark.parametrize(
        "wrap",
        [
            dict,
            OrderedDict,
            UserDict,
            MappingProxyType,
            lambda body: Model(**body),
            lambda body: json.dumps(body).encode(),
            lambda body: json.dumps(body, indent=4, ensure_ascii=False).encode(),
            msgspec.json.encode,
            lambda body: bytearray(json.dumps(body).encode()),
            lambda body: memoryview(json.dumps(body).encode()),
            lambda body: memoryview(bytearray(json.dumps(body).encode()[::-1]))[::-1],
            lambda body: b"\xef\xbb\xbf" + json.dumps(body).encode(),
            lambda body: b" \r\n" + json.dumps(body).encode() + b"\t\n",
            lambda body: json.dumps(body).encode("utf-16"),
            lambda body: json.dumps(body).encode("utf-16-le"),
            lambda body: json.dumps(body).encode("utf-32"),
            lambda body: json.dumps({"top_p": float("nan"), **body}).encode(),
            lambda body: json.dumps({"seed": 10**400, **body}).encode(),
            lambda body: json.dumps({"user": "\ud800", **body}).encode(),
            lambda body: b'{"messages": [], "model": "x", ' + json.dumps(body).encode()[1:],
            lambda body: json.dumps(body).encode().replace(b'"messages"', b'"mess\\u0061ges"'),
            lambda body: {**body, "messages": tuple(map(MappingProxyType, body["messages"]))},
            lambda body: {**body, "messages": [Model(**each) for each in body["messages"]]},
            lambda body: {**body, "logit_bias": {1: 2}, "extra": object(), "user": "\ud800"},
            lambda body: {**body, (1, 2): 3, None: 4},
        ],
    )
    def test_of_every_kind_give_the_same(self, wrap: Any) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        body = chat(
            {"role": "system", "content": "é" * 700},
            user("ünï😀"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "sunny", "tool_call_id": "c"},
            tools=[TOOL],
        )
        prompt = read_prompt(wrap(body))
        assert len(prompt.chain) == 5
        assert prompt == read(body)

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
    def test_numbers_that_are_none_are_null(self, value: str) -> None:
        data = b'{"messages":["x", %b],"cache_salt":%b}' % ((value.encode(),) * 2)
        number = float(value)
        assert read_prompt(data) == read({"messages": ["x", None], "cache_salt": None})
        assert read_prompt(data) == read({"messages": ["x", number], "cache_salt": number})

    def test_text_of_a_kind_of_its_own_is_its_text(self) -> None:
        class Loud(str):
            __slots__ = ()

            def __str__(self) -> str:
                return self.upper()

        for value in ("hi", "hi\ud800"):
            body = chat(MappingProxyType(user(Loud(value))), user(UserDict(a=[Loud(value)])))
            plain = chat(user(value), user({"a": [value]}))
            assert read_prompt(body, session=Loud("s")) == read(plain, session="s")
            assert read_prompt(Loud(value)) == read_prompt(value)

    def test_a_mapping_that_contains_itself_has_no_key(self) -> None:
        body: dict[str, Any] = chat(user("x"))
        body["messages"].append(body)
        assert read_prompt(body) == Prompt()
        unread: dict[str, Any] = chat(user("x"))
        unread["metadata"] = unread
        assert read_prompt(unread) == read(chat(user("x")))

    @pytest.mark.parametrize("depth", [10, 100, 100_000])
    @pytest.mark.parametrize("field", ["tools", "messages", "metadata"])
    def test_deep_nesting(self, depth: int, field: str) -> None:
        nested = b'{"content":[' * depth + b"]}" * depth
        data = b'{"messages":["x"],"%b":[%b]}' % (field.encode(), nested)
        assert isinstance(read_prompt(data), Prompt)
        assert (read_prompt(data).chain != ()) == (depth < 1000)

    def test_a_mapping_that_fails_has_no_key(self) -> None:
        class Broken(UserDict[str, object]):
            def __getitem__(self, name: str) -> object:
                raise RuntimeError(name)

        assert read_prompt(Broken(messages=["x"])) == Prompt()

    @pytest.mark.parametrize("model", [3, 1.5, True, [], {}, ["m"], {"a": 1}, None, ""])
    def test_a_model_that_is_no_name(self, model: object) -> None:
        prompt = read(chat(user("hi"), model=model))
        assert prompt.model is None
        assert prompt.chain

    def test_half_a_surrogate_pair_anywhere(self) -> None:
        half = "\ud83d"
        message = {"role": half, "content": half, "name": half, "tool_call_id": half}
        tool = {"type": "function", "function": {"name": half, "parameters": {half: half}}}
        body = chat(message, {"role": "system", "content": half}, model=half, tools=[tool])
        prompt = read(body, headers={"x-session-id": half}, session=None)
        assert prompt.model == half
        assert prompt.session == half
        assert keys_differ(body, chat(message, model=half), chat(message, model="\ude00"))
        assert read_prompt(half).chain != read_prompt("\ude00").chain

    def test_a_pair_in_two_halves_is_one_character(self) -> None:
        assert read(chat(user("\ud83d\ude00"))) == read(chat(user("😀")))
        assert read_prompt("\ud83d\ude00") == read_prompt("😀")


class TestDirectPrompts:
    @pytest.mark.parametrize(
        "ids", [(1, 2, 3), range(1, 4), array("i", [1, 2, 3]), array("q", [1, 2, 3])]
    )
    def test_token_ids_of_every_kind(self, ids: Any) -> None:
        assert read_prompt(ids) == read_prompt([1, 2, 3]) == read({"prompt": [1, 2, 3]})

    def test_an_array_of_numpys(self) -> None:
        class Array:
            def __init__(self, items: list[Any]) -> None:
                self._items = items

            def tolist(self) -> list[Any]:
                return self._items

        ids: Any = Array([1, 2, 3])
        assert read_prompt(ids) == read_prompt([1, 2, 3])
        nested: Any = [Array([1, 2, 3]), Array([4])]
        assert read_prompt(nested) == read_prompt([[1, 2, 3], [4]])
        assert read_prompt({"prompt": ids}) == read_prompt([1, 2, 3])

    @pytest.mark.parametrize("body", [[], (), "", [[]], [""], ["", []], None, {}, b"", range(0)])
    def test_nothing_has_no_key_unless_there_is_a_session(self, body: Any) -> None:
        assert read_prompt(body) == Prompt()
        named = read_prompt(body, session="s")
        assert named.source is KeySource.SESSION
        assert named.chain == read_prompt({"messages": []}, session="s").chain

    @pytest.mark.parametrize("body", [5, 1.5, True, object(), {1, 2}, iter("ab"), [None], [{}]])
    def test_nonsense_has_no_key(self, body: Any) -> None:
        assert read_prompt(body) == Prompt()


class TestIds:
    @pytest.mark.parametrize(
        "headers",
        [
            {"x-session-id": "s"},
            {"X-Session-ID": "s"},
            {"X-SESSION-ID": " s "},
            [("x-session-id", "s")],
            [("accept", "*/*"), ["X-Session-Id", "s"]],
            [(b"x-session-id", b"s")],
            ((b"X-Session-Id", "s"),),
            iter([("x-session-id", "s"), ("x-session-id", "t")]),
            httpx.Headers({"X-Session-Id": "s", "Host": "h"}),
            MappingProxyType({"x-session-id": "s"}),
            UserDict({"x-session-id": "s"}),
            [(None, None), ("x-session-id", "s"), 5],
            {5: 6, "x-session-id": "s"},
        ],
    )
    def test_a_session_header_in_any_spelling(self, headers: Any) -> None:
        prompt = read_prompt(chat(user("hi")), headers=headers)
        assert prompt.session == "s"
        assert prompt == read(chat(user("hi")), session="s")

    @pytest.mark.parametrize("headers", [None, {}, [], 5, "x-session-id", [5], [()], {"a": None}])
    def test_headers_that_cannot_be_read_cost_nothing_else(self, headers: Any) -> None:
        assert read_prompt(chat(user("hi")), headers=headers) == read(chat(user("hi")))

    def test_argument_before_header_before_body(self) -> None:
        body = chat(user("hi"), session_id="body")
        header = {"x-session-id": "header"}
        assert read(body, headers=header, session="argument").session == "argument"
        assert read(body, headers=header).session == "header"
        assert read(body, headers={"x-session-id": ""}, session="").session == "body"

    @pytest.mark.parametrize(
        "session", [7, "7", b"7", pytest.param(UUID(int=7), id="uuid"), 7.5, "\ud800", "é"]
    )
    def test_a_session_of_any_kind(self, session: Any) -> None:
        prompt = read_prompt(chat(user("hi")), session=session)
        assert isinstance(prompt.session, str)
        assert prompt == read(chat(user("hi")), session=prompt.session)

    @pytest.mark.parametrize("session", [None, "", True, {}, [], {"id": "x"}])
    def test_what_is_no_session(self, session: Any) -> None:
        assert read(chat(user("hi"), session_id=session)) == read(chat(user("hi")))
        assert read_prompt(chat(user("hi")), session=session) == read(chat(user("hi")))

    def test_a_session_chain_is_the_root_and_one_block(self) -> None:
        system = {"role": "system", "content": "be brief"}
        plain = read(chat(system, user("hi"), tools=[TOOL]))
        first = read(chat(system, user("hi"), tools=[TOOL]), session="s")
        later = read(chat(system, user("other " * 999), user("x"), tools=[TOOL]), session="s")
        assert first.chain == later.chain
        assert first.source is KeySource.SESSION
        assert first.chain[:-1] == plain.chain[: plain.root_blocks]
        assert first.root_blocks == len(first.chain) - 1 == 1
        assert first.size == plain.size < later.size
        assert first.ends[-1] == first.size
        assert first.chain != read(chat(system, user("hi"), tools=[TOOL]), session="t").chain
        assert first.chain != read(chat(system, user("hi")), session="s").chain

    def test_a_session_of_a_long_system_prompt(self) -> None:
        system = {"role": "system", "content": "x" * 5000}
        prompt = read(chat(system, user("hi")), session="s")
        assert prompt.root_blocks == 5
        assert prompt.chain[:5] == read(chat(system, user("hi"))).chain[:5]

    @pytest.mark.parametrize("messages", [None, [], "nonsense", 5])
    def test_a_session_keeps_its_root_without_messages(self, messages: object) -> None:
        body = {"model": "m", "system": "be brief", "tools": [TOOL], "messages": messages}
        full = {**body, "messages": [user("x")]}
        named = read(body, path="/v1/messages", session="s")
        assert named.chain == read(full, path="/v1/messages", session="s").chain
        assert read(body, path="/v1/messages").chain == ()

    def test_a_prefix_id_separates(self) -> None:
        bodies = [chat(user("hi"), prompt_cache_key=name) for name in (None, "a", "b")]
        assert keys_differ(*bodies)
        assert len({read(body).chain[0] for body in bodies}) == 3
        assert read(bodies[1]) == read(bodies[0], headers={"X-Prefix-Id": "a"})
        assert read(bodies[2], headers={"x-prefix-id": "a"}) == read(bodies[1])
        assert keys_differ(*bodies, cut=WINDOW)
        assert keys_differ(*bodies, session="s")

    def test_pins(self) -> None:
        path = "/v1/responses"
        assert read({"input": "x", "previous_response_id": "resp_1"}, path=path).pin == "resp_1"
        assert read({"input": "x", "conversation": "conv_1"}, path=path).pin == "conv_1"
        assert read({"input": "x", "conversation": {"id": "conv_1"}}, path=path).pin == "conv_1"
        only = read({"previous_response_id": "resp_1"}, path=path)
        assert (only.pin, only.chain) == ("resp_1", ())
        plain = read({"input": "x"}, path=path)
        assert plain.pin is None
        assert read({"input": "x", "previous_response_id": "r"}, path=path).chain == plain.chain

    @pytest.mark.parametrize("pin", [None, 5, "", {}, [], {"id": 5}, {"id": None}, True])
    def test_what_is_no_pin(self, pin: object) -> None:
        body = {"input": "x", "previous_response_id": pin, "conversation": pin}
        assert read(body) == read({"input": "x"})

    @pytest.mark.parametrize(
        ("path", "pin"),
        [
            ("/v1/responses/resp_1", "resp_1"),
            (b"/v1/responses/resp_1/cancel?x=1", "resp_1"),
            ("/v1/responses/resp_1/input_items", "resp_1"),
            ("/v1/conversations/conv_1/items", "conv_1"),
            ("/v1/responses", None),
            ("/v1/responses/", None),
            ("/v1/models/responses", None),
        ],
    )
    def test_what_is_stored_is_asked_for_where_it_is(self, path: Any, pin: str | None) -> None:
        assert read_prompt(None, path=path) == Prompt(pin=pin)
        assert read_prompt(b"", path=path) == Prompt(pin=pin)


class TestWhatCounts:
    @pytest.mark.parametrize(
        "field",
        [
            "model",
            "lora",
            "lora_path",
            "lora_request",
            "adapter_id",
            "cache_salt",
            "extra_key",
            "chat_template",
            "chat_template_kwargs",
            "tools",
            "functions",
            "documents",
            "system",
        ],
    )
    def test_fields_of_the_root(self, field: str) -> None:
        values: list[object] = ["a", "b", "", 3, "3", {"a": 1}, [{"a": 1}], True]
        bodies = [{"messages": [user("x")], field: value} for value in values]
        without = {"messages": [user("x")]}
        assert keys_differ(*bodies, without)
        assert len({read(body).chain[0] for body in [*bodies, without]}) == len(values) + 1
        assert keys_differ(*bodies, without, cut=WINDOW)
        assert read({**without, field: None}) == read(without)
        assert read({**without, field: []}).chain == read(without).chain

    def test_values_do_not_slip_from_one_field_to_another(self) -> None:
        assert keys_differ(
            *({"prompt": "x", field: "a"} for field in ("model", "cache_salt", "lora_path")),
            {"prompt": "x", "prompt_cache_key": "a"},
            {"prompt": "ax"},
            {"prompt": "x", "model": "a", "cache_salt": "a"},
        )

    def test_sampling_parameters_do_not(self) -> None:
        plain = read(chat(user("hi")))
        for name in ("temperature", "top_p", "max_tokens", "n", "seed", "stop", "logprobs", "user"):
            assert read(chat(user("hi"), **{name: 1})) == plain
        assert read(chat(user("hi"), stream=True)).chain == plain.chain

    def test_tools_are_of_chats_alone(self) -> None:
        assert read({"prompt": "x", "tools": [TOOL], "system": "y"}) == read_prompt("x")

    def test_tools_stay_in_order(self) -> None:
        other = {"type": "function", "function": {"name": "other"}}
        assert keys_differ(
            chat(user("x"), tools=[TOOL, other]), chat(user("x"), tools=[other, TOOL])
        )
        swapped = {"function": TOOL["function"], "type": "function"}
        assert keys_differ(chat(user("x"), tools=[TOOL]), chat(user("x"), tools=[swapped]))


class TestSizes:
    def test_of_a_chat(self) -> None:
        prompt = read(chat({"role": "system", "content": "x" * 100}, user("y" * 50), user("é")))
        assert prompt.ends == (116, 182, 200)
        assert prompt.size == 200
        assert prompt.tokens == 50

    def test_of_a_root_without_text(self) -> None:
        assert read(chat(user("x"))).ends == (0, 17)

    def test_of_a_text(self) -> None:
        prompt = read_prompt("x" * 2500)
        assert prompt.ends == (0, 128, 256, 512, 1024, 2048, 2500)
        small = read_prompt("x" * 2500, cut=Cut(block_bytes=300))
        assert small.ends[:6] == (0, 128, 256, 300, 600, 900)

    def test_of_token_ids(self) -> None:
        prompt = read_prompt(list(range(700)))
        assert prompt.ends == (0, 32, 64, 128, 256, 512, 700)
        assert (prompt.size, prompt.tokens) == (700, 700)

    def test_of_tools(self) -> None:
        data = json.dumps([TOOL], separators=(",", ":"))
        assert read(chat(user("x"), tools=[TOOL])).ends[0] == len(data) + 16

    def test_of_a_batch(self) -> None:
        prompt = read({"prompt": ["x" * 10, "y" * 20, "z" * 30]})
        assert prompt.chain == read_prompt("x" * 10).chain
        assert prompt.ends == (0, 10)
        assert prompt.size == 60
        assert prompt.batch
        assert read({"prompt": [[1, 2], [3]]}).batch
        assert not read({"prompt": ["x" * 10]}).batch
        assert not read({"prompt": [1, 2, 3]}).batch
        assert read({"prompt": [[1, 2], [3]]}).size == 3
        assert read({"prompt": [[1, 2], "x" * 40]}).size == 12
        assert read({"prompt": ["x" * 40, [1, 2]]}).size == 48

    def test_of_one_window(self) -> None:
        prompt = read(chat(user("x" * 500), user("y")), cut=WINDOW)
        assert prompt.ends == (533,)
        assert prompt.size == 533
        batch = read({"prompt": ["x" * 10, "y" * 20]}, cut=WINDOW)
        assert (batch.ends, batch.size) == ((10,), 30)


class TestWindow:
    def test_is_one_key_of_root_and_first_message(self) -> None:
        messages = [{"role": "system", "content": "s" * 60}, user("hi"), user("there")]
        turns = [read(chat(*messages[:n]), cut=WINDOW) for n in (2, 3)]
        assert len(turns[0].chain) == 1
        assert turns[0].chain == turns[1].chain
        other = [messages[0], user("ho")]
        assert read(chat(*other), cut=WINDOW).chain != turns[0].chain

    def test_equal_first_bytes_are_an_equal_key(self) -> None:
        for make in MAKERS:
            full = key(make("a" * 100), cut=WINDOW)
            assert key(make("a" * 100 + "b"), cut=WINDOW) == full
            assert key(make("a" * 300), cut=WINDOW) == full
            assert keys_differ(
                *(make(text) for text in ("a" * 99 + "b", "b" + "a" * 99, "a" * 99, "a", "b")),
                make("a" * 100),
                cut=WINDOW,
            )

    def test_a_long_system_prompt_fills_it(self) -> None:
        system = {"role": "system", "content": "s" * 100}
        assert key(chat(system, user("a")), cut=WINDOW) == key(chat(system, user("b")), cut=WINDOW)

    def test_of_token_ids(self) -> None:
        ids = list(range(25))
        assert key({"prompt": ids}, cut=WINDOW) == key({"prompt": [*ids, 1]}, cut=WINDOW)
        assert keys_differ({"prompt": ids}, {"prompt": ids[:24]}, {"prompt": [1, *ids]}, cut=WINDOW)

    def test_a_session_is_one_key_too(self) -> None:
        system = {"role": "system", "content": "s" * 500}
        one = [key(chat(system, user(text)), cut=WINDOW, session="s") for text in ("a", "b")]
        assert one[0] == one[1]
        assert one[0] != key(chat(system, user("a")), cut=WINDOW, session="t")
        assert len(read(chat(system, user("a")), cut=WINDOW, session="s").chain) == 1
