"""Tokenizers: what one has to offer, and how the content of a request is counted in its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from prefixroute.core.checks import refusal
from prefixroute.core.content import TOKEN_BYTES, Content, size_of
from prefixroute.core.hashing import Part, Segment, pack_fields, utf8
from prefixroute.core.logs import log
from prefixroute.core.pieces import (
    Pieces,
    char_start,
    is_failure,
    pack_ids,
    plain_ids,
)
from prefixroute.core.prompt import BYTES_PER_TOKEN, Cut, KeySource
from prefixroute.core.rendered import Chat, probes, split_rendered, suffix_of
from prefixroute.core.texts import IDS_HEAD, TEXT_STEPS
from prefixroute.errors import TokenizerUnavailable

__all__ = ["Chat", "ChatTokenizer", "TokenReader", "Tokenizer"]


MAX_BYTES: Final = 2**17
"""How much of a prompt is encoded; the rest is cut in bytes and counted in proportion."""

_PER_TOKEN: Final = int(BYTES_PER_TOKEN)
_IN_TOKENS: Final = 0x80  # set in the kind of a part whose text was encoded
_AS_THEY_ARE: Final = (b"i", b"g", b"d")  # ids, and digests of media


class Tokenizer(Protocol):
    """Turns text into token ids. Those of tiktoken and transformers fit as they are.

    It may also have

    - ``name``, a str: routers whose tokenizers have the same name agree (default: its class);
    - ``max_bytes``, an int: how much of a prompt is encoded, the rest is counted in proportion.
    """

    def encode(self, text: str, /) -> Sequence[int]:
        """Return the ids of a text that a caller wrote: nothing in it is a special token.

        Called from any thread, also of a forked child. Whatever it raises, bytes are counted
        instead: a piece of the prompt's, or all of it for :class:`TokenizerUnavailable`.
        """
        ...


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows the model's chat template."""

    def encode_prompt(self, text: str, /) -> Sequence[int]:
        """Return the ids of a text as the engine reads a prompt: special tokens are such."""
        ...

    def render(self, chat: Chat, /) -> str | Sequence[int] | None:
        """Return the prompt that the engine makes of a chat, as text or ids; ``None``: unknown."""
        ...


class TokenReader:
    """Counts the content of requests in the tokens of one tokenizer; thread-safe, never raises.

    Args:
        tokenizer: What counts.

    Raises:
        ConfigurationError: It has no ``encode``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        encodes = callable(getattr(tokenizer, "encode", None))
        if isinstance(tokenizer, type | str) or not encodes:  # a str has an encode() too
            rule = "an instance of a tokenizer of prefixroute.tokenizers, or have encode(text)"
            raise refusal("Router", "tokenizer", tokenizer, rule)
        self._tokenizer = tokenizer
        self._said: dict[str, object] = {}
        self._behind: dict[str, str] | None = None
        self._plain = Pieces(tokenizer.encode, self._warn)
        encode_prompt = getattr(tokenizer, "encode_prompt", None)
        self._prompts = Pieces(encode_prompt, self._warn) if encode_prompt else self._plain
        self._render: Callable[[Chat], object] | None = getattr(tokenizer, "render", None)

    @property
    def name(self) -> str:
        """Name of the tokenizer."""
        return str(getattr(self._tokenizer, "name", type(self._tokenizer).__qualname__))

    def read(
        self,
        content: Content,
        tools: list[Part],
        chat: Callable[[], Chat | None],
        cut: Cut,
    ) -> tuple[Content, list[Part]]:
        """Return content and tools in tokens; as they were given where that can't be.

        Args:
            content: In bytes.
            tools: In bytes.
            chat: Returns the chat that this is, if a template can render it.
            cut: Where the placement wants prompts cut: more than that is not encoded.
        """
        if content.counted:
            return content, tools
        try:
            rendered = self._rendered(content, chat, cut)
            return self._canonical(content, tools, cut) if rendered is None else (rendered, [])
        except TokenizerUnavailable as error:
            self._warn("unavailable", str(error))
        except Exception as error:  # noqa: BLE001 - a request is never failed by counting
            self._warn("read", f"it raised {type(error).__name__}")
        return content, tools

    def _warn(self, kind: str, why: str, instead: str = "bytes are counted") -> None:
        """Log each kind of failure once. What a library says may quote a prompt: it is left out."""
        mine = object()
        if self._said.setdefault(kind, mine) is mine:
            log.warning("tokenizer %s: %s; %s instead (said once)", self.name, why, instead)

    def _count(self, cut: Cut) -> _Count:
        max_bytes = getattr(self._tokenizer, "max_bytes", MAX_BYTES)
        needed = max_bytes if cut.window_bytes is None else cut.window_bytes * _PER_TOKEN
        return _Count(min(max_bytes, needed))

    # -- as the template has it ------------------------------------------------

    def _rendered(
        self, content: Content, chat: Callable[[], Chat | None], cut: Cut
    ) -> Content | None:
        if self._render is None or content.source in (KeySource.NONE, KeySource.TEXT):
            return None
        made = chat()
        prompt = None if made is None else self._ask(made)
        if made is None or not prompt:
            return None
        if not isinstance(prompt, str):
            ids = pack_ids(plain_ids(prompt))
            return Content(
                source=content.source,
                rest=[(_head(""), [(b"i", ids, len(ids) // TOKEN_BYTES)])],
                steps=[step * TOKEN_BYTES // _PER_TOKEN for step in TEXT_STEPS],
                counted=True,
            )
        root, pieces, tail = split_rendered(prompt, made.messages, self._suffixes())
        count = self._count(cut)
        later = made.messages[len(made.messages) - len(pieces) :]
        heads = [_head(str(message["role"])) for message in later]
        return Content(
            source=content.source,
            root=count.text(self._prompts, root),
            rest=[(h, count.text(self._prompts, p)) for h, p in zip(heads, pieces, strict=True)],
            replies=content.replies,
            others=size_of(count.text(self._prompts, tail)),
            counted=True,
        )

    def _ask(self, chat: Chat) -> object:
        try:
            return self._render(chat) if self._render is not None else None
        except BaseException as error:
            if not is_failure(error):
                raise
            why = f"its chat template refuses a chat ({type(error).__name__})"
            self._warn("template", why, "messages are counted one by one")
            return None

    def _suffixes(self) -> dict[str, str]:
        """Return what the template puts behind a content, by role; asked for once."""
        if self._behind is None:
            shown = {role: self._probe(chat) for role, chat in probes().items()}
            self._behind = {role: suffix_of(text) for role, text in shown.items()}
        return self._behind

    def _probe(self, chat: Chat) -> str:
        try:
            text = self._render(chat) if self._render is not None else ""
        except BaseException as error:
            if not is_failure(error):
                raise
            return ""  # it refuses a role, which is then looked for without
        return text if isinstance(text, str) else ""

    # -- as it is --------------------------------------------------------------

    def _canonical(
        self, content: Content, tools: list[Part], cut: Cut
    ) -> tuple[Content, list[Part]]:
        count = self._count(cut)
        text = content.source is KeySource.TEXT
        pieces = self._prompts if text else self._plain
        counted_tools = count.parts(pieces, tools)
        root = count.parts(pieces, content.root)
        rest: list[Segment] = []
        for head, body in content.rest:
            parts = [(b"t", body, len(body))] if isinstance(body, bytes) else body
            counted = count.parts(pieces, parts, joined=text)
            rest.append((IDS_HEAD if text else head, counted))
        return Content(
            source=content.source,
            root=root,
            rest=rest,
            replies=content.replies,
            steps=[step * TOKEN_BYTES // _PER_TOKEN for step in content.steps],
            around=content.around // _PER_TOKEN,
            others=count.estimate(content.others),
            batch=content.batch,
            counted=True,
        ), counted_tools


def _head(role: str) -> bytes:
    """Return the head of a rendered message: its role tells it from others where it is empty."""
    return pack_fields(b"C", [(b"r", utf8(role))])


class _Count:
    """Encodes the parts of one prompt from its start on, up to a number of bytes.

    Args:
        left: How many bytes.
    """

    __slots__ = ("_bytes", "_left", "_tokens")

    def __init__(self, left: int) -> None:
        self._left = left
        self._bytes = self._tokens = 0

    def text(self, pieces: Pieces, text: str) -> list[Part]:
        """Return a text in tokens."""
        return self.parts(pieces, [(b"t", data := utf8(text), len(data))]) if text else []

    def parts(self, pieces: Pieces, parts: Iterable[Part], *, joined: bool = False) -> list[Part]:
        """Return parts in tokens; ``joined``: texts and ids follow each other as one text."""
        out: list[Part] = []
        for kind, data, size in parts:
            if size == 0 or kind in _AS_THEY_ARE:
                _put(out, (kind, data, size // _PER_TOKEN), joined=joined and kind == b"i")
            else:
                self._encode(out, pieces, kind, data, joined=joined)
        return out

    def _encode(
        self, out: list[Part], pieces: Pieces, kind: bytes, data: bytes, *, joined: bool
    ) -> None:
        end = char_start(data, self._left)
        in_tokens = b"i" if kind == b"t" else bytes([kind[0] | _IN_TOKENS])
        for ids, piece in pieces.runs(data[:end]):
            made = (kind, piece, len(piece) // _PER_TOKEN)
            if ids is not None:
                made = (in_tokens, ids, len(ids) // TOKEN_BYTES)
            _put(out, made, joined=joined)
            self._left -= len(piece)
            self._bytes += len(piece)
            self._tokens += made[2]
            joined = True
        if end < len(data):
            self._left = 0
            rest = data[end:]
            _put(out, (kind, rest, self.estimate(len(rest))), joined=joined)

    def estimate(self, size: int) -> int:
        """Return the tokens of so many bytes more, in proportion to what was encoded."""
        return size * self._tokens // self._bytes if self._bytes else size // _PER_TOKEN


def _put(out: list[Part], part: Part, *, joined: bool) -> None:
    """Append a part; or lengthen the last one, if both are of a kind and belong together."""
    if joined and out and out[-1][0] == part[0]:
        kind, data, size = out[-1]
        out[-1] = (kind, data + part[1], size + part[2])
    else:
        out.append(part)
