"""A prompt as placement sees it: a chain of block hashes with their sizes.

``chain[i]`` names everything from the start of the prompt up to boundary i, so two prompts have a
block hash in common only where they are equal up to there. Boundaries are the end of the root
(model, salts, tools, system prompt), the end of every message, and every block inside any of these
that is longer. Turn n+1 of a chat therefore extends the chain of turn n.

Each block is hashed behind its length and a mark that says whether it ends its segment, and each
segment (root, message, text) ends with the kinds and lengths of its parts. Both can be taken apart
in one way only, so no two different prompts share an encoding, whatever bytes they contain.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from prefixroute.core.hashing import digest64, running_hash
from prefixroute.errors import ConfigurationError

__all__ = ["BYTES_PER_TOKEN", "ChainBuilder", "Cut", "KeySource", "Part", "Prompt"]

BYTES_PER_TOKEN: Final = 4.0
"""What a token is taken for until replies of a model have said better."""

MESSAGE_BYTES: Final = 16
"""What a chat template adds around a message, about 4 tokens."""

TEXT_STEPS: Final = (128, 256, 512)
"""Boundaries of a plain text before its first whole block: it has no messages to be cut at."""

DOUBLE_EVERY: Final = 64
"""Blocks after which the length of a block doubles, so that a long chain stays a short tuple."""

TOKEN_BYTES: Final = 8
"""Token ids are hashed as 64-bit integers."""

_FRAME: Final = struct.Struct("<IB")
_ENTRY: Final = struct.Struct("<cQ")
_COUNT: Final = struct.Struct("<I")

Part = tuple[bytes, bytes, int]
"""A piece of a segment: kind (one byte), bytes to hash, size in bytes for the work it makes."""


class KeySource(Enum):
    """What a prompt's chain was made of."""

    MESSAGES = "messages"
    TEXT = "text"
    TOKENS = "tokens"
    INPUT = "input"
    SESSION = "session"
    BLOCKS = "blocks"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a placement wants prompts cut.

    Args:
        block_bytes: Length of a block, bytes; doubles every 64 blocks.
        window_bytes: If given, the chain is one key: root and first message, cut to this length.
    """

    block_bytes: int = 1024
    window_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What placement knows of a request. Holds hashes and sizes, never text.

    Args:
        chain: Block hashes, 64 bits each, from the root on; empty: the request has no key.
        ends: Size of the prompt up to each boundary, in units.
        size: Size of all that the request asks to prefill (a batch: of all prompts), in units.
        tokens_per_unit: 1 where units are tokens, else a guess until replies say better.
        root_blocks: How many blocks of the chain belong to the root.
        source: What the chain was made of.
        model: The model asked for.
        session: The session that keeps the conversation together.
        pin: Id of the earlier response or conversation that this one continues.
        stream: The request asks for a streamed reply.
    """

    chain: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    size: int = 0
    tokens_per_unit: float = 1 / BYTES_PER_TOKEN
    root_blocks: int = 0
    source: KeySource = KeySource.NONE
    model: str | None = None
    session: str | None = None
    pin: str | None = None
    stream: bool = False

    def __repr__(self) -> str:
        """Show the shape; ids that a caller chose may be secrets and stay out."""
        return (
            f"<Prompt {self.source.value}, {len(self.chain)} blocks, "
            f"about {self.tokens:.0f} tokens, model {self.model!r}>"
        )

    @property
    def tokens(self) -> float:
        """Size of the whole request, tokens (a guess where units are bytes)."""
        return self.size * self.tokens_per_unit

    @property
    def counted(self) -> bool:
        """Whether units are tokens, so that nothing has to be guessed."""
        return self.tokens_per_unit == 1.0

    @classmethod
    def from_blocks(
        cls,
        block_ids: Iterable[int],
        *,
        block_tokens: int,
        tokens: int | None = None,
        model: str | None = None,
    ) -> Prompt:
        """Return the prompt of a trace that names its blocks.

        Args:
            block_ids: One int for each block's own content, as in Mooncake's traces; they are
                chained here, so an id means the same only after the same ids.
            block_tokens: Length of a block, tokens.
            tokens: Length of the prompt, tokens; the last block may be partial. Default: whole
                blocks.
            model: The model asked for.

        Raises:
            ConfigurationError: ``block_tokens`` below 1, or ``tokens`` that do not fit the blocks.
        """
        ids = list(block_ids)
        if block_tokens < 1:
            raise ConfigurationError(f"block_tokens={block_tokens!r} must be at least 1")
        whole = len(ids) * block_tokens
        total = whole if tokens is None else tokens
        if not (whole - block_tokens < total <= whole or (not ids and total == 0)):
            raise ConfigurationError(
                f"tokens={tokens!r} must end in the last of {len(ids)} blocks of {block_tokens}: "
                f"from {max(0, whole - block_tokens + 1)} to {whole}"
            )
        state = running_hash()
        state.update(pack_fields(b"B", [(b"m", utf8(model or ""))]))
        chain = []
        for block_id in ids:
            state.update(_mod64(block_id).to_bytes(8, "little"))
            chain.append(state.utupledigest()[0])
        ends = [min(total, (i + 1) * block_tokens) for i in range(len(ids))]
        return cls(
            chain=tuple(chain),
            ends=tuple(ends),
            size=total,
            tokens_per_unit=1.0,
            source=KeySource.BLOCKS if ids else KeySource.NONE,
            model=model,
        )

    def with_ratio(self, tokens_per_unit: float) -> Prompt:
        """Return the same prompt with another guess of tokens per unit."""
        return replace(self, tokens_per_unit=tokens_per_unit)


def utf8(text: str) -> bytes:
    """Return text as bytes, also where it holds half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def _mod64(value: int) -> int:
    return value & 0xFFFF_FFFF_FFFF_FFFF


def pack_tokens(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes; equal for equal ids on every machine."""
    packed = array("q", ids)
    if packed.itemsize != TOKEN_BYTES or struct.pack("=I", 1) != struct.pack("<I", 1):
        return b"".join(_mod64(i).to_bytes(TOKEN_BYTES, "little") for i in ids)
    return packed.tobytes()


def pack_fields(tag: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a segment's head: its tag, then each field's name, length and bytes."""
    out = [tag]
    for name, value in fields:
        out.append(_ENTRY.pack(name, len(value)))
        out.append(value)
    return b"".join(out)


def pack_footer(parts: Sequence[Part]) -> bytes:
    """Return what ends a segment: kind and length of each part, and how many there are."""
    entries = [_ENTRY.pack(kind, len(data)) for kind, data, _ in parts]
    entries.append(_COUNT.pack(len(parts)))
    return b"".join(entries)


class ChainBuilder:
    """Cuts segments into blocks and hashes them one after the other.

    Args:
        block_bytes: Length of a block, in bytes of payload.
        per_unit: Bytes of payload in one unit of size: 1 for text, 8 for token ids.
    """

    __slots__ = ("_block", "_hash", "_per_unit", "chain", "ends", "root_blocks", "size")

    def __init__(self, block_bytes: int, per_unit: int = 1) -> None:
        self._block = block_bytes
        self._per_unit = per_unit
        self._hash = running_hash()
        self.chain: list[int] = []
        self.ends: list[int] = []
        self.root_blocks = 0
        self.size = 0

    def append(self, key: int) -> None:
        """Add a block that was hashed elsewhere; :meth:`grow` gives it its size."""
        self.chain.append(key)
        self.ends.append(self.size)

    def grow(self, units: int) -> None:
        """Let the last block reach ``units`` further."""
        self.size += units
        self.ends[-1] = self.size

    def add(
        self, head: bytes, parts: Sequence[Part], *, extra: int = 0, steps: Sequence[int] = ()
    ) -> None:
        """Add a segment: its head, its parts in order, ``extra`` bytes of size around them.

        Args:
            head: From :func:`pack_fields`; never cut.
            parts: Payload, cut every block and at ``steps``.
            extra: Size that the engine's template adds, bytes.
            steps: Boundaries before the first whole block, bytes from the payload's start.
        """
        payload = b"".join([data for _, data, _ in parts])
        size = sum([size for _, _, size in parts]) + extra
        start, base = 0, self.size
        while True:
            end = self._next_end(start, steps)
            if end >= len(payload):
                break
            self._block_ends(head + payload[start:end], last=False)
            head, start = b"", end
            self.size = base + min(size, end) // self._per_unit
            self.ends.append(self.size)
        self.size = base + size // self._per_unit
        self._block_ends(head + payload[start:] + pack_footer(parts), last=True)
        self.ends.append(self.size)

    def _next_end(self, start: int, steps: Sequence[int]) -> int:
        for step in steps:
            if step > start:
                return step
        if steps and start == steps[-1] and start < self._block:
            return self._block
        return start + (self._block << (len(self.chain) // DOUBLE_EVERY))

    def _block_ends(self, data: bytes, *, last: bool) -> None:
        self._hash.update(_FRAME.pack(len(data) & 0xFFFF_FFFF, last) + data)
        self.chain.append(self._hash.utupledigest()[0])


def window_key(head: bytes, parts: Sequence[Part], window_bytes: int) -> int:
    """Return one key for the first ``window_bytes`` of a prompt (arXiv:1608.01350's "ball").

    Args:
        head: Model, salts and tools: always part of the key, whatever their length.
        parts: Root and first message, in order.
        window_bytes: How many of their bytes count.
    """
    payload = b"".join([data for _, data, _ in parts])
    if len(payload) > window_bytes:
        return digest64(pack_fields(b"W", [(b"h", head)]) + payload[:window_bytes])
    return digest64(pack_fields(b"w", [(b"h", head)]) + payload + pack_footer(parts))
