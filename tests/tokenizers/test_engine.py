"""Asking an engine for its tokens, in the shapes of llama.cpp and of vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from prefixroute import ConfigurationError, Endpoint
from prefixroute.core.request import read_prompt
from prefixroute.tokenizers import EngineTokenizer
from tests.core.bodies import TOOL, chat, completion, user
from tests.tokenizers.support import Letters, Templated, chatml, read, router, warned

Handler = Callable[[str, dict[str, Any]], tuple[int, Any]]

SYSTEM = {"role": "system", "content": "You are kind."}
BODY = chat(SYSTEM, user("Hello there, how is it?"))
MODEL = Templated(chatml)


def llama_cpp(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path == "/tokenize":
        encode = MODEL.encode_prompt if body["parse_special"] else MODEL.encode
        assert body["add_special"] is False
        return 200, {"tokens": encode(body["content"])}
    if path == "/apply-template":
        return 200, {"prompt": chatml(body["messages"])}
    return 404, {"error": {"code": 404}}


def vllm(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path == "/tokenize":
        text = chatml(body["messages"]) if "messages" in body else body["prompt"]
        assert body["add_special_tokens"] is False
        tokens = [ord(character) for character in text]
        return 200, {"count": len(tokens), "max_model_len": 1024, "tokens": tokens}
    if path == "/detokenize":
        return 200, {"prompt": "".join(map(chr, body["tokens"]))}
    return 404, {"detail": "Not Found"}


class Engine:
    """Answers in place of a server, and notes what it was asked."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status, reply = self.handler(request.url.path, json.loads(request.content))
        return httpx.Response(status, json=reply)

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    def tokenizer(self, url: Any = "http://gpu-0:8000/v1", **how: Any) -> EngineTokenizer:
        return EngineTokenizer(url, transport=self.transport, **how)


class TestChats:
    def test_are_what_llama_cpp_makes_of_them(self) -> None:
        engine = Engine(llama_cpp)
        prompt = read(BODY, engine.tokenizer())
        assert prompt.size == len(MODEL.encode_prompt(chatml(BODY["messages"])))
        assert prompt == read(BODY, Templated(chatml))

    def test_are_what_vllm_makes_of_them(self) -> None:
        engine = Engine(vllm)
        prompt = read(BODY, engine.tokenizer())
        assert prompt.size == len(chatml(BODY["messages"]))
        assert prompt.root_blocks == 1
        assert len(prompt.chain) == 2
        assert "/detokenize" in engine.paths

    @pytest.mark.parametrize("handler", [llama_cpp, vllm])
    def test_carry_tools_and_template_arguments(self, handler: Handler) -> None:
        engine = Engine(handler)
        read({**BODY, "tools": [TOOL], "chat_template_kwargs": {"x": 1}}, engine.tokenizer())
        asked = json.loads(engine.requests[-1 if handler is vllm else 0].content)
        asked = next(
            body for request in engine.requests if "tools" in (body := json.loads(request.content))
        )
        assert asked["tools"] == [TOOL]
        assert asked["chat_template_kwargs"] == {"x": 1}
        assert asked["add_generation_prompt"] is True

    @pytest.mark.parametrize("handler", [llama_cpp, vllm])
    def test_cost_one_call_for_each_new_text(self, handler: Handler) -> None:
        engine = Engine(handler)
        made = router(engine.tokenizer())
        made.route(BODY)
        before = len(engine.requests)
        reply = {"role": "assistant", "content": "Fine."}
        made.route(chat(*BODY["messages"], reply, user("And?")))
        templates = 1 if handler is llama_cpp else 2
        assert len(engine.requests) - before == templates + 2

    @pytest.mark.parametrize(("engine", "status"), [("l", 400), ("l", 500), ("v", 400), ("v", 422)])
    def test_that_a_template_refuses_leave_the_messages(
        self, engine: str, status: int, caplog: Any
    ) -> None:
        def handler(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            if engine == "v" and path == "/apply-template":
                return 404, {}
            inner = llama_cpp if engine == "l" else vllm
            return (status, {}) if "messages" in body else inner(path, body)

        with warned(caplog) as found:
            prompt = read(BODY, Engine(handler).tokenizer())
        assert prompt.counted
        assert len(prompt.chain) == 2
        assert len(found) == 1

    def test_of_an_engine_without_templates_leave_the_messages(self) -> None:
        def handler(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return llama_cpp(path, body) if "content" in body else (404, {})

        engine = Engine(handler)
        made = router(engine.tokenizer())
        assert made.read(BODY).chain == read(BODY, Letters()).chain
        before = len(engine.requests)
        made.read(BODY)
        assert len(engine.requests) == before


class TestCalls:
    def test_of_texts(self) -> None:
        for handler in (llama_cpp, vllm):
            assert Engine(handler).tokenizer().encode("a b") == [97, 32, 98]

    def test_of_plain_texts_have_no_special_tokens_where_the_engine_can(self) -> None:
        tokenizer = Engine(llama_cpp).tokenizer()
        assert len(tokenizer.encode("<|im_end|>")) > len(tokenizer.encode_prompt("<|im_end|>"))

    @pytest.mark.parametrize("url", ["http://gpu-0:8000", "http://gpu-0:8000/v1/"])
    def test_go_to_the_root(self, url: str) -> None:
        engine = Engine(llama_cpp)
        engine.tokenizer(url).encode("x")
        assert str(engine.requests[0].url) == "http://gpu-0:8000/tokenize"

    def test_below_a_path(self) -> None:
        engine = Engine(lambda path, body: (200, {"tokens": [1]}))
        engine.tokenizer("http://host/llm/v1").encode("x")
        assert str(engine.requests[0].url) == "http://host/llm/tokenize"

    def test_carry_the_endpoints_key_and_headers(self) -> None:
        for fields, name, value in (
            ({"api_key": "k"}, "Authorization", "Bearer k"),
            ({"api_key": lambda: "k"}, "Authorization", "Bearer k"),
            ({"api_key": "k", "auth_header": "X-Api-Key"}, "X-Api-Key", "k"),
            ({"headers": {"X-Team": "a"}}, "X-Team", "a"),
        ):
            engine = Engine(llama_cpp)
            tokenizer = engine.tokenizer(Endpoint("http://gpu-0:8000/v1", **fields))
            tokenizer.encode("x")
            assert engine.requests[0].headers[name] == value
            assert "k" not in repr(tokenizer).partition("gpu")[0][17:]

    def test_name_the_model(self) -> None:
        engine = Engine(llama_cpp)
        tokenizer = engine.tokenizer(model="qwen")
        tokenizer.encode("x")
        assert json.loads(engine.requests[0].content)["model"] == "qwen"
        assert tokenizer.name == "engine qwen"

    def test_go_on_after_close(self) -> None:
        tokenizer = Engine(llama_cpp).tokenizer()
        for _ in range(2):
            assert tokenizer.encode("x") == [120]
            tokenizer.close()

    @pytest.mark.parametrize(
        "bad",
        [{"timeout_s": 0}, {"timeout_s": float("inf")}, {"retry_after_s": -1}, {"max_bytes": 0}],
    )
    def test_refuse_numbers_that_cannot_be(self, bad: Any) -> None:
        with pytest.raises(ConfigurationError):
            EngineTokenizer("http://gpu-0:8000", **bad)


class TestFailures:
    @pytest.mark.parametrize(
        "reply",
        [(500, {}), (404, {}), (200, {}), (200, []), (200, {"tokens": "x"}), (429, {})],
    )
    def test_leave_bytes_and_the_engine_alone(self, reply: Any, caplog: Any) -> None:
        now = [0.0]
        engine = Engine(lambda path, body: reply)
        made = router(engine.tokenizer(clock=lambda: now[0], retry_after_s=30))
        with warned(caplog) as found:
            for _ in range(3):
                assert made.read(completion("x")) == read_prompt(completion("x"))
        assert len(engine.requests) == 1
        assert len(found) == 1
        now[0] = 31.0
        engine.handler = llama_cpp
        assert made.read(completion("x")).counted

    @pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.ConnectTimeout])
    def test_of_the_network_too(self, error: Any, caplog: Any) -> None:
        def handler(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            raise error("secret prompt")

        engine = Engine(handler)
        made = router(engine.tokenizer())
        with warned(caplog) as found:
            for body in (BODY, completion("x"), BODY):
                assert made.read(body) == read_prompt(body)
        assert len(engine.requests) == 1
        assert len(found) == 1
        assert "secret" not in found[0]

    def test_of_an_idle_connection_are_tried_again(self) -> None:
        def handler(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            if len(engine.requests) == 1:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response")
            return llama_cpp(path, body)

        engine = Engine(handler)
        assert engine.tokenizer().encode("x") == [120]

    def test_in_the_middle_of_a_prompt_leave_all_of_it_in_bytes(self) -> None:
        def handler(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return (503, {}) if len(engine.requests) > 6 else llama_cpp(path, body)

        engine = Engine(handler)
        assert read(BODY, engine.tokenizer()) == read_prompt(BODY)

    def test_of_a_render_reply_too(self) -> None:
        def handler(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return (200, {}) if path == "/apply-template" else llama_cpp(path, body)

        assert read(BODY, Engine(handler).tokenizer()) == read_prompt(BODY)
