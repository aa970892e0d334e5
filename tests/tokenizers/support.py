"""Tokenizers made of a few lines, templates as models have them, and chats."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from prefixroute import Router
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.request import read_prompt
from prefixroute.core.tokens import Tokenizer, TokenReader
from prefixroute.tokenizers import Chat

URLS = ["http://gpu-0:8000/v1", "http://gpu-1:8000/v1"]

Template = Callable[[Sequence[Mapping[str, Any]]], str]


class Letters:
    """A token for every two letters of the alphabet, for any other character one."""

    name = "letters"

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, text: str, /) -> list[int]:
        self.encoded.append(text)
        ids, at = [], 0
        while at < len(text):
            two = text[at : at + 2]
            if len(two) == 2 and two.isascii() and two.isalpha():
                ids.append(2**21 + ord(two[0]) * 128 + ord(two[1]))
                at += 2
            else:
                ids.append(ord(text[at]))
                at += 1
        return ids

    @property
    def bytes_encoded(self) -> int:
        return sum(len(text.encode()) for text in self.encoded)


class Templated(Letters):
    """As `Letters`, with a chat template; special tokens are one token each."""

    def __init__(self, template: Template) -> None:
        super().__init__()
        self.template = template
        self.rendered = 0

    def encode_prompt(self, text: str, /) -> list[int]:
        ids = []
        for part in re.split(r"(<\|[^|]*\|>)", text):
            special = part.startswith("<|") and part.endswith("|>")
            ids += [2**20 + len(part)] if special else self.encode(part)
        return ids

    def render(self, chat: Chat, /) -> str:
        self.rendered += 1
        return self.template(chat.messages)


def flat(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def chatml(messages: Sequence[Mapping[str, Any]]) -> str:
    """SmolLM2's, Qwen's: with a system prompt of its own where there is none."""
    turns = list(messages)
    if not turns or turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    text = [f"<|im_start|>{m['role']}\n{flat(m['content'])}<|im_end|>\n" for m in turns]
    return "".join(text) + "<|im_start|>assistant\n"


def llama3(messages: Sequence[Mapping[str, Any]]) -> str:
    """Strips what it is given."""
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    text = [head.format(m["role"]) + flat(m["content"]).strip() + "<|eot_id|>" for m in messages]
    return "<|begin_of_text|>" + "".join(text) + head.format("assistant")


def llama2(messages: Sequence[Mapping[str, Any]]) -> str:
    """Marks turns with ordinary text."""
    out, system = "", ""
    for m in messages:
        content = flat(m["content"]).strip()
        if m["role"] == "system":
            system = f"<<SYS>>\n{content}\n<</SYS>>\n\n"
        elif m["role"] == "assistant":
            out += f" {content} </s>"
        else:
            out += f"<s>[INST] {system}{content} [/INST]"
            system = ""
    return out


def thinking(messages: Sequence[Mapping[str, Any]]) -> str:
    """Opens a thought in the prompt, and leaves thoughts out of earlier replies."""
    text = [
        f"<|{m['role']}|>\n{flat(m['content']).rpartition('</think>')[2].strip()}\n<|end|>\n"
        for m in messages
    ]
    return "".join(text) + "<|assistant|>\n<think>\n"


TEMPLATES: dict[str, Template] = {
    "chatml": chatml,
    "llama3": llama3,
    "llama2": llama2,
    "thinking": thinking,
}


def reader(tokenizer: Tokenizer) -> TokenReader:
    return TokenReader(tokenizer)


def read(body: Any, tokenizer: Tokenizer, *, cut: Cut | None = None, **how: Any) -> Prompt:
    """Read a prompt with a tokenizer that has seen nothing yet."""
    return read_prompt(body, tokens=TokenReader(tokenizer), cut=cut or Cut(), **how)


def router(tokenizer: Tokenizer, **how: Any) -> Router:
    return Router(URLS, tokenizer=tokenizer, seed=0, **how)


@contextmanager
def warned(caplog: Any) -> Iterator[list[str]]:
    """Collect what is logged as a warning by the router."""
    caplog.set_level(logging.INFO, logger="prefixroute")
    found: list[str] = []
    before = len(caplog.records)
    yield found
    records = caplog.records[before:]
    found += [r.getMessage() for r in records if r.levelno >= logging.WARNING]
