"""What of a message counts, and as what."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from prefixroute.core.prompt import KeySource
from prefixroute.core.request import read_prompt
from tests.core.bodies import ANTHROPIC_TOOL, IMAGE, TOOL, Body, chat, key, keys_differ, read, user

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MARK = {"type": "ephemeral"}
HEADER = "x-anthropic-billing-header: cc_version=2.1.15; cch=%s;"


def text(value: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": value, **more}


class TestMessages:
    @pytest.mark.parametrize("role", ["user", "assistant", "tool", "system", "developer", "other"])
    @pytest.mark.parametrize("value", ["", "hi", "é😀", "x" * 5000, "a\nb"])
    def test_a_text_equals_its_one_part(self, role: str, value: str) -> None:
        bodies = [
            chat(user("first"), {"role": role, "content": content})
            for content in (
                value,
                [text(value)],
                [{"text": value}],
                [value],
                [{"type": None, "text": value}],
                [{"type": "input_text", "text": value}],
                [{"type": "output_text", "text": value, "annotations": []}],
            )
        ]
        assert len({read(body) for body in bodies}) == 1
        leading = [chat({**body["messages"][1]}, user("x")) for body in bodies]
        assert len({read(body) for body in leading}) == 1

    def test_every_field_that_an_engine_renders_counts(self) -> None:
        plain = {"role": "assistant", "content": "hi"}
        assert keys_differ(
            chat(plain),
            *(
                chat({**plain, name: value})
                for name in ("name", "tool_call_id", "reasoning", "reasoning_content")
                for value in ("a", "b", 3, "3", {"a": 1})
            ),
            chat({**plain, "tool_calls": [CALL]}),
            chat({**plain, "tool_calls": [CALL, CALL]}),
            chat({**plain, "tool_calls": json.dumps([CALL])}),
            chat({**plain, "function_call": CALL["function"]}),
            chat({"role": "user", "content": "hi"}),
            chat({"role": 3, "content": "hi"}),
            chat({"role": "3", "content": "hi"}),
            chat({"role": {}, "content": "hi"}),
            chat({"content": "hi"}),
            chat("hi"),
            chat(["hi"]),
            chat(None),
            chat(3),
        )

    def test_what_no_engine_renders_does_not(self) -> None:
        plain = {"role": "assistant", "content": "hi"}
        noise = {"id": "msg_1", "status": "completed", "type": "message", "cache_control": MARK}
        assert read(chat({**plain, **noise})) == read(chat(plain))

    @pytest.mark.parametrize(
        "name", ["name", "tool_calls", "tool_call_id", "function_call", "reasoning", "type"]
    )
    def test_null_and_absent_are_equal(self, name: str) -> None:
        plain = {"role": "assistant", "content": "hi"}
        assert read(chat({**plain, name: None})) == read(chat(plain))

    def test_no_content_in_every_form(self) -> None:
        calls = {"role": "assistant", "tool_calls": [CALL]}
        forms = [calls, {**calls, "content": None}, {**calls, "content": []}]
        assert len({read(chat(form)) for form in forms}) == 1
        assert keys_differ(chat(calls), chat({**calls, "content": ""}))
        assert read(chat({"role": "user", "tool_calls": []})) == read(chat({"role": "user"}))

    def test_order_of_messages_and_parts_counts(self) -> None:
        a, b = user("a"), user("b")
        assert keys_differ(
            chat(a, b),
            chat(b, a),
            chat(user([text("a"), text("b")])),
            chat(user([text("b"), text("a")])),
            chat(user("ab")),
            chat(user([text("ab"), text("")])),
            chat(user([text(""), text("ab")])),
        )

    @pytest.mark.parametrize(
        "content", [3, True, {}, {"type": "text", "text": "x"}, {"a": None}, 1.5, [None], [3], [[]]]
    )
    def test_content_of_no_known_kind_counts_as_json(self, content: object) -> None:
        assert keys_differ(chat(user(content)), chat(user(None)), chat(user("x")), chat(user([4])))

    def test_a_block_and_a_list_of_it_differ(self) -> None:
        assert keys_differ(chat(user({"a": 1})), chat(user([{"a": 1}])))

    def test_parts_that_cannot_be_hashed_by_python(self) -> None:
        parts = [{"type": {}, "text": "x"}, {"type": [], "text": {}}, {"type": "text", "text": 3}]
        assert keys_differ(*(chat(user([part])) for part in parts))


class TestRoot:
    def test_leading_system_and_developer_messages_are_the_root(self) -> None:
        system = {"role": "system", "content": "be brief"}
        developer = {"role": "developer", "content": "be brief"}
        prompt = read(chat(system, developer, user("hi")))
        assert (prompt.root_blocks, len(prompt.chain)) == (1, 2)
        assert len(read(chat(user("hi"), system)).chain) == 3
        assert keys_differ(
            chat(system, user("x")),
            chat(developer, user("x")),
            chat(system, developer, user("x")),
            chat(system, system, user("x")),
            chat({**system, "name": "n"}, user("x")),
            chat({**system, "name": ""}, user("x")),
            chat({"role": "system", "content": [text("be "), text("brief")]}, user("x")),
            chat(user("x"), system),
        )

    def test_a_system_prompt_alone_is_a_prompt(self) -> None:
        prompt = read(chat({"role": "system", "content": "be brief"}))
        assert (prompt.source, len(prompt.chain)) == (KeySource.MESSAGES, 1)

    @pytest.mark.parametrize("field", ["system", "instructions"])
    def test_a_system_field_of_every_form(self, field: str) -> None:
        base: Body = {"messages": [user("hi")]} if field == "system" else {"input": "hi"}
        path = MESSAGES if field == "system" else RESPONSES
        forms = ["be brief", [text("be brief")], [text("be brief", cache_control=MARK)]]
        assert len({read({**base, field: form}, path=path) for form in forms}) == 1
        assert keys_differ(
            base,
            *({**base, field: value} for value in ("", "be brief", [text("be"), text("x")], 3)),
            path=path,
        )
        assert read({**base, field: None}, path=path) == read(base, path=path)
        assert read({**base, field: []}, path=path) == read(base, path=path)

    def test_a_system_field_equals_a_system_message(self) -> None:
        field = read({"system": "be brief", "messages": [user("hi")]})
        assert field.chain == read({"messages": [{"role": "system", "content": "be brief"},
                                                 user("hi")]}).chain  # fmt: skip


class TestCacheControl:
    @pytest.mark.parametrize("mark", [MARK, None, {"type": "ephemeral", "ttl": "1h"}, "x"])
    def test_does_not_count_wherever_it_may_stand(self, mark: object) -> None:
        def body(**more: object) -> dict[str, Any]:
            image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}, **more}
            document = {
                "type": "document",
                "source": {"type": "content", "content": [text("deep", **more)]},
            }
            result = {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [text("found", **more), image],
            }
            tool_use = {"type": "tool_use", "id": "t", "name": "f", "input": {}, **more}
            return {
                "tools": [{**ANTHROPIC_TOOL, **more}],
                "system": [text("be brief", **more)],
                "messages": [
                    user([text("hi", **more), image, {**document, **more}]),
                    {"role": "assistant", "content": [tool_use]},
                    user([{**result, **more}]),
                ],
            }

        assert read(body(cache_control=mark), path=MESSAGES) == read(body(), path=MESSAGES)

    def test_does_not_count_in_tools_of_openai(self) -> None:
        marked = {**TOOL, "function": {**TOOL["function"], "cache_control": MARK}}
        for tool in (marked, {**TOOL, "cache_control": MARK}):
            assert read(chat(user("x"), tools=[tool])) == read(chat(user("x"), tools=[TOOL]))

    def test_counts_as_a_name_of_the_callers_own(self) -> None:
        def tool(*names: str) -> dict[str, Any]:
            return {"name": "f", "input_schema": {"properties": {name: {} for name in names}}}

        def use(**arguments: object) -> dict[str, Any]:
            return {"role": "assistant", "content": [{"type": "tool_use", "input": arguments}]}

        assert keys_differ(
            *(chat(user("x"), tools=[tool(*names)]) for names in ([], ["cache_control"])),
            *(chat(user("x"), use(**arguments)) for arguments in ({}, {"cache_control": 1})),
        )


class TestBillingHeader:
    @pytest.mark.parametrize("kind", ["blocks", "str", "message", "message of blocks"])
    def test_does_not_count_wherever_a_system_prompt_stands(self, kind: str) -> None:
        def body(header: str | None) -> dict[str, Any]:
            blocks = [text(header)] if header else []
            joined = f"{header}\nbe brief" if header else "be brief"
            match kind:
                case "blocks":
                    return {"system": [*blocks, text("be brief")], "messages": [user("hi")]}
                case "str":
                    return {"system": joined, "messages": [user("hi")]}
                case "message":
                    return chat({"role": "system", "content": joined}, user("hi"))
            return chat({"role": "system", "content": [*blocks, text("be brief")]}, user("hi"))

        prompts = {read(body(HEADER % cch)).chain for cch in ("00000", "b1c2d")}
        prompts.add(read(body(None)).chain)
        prompts.add(read(body("\n " + (HEADER % "ABC").upper())).chain)
        assert len(prompts) == 1

    def test_a_system_prompt_of_nothing_else_is_none(self) -> None:
        for system in (HEADER % "1", [text(HEADER % "1")], [HEADER % "1" + "\n"]):
            body = {"system": system, "messages": [user("hi")]}
            assert read(body).chain == read({"messages": [user("hi")]}).chain

    def test_what_stands_behind_it_counts(self) -> None:
        assert keys_differ(
            *(
                {"system": [text(f"{HEADER % cch}\n{rest}")], "messages": [user("hi")]}
                for cch, rest in (("1", "be brief"), ("2", "be long"), ("3", ""))
            )
        )

    def test_counts_in_what_a_user_says(self) -> None:
        assert keys_differ(chat(user(HEADER % "1")), chat(user(HEADER % "2")))
        assert keys_differ(
            *(
                chat({"role": "system", "content": value}, user("x"))
                for value in (f"see: {HEADER}", "x-anthropic-billing-headers", "see: ")
            )
        )


class TestBlocks:
    def test_a_tool_result_of_every_form(self) -> None:
        def result(content: object) -> dict[str, Any]:
            block = {"type": "tool_result", "tool_use_id": "t", "content": content}
            return {"messages": [user([block])]}

        forms: list[object] = ["sunny", [text("sunny")], ["sunny"]]
        assert len({read(result(form)).chain for form in forms}) == 1
        assert keys_differ(
            *(result(content) for content in ("sunny", "rainy", "", None, [IMAGE], {"a": 1})),
            result([text("sun"), text("ny")]),
            {"messages": [user([{"type": "tool_result", "tool_use_id": "u", "content": "sunny"}])]},
            {"messages": [user("sunny")]},
        )

    def test_a_screenshot_in_a_result_counts_as_an_image(self) -> None:
        url = "data:image/png;base64," + "A" * 1_000_000
        source = {"type": "base64", "media_type": "image/png", "data": url}
        result = {"type": "tool_result", "content": [{"type": "image", "source": source}]}
        call = {"type": "computer_call_output", "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": url}}  # fmt: skip
        output = {"type": "function_call_output", "call_id": "c",
                  "output": [{"type": "input_image", "image_url": url}]}  # fmt: skip
        drawn = {"type": "image_generation_call", "id": "i", "result": url}
        for body in (
            {"messages": [user([result])]},
            {"input": [call]},
            {"input": [output]},
            {"input": [drawn]},
        ):
            assert 1000 < read(body).size < 2000

    def test_blocks_inside_blocks_cannot_be_mistaken_for_neighbours(self) -> None:
        def outer(*inside: object) -> dict[str, Any]:
            return {"type": "tool_result", "content": list(inside)}

        assert keys_differ(
            chat(user([outer(text("a"), text("b"))])),
            chat(user([outer(text("a")), text("b")])),
            chat(user([outer(), text("a"), text("b")])),
            chat(user([outer(outer(text("a")), text("b"))])),
            chat(user([outer(outer(text("a"), text("b")))])),
            chat(user([outer(), text("a"), text("b"), outer()])),
            chat(user([{"type": "tool_result", "output": [text("a"), text("b")]}])),
        )

    @pytest.mark.parametrize("depth", [3, 8, 9, 50, 400])
    def test_blocks_nested_without_end(self, depth: int) -> None:
        def nested(value: str) -> dict[str, Any]:
            block = text(value)
            for _ in range(depth):
                block = {"type": "tool_result", "content": [block]}
            return chat(user([block]))

        assert keys_differ(nested("a"), nested("b"))

    def test_a_document_of_text_counts_as_its_text(self) -> None:
        def document(kind: str) -> dict[str, Any]:
            source = {"type": kind, "media_type": "text/plain", "data": "x" * 8000}
            return chat(user([{"type": "document", "source": source}]))

        assert read(document("text")).size > 8000
        assert read(document("base64")).size < 2000

    @pytest.mark.parametrize(
        "part",
        [
            IMAGE,
            {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
            {"type": "input_image", "image_url": "data:,x"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "audio_url", "audio_url": {"url": "http://h/a"}},
            {"type": "video_url", "video_url": {"url": "http://h/a"}},
            {"type": "file", "file": {"file_data": "AAAA"}},
            {"type": "input_file", "file_data": "AAAA"},
            {"image_url": "http://h/a"},
        ],
    )
    def test_media_count_by_a_digest(self, part: dict[str, Any]) -> None:
        prompt = read(chat(user([part])))
        assert prompt.size == 1024 + 16
        reordered = dict(reversed(list(part.items())))
        assert keys_differ(
            chat(user([part])),
            chat(user([{**part, "detail": "high"}])),
            chat(user([part, part])),
            chat(user([text(json.dumps(part))])),
            *([chat(user([reordered]))] if len(part) > 1 else []),
        )


class TestResponses:
    def test_a_growing_conversation(self) -> None:
        items: list[object] = [
            user("weather?"),
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}],
            },
            user([{"type": "input_text", "text": "thanks"}]),
        ]
        turns = [read({"input": items[:n]}, path=RESPONSES).chain for n in range(1, 7)]
        for shorter, longer in itertools.pairwise(turns):
            assert longer[: len(shorter)] == shorter
            assert len(longer) == len(shorter) + 1

    def test_items_differ_by_everything_that_they_say(self) -> None:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
        assert keys_differ(
            *({"input": [{**call, name: "other"}]} for name in call),
            {"input": [call]},
            {"input": [reasoning]},
            {"input": [{**reasoning, "summary": ["s"]}]},
            {"input": [{**reasoning, "type": "other"}]},
            {"input": [{**reasoning, "role": "assistant"}]},
            {"input": [{**reasoning, "role": "assistant", "summary": ["s"]}]},
            {"input": [{"type": "x", "output": {"type": "y"}}]},
            {"input": [{"type": "x", "output": [{"type": "y"}]}]},
            {"input": [{"type": "x", "output": {"a": "y"}}]},
            {"input": ["text"]},
        )
        assert read({"input": [{**call, "status": None}]}) == read({"input": [call]})


class TestSeparateTexts:
    def test_lists_of_strings_and_ids(self) -> None:
        assert keys_differ(
            *(
                {"prompt": prompt}
                for prompt in (
                    [12, 34, "string", 56],
                    [12, 34, "string"],
                    [12, "string", 34, 56],
                    [[12, 34, "string", 57]],
                    ["string", 12],
                    [12, 34, 56],
                    ["string", "x"],
                    [12, "str", "ing"],
                    {"prompt_string": "other", "multimodal_data": ["AAAA"]},
                    {"prompt_string": "other", "multimodal_data": ["AAAB"]},
                    {"prompt_string": "third"},
                )
            )
        )
        mixed = read({"prompt": [12, 34, "string", 56]})
        assert mixed == read({"prompt": [[12, 34, "string", 56]]}, path="/completion")
        assert mixed.size == 3 * 4 + 6
        assert mixed.source is KeySource.TEXT
        assert read({"prompt": {"prompt_string": "x"}}) == read_prompt("x")
        batch = read({"prompt": ["x", [12, 34], [1, "y"], {"prompt_string": "zz"}]})
        assert batch.chain == read_prompt("x").chain
        assert batch.size == 1 + 8 + 5 + 2

    def test_the_first_prompt_that_says_something_places_a_batch(self) -> None:
        for batch in (["", "x", "y"], [None, "x", "y"], [[], "x", "y"], [{}, "x", "y"]):
            prompt = read({"prompt": batch})
            assert prompt.chain == read_prompt("x").chain
            assert prompt.size == 2

    @pytest.mark.parametrize("big", [2**63, -(2**63) - 1, 10**30])
    def test_ids_beyond_64_bits(self, big: int) -> None:
        ids = [1, big, 2]
        assert keys_differ(*({"prompt": given} for given in (ids, [1, big + 1, 2], [1, 0, 2])))
        assert read({"prompt": ids}).size == 12

    @pytest.mark.parametrize(
        "prompt", [[1.5], [True, False], [1, None], [1, [2]], [1, True], 5, True, [None], [{}], {}]
    )
    def test_what_is_no_prompt_has_no_key(self, prompt: object) -> None:
        assert read({"prompt": prompt}).chain == ()

    def test_ids_and_the_text_of_their_bytes_differ(self) -> None:
        ids = [int.from_bytes(b"abcdefgh", "little")]
        assert keys_differ({"prompt": ids}, {"prompt": "abcdefgh"})
        assert key({"prompt": [-1]}) != key({"prompt": [2**63 - 1]})
