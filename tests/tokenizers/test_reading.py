"""Prompts counted in tokens: what they are made of, their sizes, their boundaries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixroute import ConfigurationError, Fixed, KeySource, Nested, Router
from prefixroute.core.prompt import Cut
from prefixroute.core.request import read_prompt
from tests.core.bodies import ANTHROPIC_TOOL, IMAGE, TOOL, chat, completion, user
from tests.tokenizers.support import TEMPLATES, URLS, Letters, Templated, chatml, read, router

SYSTEM = {"role": "system", "content": "You are a careful assistant."}
REPLY = {"role": "assistant", "content": "It is sunny."}


class TestSizes:
    def test_are_tokens(self) -> None:
        prompt = read(completion("abcdef!"), Letters())
        assert (prompt.size, prompt.tokens, prompt.counted) == (4, 4.0, True)

    def test_of_a_rendered_chat_are_those_of_the_whole_prompt(self) -> None:
        for template in TEMPLATES.values():
            tokenizer = Templated(template)
            messages = [SYSTEM, user("How is it?"), REPLY, user("And then?")]
            whole = tokenizer.encode_prompt(template(messages))
            assert read(chat(*messages), tokenizer).size == pytest.approx(len(whole), abs=3)

    def test_of_a_chat_without_a_template_are_four_more_for_each_message(self) -> None:
        assert read(chat(user("abcd"), user("ef")), Letters()).size == 2 + 4 + 1 + 4

    def test_of_a_batch_count_all_of_it(self) -> None:
        assert read(completion(["abcd", "efgh", "ijkl"]), Letters()).size == 6

    def test_of_images_are_guessed(self) -> None:
        assert read(chat(user([IMAGE])), Letters()).size == 256 + 4

    def test_of_token_ids_are_their_own(self) -> None:
        assert read([1, 2, 3], Letters()).size == 3

    def test_beyond_the_limit_are_in_proportion(self) -> None:
        tokenizer = Letters()
        prompt = read(completion("abc " * 100_000), tokenizer)
        assert tokenizer.bytes_encoded <= 2**17
        assert prompt.size == pytest.approx(300_000, rel=0.001)
        assert prompt.ends[-1] == prompt.size

    def test_are_never_learned_from_replies(self) -> None:
        made = router(Letters())
        with made.acquire(completion("abcdef")) as lease:
            lease.usage(prompt_tokens=600)
        assert made.route(completion("abcdef")).tokens == 3.0


class TestChains:
    def test_of_a_text_and_of_its_ids_are_one(self) -> None:
        for text in ("hi", "word " * 2000, "x" * 900):
            tokenizer = Letters()
            assert read(text, tokenizer).chain == read(tokenizer.encode(text), tokenizer).chain

    def test_of_a_mix_of_text_and_ids_too(self) -> None:
        tokenizer = Letters()
        ids = tokenizer.encode("hello")
        assert (
            read(completion([*ids, "word", *ids]), tokenizer).chain
            == read([*ids, *tokenizer.encode("word"), *ids], tokenizer).chain
        )

    def test_are_cut_every_so_many_tokens(self) -> None:
        prompt = read(chat(user("ab" * 1000)), Letters(), cut=Cut(block_bytes=1024))
        assert prompt.ends == (0, 256, 512, 768, 1004)

    def test_of_texts_have_boundaries_where_those_of_ids_have_them(self) -> None:
        assert read("ab" * 1000, Letters()).ends == (0, 32, 64, 128, 256, 512, 768, 1000)

    def test_beyond_the_limit_go_on_in_bytes(self) -> None:
        one, two = (read("abc " * 40_000 + end, Letters()) for end in ("x", "y"))
        assert one.chain[:-1] == two.chain[:-1]
        assert one.chain[-1] != two.chain[-1]

    @pytest.mark.parametrize("body", [chat(SYSTEM, user("é😀"), tools=[TOOL]), completion("é😀")])
    def test_are_the_same_for_mappings_and_bytes(self, body: Any) -> None:
        for tokenizer in (Letters(), Templated(chatml)):
            prompt = read(body, tokenizer)
            assert read(json.dumps(body).encode(), tokenizer) == prompt
            assert read(json.dumps(body, ensure_ascii=False).encode(), tokenizer) == prompt

    def test_are_the_same_for_a_text_and_its_one_part(self) -> None:
        for tokenizer in (Letters(), Templated(chatml)):
            parts = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
            assert read(chat(SYSTEM, user(parts)), tokenizer) == read(
                chat(SYSTEM, user("hi")), tokenizer
            )

    def test_tell_models_salts_and_templates_apart(self) -> None:
        given: list[dict[str, Any]] = [
            {},
            {"model": "n"},
            {"cache_salt": "s"},
            {"chat_template": "{{ x }}"},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"prompt_cache_key": "p"},
            {"lora_path": "l"},
        ]
        chains = {read(chat(user("hi"), **fields), Templated(chatml)).chain for fields in given}
        assert len(chains) == len(given)

    def test_tell_tools_apart_where_they_are_not_rendered(self) -> None:
        tools: list[Any] = [[TOOL], [], [TOOL, TOOL], [{"name": "f", "input_schema": {}}]]
        chains = {read(chat(user("hi"), tools=given), Letters()).chain for given in tools}
        assert len(chains) == len(tools)

    def test_of_sessions_stay_together(self) -> None:
        tokenizer = Templated(chatml)
        one = read(chat(SYSTEM, user("a")), tokenizer, session="s")
        two = read(chat(SYSTEM, user("b"), REPLY), tokenizer, session="s")
        assert one.chain == two.chain
        assert one.source is KeySource.SESSION

    def test_with_roots_in_common_share_them(self) -> None:
        for template in TEMPLATES.values():
            one, two = (
                read(chat(SYSTEM, user(text)), Templated(template)) for text in ("Why?", "How?")
            )
            assert one.root_blocks == two.root_blocks == 1
            assert one.chain[0] == two.chain[0]
            assert one.chain[1] != two.chain[1]
            assert one.ends[0] > 5

    def test_name_the_blocks_that_a_model_wrote(self) -> None:
        body = chat(SYSTEM, user("a"), REPLY, user("b"), {**REPLY, "content": "ab" * 600})
        for tokenizer in (Letters(), Templated(chatml)):
            assert read(body, tokenizer).replies == (2, 4, 5, 6)
        assert read_prompt(body).replies == (2, 4, 5)


class TestOtherShapes:
    def test_anthropics_are_rendered_as_chats(self) -> None:
        tokenizer = Templated(chatml)
        claude = {
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
                {"type": "text", "text": "You are kind.", "cache_control": {"type": "ephemeral"}},
            ],
            "messages": [user([{"type": "text", "text": "hi"}])],
            "tools": [ANTHROPIC_TOOL],
        }
        openai = {
            "messages": [{"role": "system", "content": "You are kind."}, user("hi")],
            "tools": [TOOL],
        }
        assert read(claude, tokenizer, path="/v1/messages").chain == read(openai, tokenizer).chain
        assert tokenizer.rendered >= 2

    def test_responses_are_rendered_as_chats(self) -> None:
        tokenizer = Templated(chatml)
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
        for given in ("x", [user("x")], [item]):
            body = {"instructions": "Be kind.", "input": given}
            assert (
                read(body, tokenizer, path="/v1/responses").chain
                == read(
                    chat({"role": "system", "content": "Be kind."}, user("x"), model=None),
                    tokenizer,
                ).chain
            )

    @pytest.mark.parametrize(
        "messages",
        [
            [user([{"type": "text", "text": "what?"}, IMAGE])],
            [user([{"type": "tool_result", "tool_use_id": "t", "content": "x"}])],
            [{"role": 3, "content": "x"}],
            ["text"],
            [user({"a": 1})],
            [user([1])],
        ],
    )
    def test_what_a_template_cannot_render_is_counted_message_by_message(
        self, messages: list[Any]
    ) -> None:
        tokenizer = Templated(chatml)
        prompt = read({"messages": messages}, tokenizer)
        assert tokenizer.rendered == 0
        assert prompt.chain == read({"messages": messages}, Letters()).chain
        assert prompt.counted

    @pytest.mark.parametrize(
        "fields", [{"chat_template": "{{ x }}"}, {"functions": [{"name": "f"}]}, {"tools": "x"}]
    )
    def test_nor_a_template_of_the_callers_own(self, fields: Any) -> None:
        tokenizer = Templated(chatml)
        assert read(chat(user("x"), **fields), tokenizer).counted
        assert tokenizer.rendered == 0

    @pytest.mark.parametrize(
        "body", [{}, {"messages": []}, {"input": "x", "model": "e"}, b"", b"["]
    )
    def test_what_has_no_key_has_none(self, body: Any) -> None:
        prompt = read(body, Templated(chatml), path="/v1/embeddings")
        assert prompt.chain == ()


class TestCost:
    def test_a_turn_costs_what_is_new_in_it(self) -> None:
        for tokenizer in (Letters(), Templated(chatml)):
            made = router(tokenizer)
            turns: list[Any] = [SYSTEM]
            for number in range(10):
                turns += [user(f"Question {number}? " * 20), {**REPLY, "content": f"{number} " * 9}]
                before = tokenizer.bytes_encoded
                made.route(chat(*turns))
                assert tokenizer.bytes_encoded - before < 700

    def test_the_same_request_costs_nothing(self) -> None:
        tokenizer = Templated(chatml)
        made = router(tokenizer)
        made.route(chat(SYSTEM, user("x" * 100)))
        before = len(tokenizer.encoded)
        made.route(json.dumps(chat(SYSTEM, user("x" * 100))).encode())
        assert len(tokenizer.encoded) == before

    def test_what_is_remembered_is_bounded(self) -> None:
        tokenizer = Letters()
        made = router(tokenizer)
        for number in range(1200):
            made.read(f"{number} " + "word " * 5000)
        held = made._tokens._prompts._memo  # type: ignore[union-attr]
        pairs = [*held._young.items(), *held._old.items()]
        assert sum(len(piece) + len(ids or b"") for piece, ids in pairs) <= 2**24

    def test_a_fixed_window_encodes_no_more_than_it_needs(self) -> None:
        tokenizer = Letters()
        made = router(tokenizer, placement=Fixed(prefix_bytes=1024))
        prompt = made.read(chat(user("abc " * 50_000)))
        assert tokenizer.bytes_encoded <= 4096
        assert prompt.size == pytest.approx(150_000, rel=0.01)

    def test_a_request_without_text_encodes_nothing(self) -> None:
        tokenizer = Templated(chatml)
        router(tokenizer).route({"messages": []})
        assert tokenizer.encoded == []


class TestRouters:
    def test_with_the_same_tokenizer_agree(self) -> None:
        one, two = router(Letters()), router(Letters())
        assert one.fingerprint == two.fingerprint
        assert one.route(chat(user("x"))) == two.route(chat(user("x")))

    def test_with_others_say_so(self) -> None:
        other = Letters()
        other.name = "other"
        plain = Router(URLS, seed=0)
        assert len({r.fingerprint for r in (plain, router(Letters()), router(other))}) == 3

    def test_follow_a_prefix(self) -> None:
        made = router(Templated(chatml))
        messages = [SYSTEM, user("How is it?" * 40)]
        with made.acquire(chat(*messages)) as lease:
            lease.first_token()
        later = made.route(chat(*messages, REPLY, user("And then?")))
        assert later.endpoint is lease.endpoint
        assert later.expected_cached_tokens > 200

    @pytest.mark.parametrize("tokenizer", [object(), "o200k_base", Letters, 3])
    def test_refuse_what_is_no_tokenizer(self, tokenizer: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"tokenizer=.*encode"):
            Router(URLS, tokenizer=tokenizer)

    @pytest.mark.parametrize("placement", [Nested(), Nested(block_bytes=64), Fixed()])
    def test_explain_in_tokens(self, placement: Any) -> None:
        made = router(Letters(), placement=placement)
        text = "ab" * 500
        assert "about 500 tokens" in str(made.explain(completion(text)))
