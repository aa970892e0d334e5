"""Tokenizers for ``Router(tokenizer=...)``: work is counted and blocks are cut in tokens.

>>> from prefixroute.tokenizers import HuggingFaceTokenizer
>>> router = Router(urls, tokenizer=HuggingFaceTokenizer("/models/Qwen3-8B"))

| class | extra | counts | cost |
|---|---|---|---|
| :class:`HuggingFaceTokenizer` | ``transformers`` | what an engine makes of a chat | 0.5 µs/byte |
| :class:`TiktokenTokenizer` | ``tiktoken`` | message by message | 0.15 µs/byte |
| :class:`EngineTokenizer` | | what an engine makes of a chat | a call for each new text |

What was encoded is remembered, so that a turn of a chat costs what is new in it. Whatever goes
wrong (no vocabulary, a template that refuses, a panic), bytes are counted instead, and the log says
so once. Importing this loads neither library.
"""

from __future__ import annotations

from prefixroute.core.tokens import Chat, ChatTokenizer, Tokenizer
from prefixroute.errors import TokenizerUnavailable
from prefixroute.tokenizers.engine import EngineTokenizer
from prefixroute.tokenizers.huggingface import HuggingFaceTokenizer
from prefixroute.tokenizers.tiktoken import TiktokenTokenizer

__all__ = [
    "Chat",
    "ChatTokenizer",
    "EngineTokenizer",
    "HuggingFaceTokenizer",
    "TiktokenTokenizer",
    "Tokenizer",
    "TokenizerUnavailable",
]
