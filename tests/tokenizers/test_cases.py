"""Public faults of tokenizers in this field, as tests of their class."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prefixroute import Router
from prefixroute.core.request import read_prompt
from prefixroute.tokenizers import HuggingFaceTokenizer, TiktokenTokenizer
from prefixroute.tokenizers import tiktoken as module
from tests.core.bodies import chat, completion, user
from tests.tokenizers.models import (
    CHATML,
    REFUSES_SYSTEM,
    encoding,
    hf_tokenizer,
    needs_tiktoken,
    needs_transformers,
)
from tests.tokenizers.support import URLS, Letters, Templated, chatml, read, router, warned

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


@pytest.fixture(scope="module")
def plain() -> Any:
    return hf_tokenizer(CHATML)


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|im_start|>", "a <|im_end|> b"])
class TestCase14:
    """curator 178: special tokens as content."""

    @needs_tiktoken
    def test_case_14_with_tiktoken(self, text: str, caplog: Any) -> None:
        tokenizer = TiktokenTokenizer(encoding())
        with warned(caplog) as found:
            for body in (chat(user(text)), completion(text)):
                prompt = read(body, tokenizer)
                assert prompt.counted
                other = json.loads(json.dumps(body).replace("|", ""))
                assert prompt.chain != read(other, tokenizer).chain
        assert not found

    @needs_transformers
    def test_case_14_with_transformers(self, text: str, plain: Any, caplog: Any) -> None:
        with warned(caplog) as found:
            for body in (chat(user(text)), completion(text), chat(user([text, {"x": 1}]))):
                assert read(body, HuggingFaceTokenizer(plain)).counted
        assert not found


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("character", ["😀", "中", "é"])
class TestCase15:
    """bitlbee-discord 85: a boundary inside a character."""

    def test_case_15_of_a_block(self, offset: int, character: str) -> None:
        body = chat(user("x" * offset + character * 3000))
        for tokenizer in (Letters(), Templated(chatml)):
            raw = json.dumps(body, ensure_ascii=False).encode()
            assert read(raw, tokenizer) == read(json.dumps(body).encode(), tokenizer)

    def test_case_15_of_a_piece_or_of_what_is_encoded(self, offset: int, character: str) -> None:
        for around in (4096, 8192, 2**17):
            text = ("word " * around)[: around - 8 + offset] + character * 4 + " word" * 9
            tokenizer = Letters()
            assert read(completion(text), tokenizer).counted
            assert "\ufffd" not in "".join(tokenizer.encoded)


@needs_tiktoken
class TestCase16:
    """tiktoken 369, 413: no network, no vocabulary, twenty threads; a host that never answers."""

    def test_case_16_one_bounded_attempt_one_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        over, tries = threading.Event(), []

        def never(source: Any, timeout_s: float) -> bytes:
            tries.append(timeout_s)
            over.wait()
            raise TimeoutError

        monkeypatch.setattr(module, "download", never)
        with warned(caplog) as found, Router(URLS, tokenizer=TiktokenTokenizer("o200k_base")) as r:
            bodies = [chat(user(f"hello {n}")) for n in range(20)]
            with ThreadPoolExecutor(20) as pool:
                prompts = list(pool.map(r.read, bodies))
        over.set()
        assert prompts == [read_prompt(body) for body in bodies]
        assert len(tries) == 1
        assert 0 < tries[0] <= 10
        assert len(found) == 1


@needs_transformers
class TestCase17:
    """transformers 33246, InternVL 1173: templates that are missing or refuse."""

    @pytest.mark.parametrize("template", [None, REFUSES_SYSTEM])
    def test_case_17_no_template_and_one_without_a_system_role(
        self, template: Any, caplog: Any
    ) -> None:
        tokenizer = HuggingFaceTokenizer(hf_tokenizer(template))
        with warned(caplog) as found:
            made = router(tokenizer)
            prompt = made.read(chat(SYSTEM, user("hello")))
            assert made.read(json.dumps(chat(SYSTEM, user("hello"))).encode()) == prompt
        assert prompt.counted
        assert len(prompt.chain) == 2
        assert len(found) == 1

    def test_case_17_lists_and_tools(self, plain: Any, caplog: Any) -> None:
        tokenizer = HuggingFaceTokenizer(plain)
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        turns = [
            user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "sunny"}]},
        ]
        with warned(caplog) as found:
            prompts = [read(chat(*turns[:count]), tokenizer) for count in (1, 2, 3)]
        assert not found
        for shorter, longer in pairwise(prompts):
            assert longer.chain[: len(shorter.chain)] == shorter.chain


class TestCase18:
    """PocketLLM 286: `apply_chat_template` that returns a mapping."""

    def test_case_18_a_mapping_has_input_ids(self) -> None:
        class Mapped:
            def encode(self, text: str, **how: Any) -> list[int]:
                raise AssertionError

            def apply_chat_template(self, messages: Any, **how: Any) -> Any:
                ids = [ord(c) for m in messages for c in m["content"]]
                return {"input_ids": ids, "attention_mask": [1] * len(ids)}

        tokenizer = HuggingFaceTokenizer(Mapped())
        assert read(chat(user("hello")), tokenizer).size == 5
        assert read(chat(user("hello")), tokenizer) != read(chat(user("hallo")), tokenizer)


@needs_transformers
class TestCase19:
    """transformers 47085, tokenizers 187: threads and forks."""

    def test_case_19_sixteen_threads_route_500_times_each(self, plain: Any, caplog: Any) -> None:
        tokenizer = HuggingFaceTokenizer(plain)
        made = router(tokenizer)
        bodies = [chat(SYSTEM, user(f"question {n} " * 5)) for n in range(50)]
        expected = [read(body, tokenizer) for body in bodies]

        def work(thread: int) -> None:
            for at in range(500):
                number = (at * 7 + thread) % len(bodies)
                assert made.read(bodies[number]) == expected[number]
                if at % 100 == 0:  # somebody else uses the same object, and changes it
                    plain("some text", truncation=True, max_length=2 + thread)
                    read(bodies[number], tokenizer)

        with warned(caplog) as found, ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(work, thread) for thread in range(16)]:
                done.result(60)
        assert not found

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
    def test_case_19_a_child_of_a_fork_routes_as_its_parent_does(self, plain: Any) -> None:
        made = router(HuggingFaceTokenizer(plain))
        body, other = chat(SYSTEM, user("hello")), chat(SYSTEM, user("other " * 99))
        made.route(body)
        expected = read(other, HuggingFaceTokenizer(plain))
        child = os.fork()
        if child == 0:
            made.route(body)
            os._exit(0 if made.read(other) == expected else 1)
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ended == (child, 0)


_SCRIPT = """
import json, sys
from prefixroute.tokenizers import HuggingFaceTokenizer, TiktokenTokenizer
from tests.tokenizers.models import CHATML, encoding, hf_tokenizer
from tests.tokenizers.support import router
from tests.core.bodies import chat, completion, user

system = {"role": "system", "content": "You are kind."}
bodies = [chat(system, user("hello")), completion("word " * 2000)]
for tokenizer in (TiktokenTokenizer(encoding()), HuggingFaceTokenizer(hf_tokenizer(CHATML))):
    made = router(tokenizer)
    print(made.fingerprint, [made.read(body).chain for body in bodies])
    print([made.route(body).endpoint.id for body in bodies])
"""


@needs_tiktoken
@needs_transformers
def test_case_20_processes_agree() -> None:
    """channels_redis 273: a hash that differs from process to process."""
    root = Path(__file__).parents[2]
    printed = set()
    for seed in ("0", "random"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", _SCRIPT]
        done = subprocess.run(
            command, env=env, cwd=root, capture_output=True, text=True, check=True
        )
        printed.add(done.stdout)
    assert len(printed) == 1
    assert "gpu" in printed.pop()
