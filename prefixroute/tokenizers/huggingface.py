"""``HuggingFaceTokenizer``: a model's own tokenizer and chat template, as its engine has them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from prefixroute.core.checks import check_int, refusal
from prefixroute.core.hashing import digest64, utf8
from prefixroute.core.pieces import plain_ids
from prefixroute.core.tokens import Chat
from prefixroute.errors import ConfigurationError, TokenizerUnavailable

__all__ = ["HuggingFaceTokenizer"]

_MAX_BYTES: Final = 2**16
"""Half of the others': these tokenizers take three times as long."""

_OURS: Final = frozenset({"conversation", "chat_template", "return_assistant_tokens_mask"})
_PROBE: Final = ("prefixroute-one", "prefixroute-two")


class HuggingFaceTokenizer:
    """Counts what the engine makes of a request, by the model's own tokenizer and chat template.

    Where a template cannot render a chat (none is there, it refuses a role, the chat has images),
    its messages are counted one by one, and what a template adds is taken for four tokens each.

    Args:
        tokenizer: A tokenizer of transformers or tokenizers; or the folder of one, or the name of
            one that is in the local cache. Nothing is downloaded. An object is copied: it may go on
            being used, and changed, elsewhere.
        chat_template: In place of the tokenizer's own, as engines are started with one.
        max_bytes: How much of a prompt is encoded; the rest is counted in proportion.

    Raises:
        ConfigurationError: transformers is not installed, or the object is no tokenizer. (A folder
            that cannot be read is no error: bytes are counted, and the log says so once.)
    """

    def __init__(
        self,
        tokenizer: object,
        *,
        chat_template: str | None = None,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        check_int("HuggingFaceTokenizer", "max_bytes", max_bytes, 1)
        self.max_bytes = max_bytes
        self._template = chat_template
        self._why = ""
        self._lock = _ForkedLock()
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = self._load(Path(tokenizer) if Path(tokenizer).exists() else str(tokenizer))
        elif not callable(getattr(tokenizer, "encode", None)):
            rule = "a tokenizer of transformers, or the folder of one"
            raise refusal("HuggingFaceTokenizer", "tokenizer", tokenizer, rule)
        self._tokenizer: Any = tokenizer
        self._backend, vocabulary = _copy_of_backend(tokenizer)
        self._special = _special_tokens(self._backend)
        template = chat_template or getattr(tokenizer, "chat_template", None)
        digest = digest64(utf8(f"{vocabulary} {template}"))
        self._name = "(missing)" if tokenizer is None else f"{digest:016x}"

    def _load(self, path: Path | str) -> object:
        if importlib.util.find_spec("transformers") is None:
            raise ConfigurationError(
                f"HuggingFaceTokenizer({str(path)!r}) needs transformers: "
                "pip install 'prefixroute[transformers]'"
            )
        from transformers import AutoTokenizer  # noqa: PLC0415 - an extra, and takes seconds

        try:
            return AutoTokenizer.from_pretrained(  # it would ask on the terminal whether to trust
                path, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the files
            self._why = f"no tokenizer in {path} ({type(error).__name__})"
            return None

    def __repr__(self) -> str:
        return f"<HuggingFaceTokenizer {self.name}>"

    @property
    def name(self) -> str:
        """A digest of vocabulary and template, so that two copies in two folders are one."""
        return f"huggingface {self._name}"

    def encode(self, text: str, /) -> Sequence[int]:
        """Return the ids of a text; special tokens in it are cut apart, so that they are plain.

        Raises:
            TokenizerUnavailable: The tokenizer could not be loaded.
        """
        if self._special is None:
            return self.encode_prompt(text)
        ids: list[int] = []
        start = 0
        for match in self._special.finditer(text):
            ids += self.encode_prompt(text[start : match.start() + 1])
            start = match.start() + 1
        rest = text[start:]
        return [*ids, *self.encode_prompt(rest)] if ids else self.encode_prompt(rest)

    def encode_prompt(self, text: str, /) -> Sequence[int]:
        """Return the ids of a text, special tokens as such.

        Raises:
            TokenizerUnavailable: The tokenizer could not be loaded.
        """
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        if self._tokenizer is None:
            raise TokenizerUnavailable(self._why)
        with self._lock.held():
            try:
                found = self._tokenizer.encode(text, add_special_tokens=False)
            except TypeError:
                found = self._tokenizer.encode(text)
        return list(plain_ids(found))

    def render(self, chat: Chat, /) -> str | Sequence[int] | None:
        """Return the prompt that the template makes of a chat.

        Raises:
            Exception: What the template raises.
            TokenizerUnavailable: The tokenizer could not be loaded.
        """
        if self._tokenizer is None:
            raise TokenizerUnavailable(self._why)
        if not hasattr(self._tokenizer, "apply_chat_template"):
            return None
        given = {"tools": chat.tools, "documents": chat.documents}
        kwargs = {k: v for k, v in chat.template_kwargs.items() if k not in _OURS}
        kwargs |= {name: list(value) for name, value in given.items() if value is not None}
        return self._apply([self._message(message) for message in chat.messages], kwargs)

    def _apply(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> str | Sequence[int]:
        if self._template is not None:
            kwargs["chat_template"] = self._template
        kwargs |= {"tokenize": False, "add_generation_prompt": True}
        prompt = self._tokenizer.apply_chat_template(messages, **kwargs)
        return prompt if isinstance(prompt, str) else list(plain_ids(prompt))

    def _message(self, message: Mapping[str, object]) -> dict[str, Any]:
        """Return a message as engines hand it to a template."""
        made: dict[str, Any] = dict(message)
        content, calls = made["content"], made.get("tool_calls")
        if isinstance(content, list) and not self._takes_lists:
            made["content"] = "\n".join(part["text"] for part in content)
        if isinstance(calls, list):
            made["tool_calls"] = [_with_arguments(call) for call in calls]
        return made

    @cached_property
    def _takes_lists(self) -> bool:
        """Whether the template goes through the parts of a content, rather than printing a list."""
        parts = [{"type": "text", "text": text} for text in _PROBE]
        try:
            text = self._apply([{"role": "user", "content": parts}], {})
        except Exception:  # noqa: BLE001 - it does not
            return False
        shown = isinstance(text, str) and all(word in text for word in _PROBE)
        return shown and "'text'" not in text and '"text"' not in text


def _with_arguments(call: Any) -> Any:
    """Return a tool call whose arguments are an object, as templates want them, not its JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _copy_of_backend(tokenizer: Any) -> tuple[Any, str]:
    """Return a copy of the Rust tokenizer inside, if there is one, and what tells it from others.

    It is never changed, so that threads can share it; the original is changed by each call that
    pads or truncates, and then raises "Already borrowed" in whoever is using it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not (hasattr(backend, "to_str") and hasattr(type(backend), "from_str")):
        return None, type(tokenizer).__qualname__
    vocabulary = backend.to_str()
    copy = type(backend).from_str(vocabulary)
    copy.no_truncation()
    copy.no_padding()
    return copy, vocabulary


def _special_tokens(backend: Any) -> re.Pattern[str] | None:
    """Return what finds special tokens in a text; ``None``: there are none."""
    if not hasattr(backend, "get_added_tokens_decoder"):
        return None
    added = backend.get_added_tokens_decoder().values()
    texts = {token.content for token in added if token.special and len(token.content) > 1}
    return re.compile("|".join(map(re.escape, sorted(texts)))) if texts else None


class _ForkedLock:
    """A lock that is a new one in a forked child: the thread that held it is not there."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def held(self) -> threading.Lock:
        """Return this process's lock, for a ``with``."""
        lock = self._locks.get(os.getpid())
        return lock or self._locks.setdefault(os.getpid(), threading.Lock())
