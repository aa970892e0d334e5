"""A model's own tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prefixroute import ConfigurationError, TokenizerUnavailable
from prefixroute.core.request import read_prompt
from prefixroute.tokenizers import Chat, HuggingFaceTokenizer
from tests.core.bodies import IMAGE, TOOL, chat, completion, user
from tests.tokenizers.models import (
    CHATML,
    QWEN,
    REFUSES_SYSTEM,
    hf_tokenizer,
    needs_transformers,
    rust_tokenizer,
)
from tests.tokenizers.support import read, router, warned

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
TURNS = [SYSTEM, user("How is it?"), {"role": "assistant", "content": "Fine."}, user("And?")]


@pytest.fixture(scope="module")
def plain() -> Any:
    return hf_tokenizer(CHATML)


@pytest.fixture(scope="module")
def qwen() -> Any:
    return hf_tokenizer(QWEN)


def ids_of(tokenizer: Any, body: Mapping[str, Any], **how: Any) -> list[int]:
    """What an engine makes of a chat."""
    ids: list[int] = tokenizer.apply_chat_template(
        body["messages"],
        tools=body.get("tools"),
        add_generation_prompt=True,
        return_dict=True,
        **body.get("chat_template_kwargs", {}),
        **how,
    )["input_ids"]
    return ids


@needs_transformers
class TestChats:
    @pytest.mark.parametrize("count", [2, 4])
    def test_are_counted_as_the_engine_counts_them(self, plain: Any, count: int) -> None:
        body = chat(*TURNS[:count])
        prompt = read(body, HuggingFaceTokenizer(plain))
        assert prompt.size == len(ids_of(plain, body))
        assert prompt.root_blocks == 1
        assert len(prompt.chain) == count

    @pytest.mark.parametrize(
        "text",
        [
            "  two  spaces ",
            "a\n\nb\n",
            "Le café! 今日は。😀",
            "1234567",
            ".",
            "user",
            "im",
            "<|im_start|>assistant\n",
            "word " * 3000,
            "x.y " * 3000,
        ],
    )
    def test_of_any_text_too(self, plain: Any, text: str) -> None:
        body = chat(SYSTEM, user(text), {"role": "assistant", "content": text}, user("And?"))
        assert read(body, HuggingFaceTokenizer(plain)).size == len(ids_of(plain, body))

    def test_with_tools_and_template_arguments_too(self, qwen: Any) -> None:
        for fields in (
            {"tools": [TOOL]},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}},
        ):
            body = chat(*TURNS, **fields)
            assert read(body, HuggingFaceTokenizer(qwen)).size == len(ids_of(qwen, body))

    def test_have_their_tools_in_the_root(self, qwen: Any) -> None:
        tokenizer = HuggingFaceTokenizer(qwen)
        one, two = (read(chat(SYSTEM, user(t), tools=[TOOL]), tokenizer) for t in ("hi", "role"))
        assert one.chain[0] == two.chain[0]
        assert one.ends[0] > one.size * 0.8
        assert one.chain[0] != read(chat(SYSTEM, user("hi")), tokenizer).chain[0]

    def test_hand_call_arguments_to_the_template_as_an_object(self, qwen: Any) -> None:
        def called(arguments: Any) -> dict[str, Any]:
            call = {"id": "c", "type": "function", "function": {"name": "weather"}}
            call["function"]["arguments"] = arguments  # type: ignore[index]
            asked = {"role": "assistant", "content": None, "tool_calls": [call]}
            answer = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
            return chat(user("weather?"), asked, answer)

        tokenizer = HuggingFaceTokenizer(qwen)
        expected = called({"city": "Köln"})
        expected["messages"][1]["content"] = ""
        assert read(called('{"city": "Köln"}'), tokenizer).size == len(ids_of(qwen, expected))
        for odd in ("{", "", "[1]", 3, None):
            assert read(called(odd), tokenizer).chain

    def test_join_parts_as_engines_do_unless_the_template_does(self, plain: Any, qwen: Any) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        for tokenizer, joined in ((plain, "one\ntwo"), (qwen, "onetwo")):
            size = read(chat(user(parts)), HuggingFaceTokenizer(tokenizer)).size
            assert size == len(ids_of(tokenizer, chat(user(joined))))

    def test_keep_their_chain_as_they_go_on(self, plain: Any) -> None:
        tokenizer = HuggingFaceTokenizer(plain)
        short, long = (read(chat(*TURNS[:count]), tokenizer) for count in (2, 4))
        assert long.chain[:2] == short.chain
        assert long.ends[:2] == short.ends

    def test_cannot_override_how_they_are_asked_for(self, plain: Any) -> None:
        given = {
            "tokenize": True,
            "chat_template": "x",
            "conversation": [],
            "add_generation_prompt": False,
            "return_assistant_tokens_mask": True,
            "return_dict": False,
        }
        tokenizer = HuggingFaceTokenizer(plain)
        size = read(chat(*TURNS), tokenizer).size
        assert read(chat(*TURNS, chat_template_kwargs=given), tokenizer).size == size

    def test_with_a_template_that_the_engine_was_started_with(self, plain: Any) -> None:
        tokenizer = HuggingFaceTokenizer(plain, chat_template=QWEN)
        assert read(chat(*TURNS, tools=[TOOL]), tokenizer).size == len(
            ids_of(plain, chat(*TURNS, tools=[TOOL]), chat_template=QWEN)
        )
        assert tokenizer.name != HuggingFaceTokenizer(plain).name


@needs_transformers
class TestTexts:
    def test_are_read_as_the_engine_reads_a_prompt(self, plain: Any) -> None:
        text = "<|im_start|>user\nhello<|im_end|>\n"
        ids = plain.encode(text, add_special_tokens=False)
        tokenizer = HuggingFaceTokenizer(plain)
        assert read(completion(text), tokenizer).chain == read(ids, tokenizer).chain

    def test_within_messages_have_no_special_tokens(self, plain: Any) -> None:
        tokenizer = HuggingFaceTokenizer(plain)
        special = set(plain.added_tokens_decoder)
        for text in ("<|endoftext|>", "a<|im_start|><|im_end|>b", "<<|im_end|>|im_end|>"):
            ids = tokenizer.encode(text)
            assert plain.decode(ids) == text
            assert not special & set(ids)
            assert special & set(tokenizer.encode_prompt(text))
        assert tokenizer.encode("hello") == tokenizer.encode_prompt("hello")


@needs_transformers
class TestTemplates:
    def test_that_refuse_a_role_leave_the_messages(self, caplog: Any) -> None:
        tokenizer = HuggingFaceTokenizer(hf_tokenizer(REFUSES_SYSTEM))
        made = router(tokenizer)
        with warned(caplog) as found:
            for _ in range(3):
                prompt = made.read(chat(SYSTEM, user("hello")))
        content = len(tokenizer.encode(SYSTEM["content"])) + len(tokenizer.encode("hello"))
        assert prompt.size == content + 8
        assert len(found) == 1
        rendered = made.read(chat(user("hello")))
        assert rendered.size == len(ids_of(tokenizer._tokenizer, chat(user("hello"))))

    def test_that_are_missing_leave_the_messages(self, caplog: Any) -> None:
        with warned(caplog) as found:
            prompt = read(chat(*TURNS), HuggingFaceTokenizer(hf_tokenizer(None)))
        assert prompt.counted
        assert len(prompt.chain) == 4
        assert len(found) == 1

    @pytest.mark.parametrize(
        "template", ["{{ messages[0].content.nope.nope }}", "{% for %}", "{{ 1 / 0 }}", "", "x"]
    )
    def test_that_are_broken_leave_the_messages(self, template: str, caplog: Any) -> None:
        with warned(caplog) as found:
            prompt = read(chat(*TURNS), HuggingFaceTokenizer(hf_tokenizer(template)))
        assert prompt.counted
        assert len(prompt.chain) >= 2
        assert len(found) <= 1

    def test_are_not_asked_for_images(self, plain: Any) -> None:
        assert read(chat(user([IMAGE])), HuggingFaceTokenizer(plain)).size >= 256


@needs_transformers
class TestFolders:
    def test_are_loaded_without_a_network(self, plain: Any, tmp_path: Path) -> None:
        plain.save_pretrained(tmp_path)
        for path in (tmp_path, str(tmp_path)):
            tokenizer = HuggingFaceTokenizer(path)
            assert tokenizer.name == HuggingFaceTokenizer(tmp_path).name
            assert read(chat(*TURNS), tokenizer) == read(chat(*TURNS), HuggingFaceTokenizer(plain))

    def test_that_hold_no_tokenizer_leave_bytes(self, tmp_path: Path, caplog: Any) -> None:
        (tmp_path / "tokenizer.json").write_text("{")
        for path in (tmp_path, tmp_path / "nowhere", "nobody/no-such-model"):
            tokenizer = HuggingFaceTokenizer(path)
            made = router(tokenizer)
            with warned(caplog) as found:
                for body in (chat(*TURNS), completion("x"), chat(user(["x", IMAGE]))):
                    assert made.read(body) == read_prompt(body)
            assert len(found) == 1
            assert str(path) in found[0]
            assert "missing" in repr(tokenizer)
            with pytest.raises(TokenizerUnavailable):
                tokenizer.encode("x")

    def test_say_which_extra_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ConfigurationError, match=r"pip install 'prefixroute\[transformers\]'"):
            HuggingFaceTokenizer("/models/x")


@needs_transformers
class TestObjects:
    def test_go_on_being_used_and_changed_elsewhere(self, plain: Any) -> None:
        original = hf_tokenizer(CHATML)
        tokenizer = HuggingFaceTokenizer(original)
        before = read(completion("hello world " * 50), tokenizer)
        original("hello world " * 50, truncation=True, max_length=4)
        original.add_tokens(["hello world"])
        assert read(completion("hello world " * 50), tokenizer) == before

    def test_of_the_tokenizers_library_count_texts(self) -> None:
        rust = rust_tokenizer()
        rust.enable_truncation(2)
        rust.enable_padding(length=50)
        tokenizer = HuggingFaceTokenizer(rust)
        assert read(chat(user("hello world hello")), tokenizer).size > 3 + 4
        assert read(chat(user("x")), tokenizer).size == 1 + 4

    def test_serve_without_a_wrapper_too(self, plain: Any) -> None:
        assert read(completion("hello"), plain).size == len(plain.encode("hello"))
        assert read(completion("hello"), rust_tokenizer()).size == len(plain.encode("hello"))

    @pytest.mark.parametrize("given", [None, 3, object(), {"input_ids": []}])
    def test_are_tokenizers(self, given: Any) -> None:
        with pytest.raises(ConfigurationError, match="a tokenizer of transformers"):
            HuggingFaceTokenizer(given)

    def test_are_told_apart_by_vocabulary_and_template(self, plain: Any, qwen: Any) -> None:
        names = [HuggingFaceTokenizer(t).name for t in (plain, hf_tokenizer(CHATML), qwen)]
        assert names[0] == names[1] != names[2]


class Slow:
    """A tokenizer in Python, as some models have one, that is no use to two threads at once."""

    chat_template = "x"
    inside = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.inside += 1
        assert self.inside == 1
        ids = [0] * add_special_tokens + [ord(character) for character in text]
        self.inside -= 1
        return ids

    def apply_chat_template(self, messages: list[dict[str, Any]], **how: Any) -> Any:
        assert how["add_generation_prompt"] is True
        return json.dumps(messages)


class TestTokenizersInPython:
    def test_count(self) -> None:
        body = chat(user("hello"))
        expected = len(json.dumps(body["messages"]))
        assert read(body, HuggingFaceTokenizer(Slow())).size == expected

    @pytest.mark.parametrize(
        "returned",
        [
            {"input_ids": list(range(100)), "attention_mask": [1] * 100},
            {"input_ids": [list(range(100))]},
            list(range(100)),
            [list(range(100))],
        ],
    )
    def test_may_render_ids(self, returned: Any) -> None:
        class Ids(Slow):
            def apply_chat_template(self, messages: Any, **how: Any) -> Any:
                return returned

        prompt = read(chat(user("hello")), HuggingFaceTokenizer(Ids()))
        assert prompt.size == 100
        assert prompt.counted
        assert prompt.ends == (0, 32, 64, 100)

    def test_may_take_no_arguments(self) -> None:
        class Plain:
            def encode(self, text: str) -> dict[str, list[int]]:
                return {"input_ids": [ord(character) for character in text]}

        tokenizer = HuggingFaceTokenizer(Plain())
        assert read(chat(user("hello")), tokenizer).size == 5 + 4
        assert tokenizer.render(Chat(messages=[user("hello")])) is None
