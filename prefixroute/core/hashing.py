"""Stable 64-bit digests, and the chained block hashes of a prompt.

Every process that is to place a prompt alike has to compute the same numbers, so Python's salted
``hash()`` is never used and all seeds are fixed. MurmurHash3 is fast and well spread but not
cryptographic: somebody who crafts prompts can make two of them collide, which costs a worse
placement and nothing else.

A block is hashed behind the length of its segment's head, the kind and length of every piece of a
part that it holds, and marks that say whether the piece ends its part and the block its segment.
That can be taken apart in one way only, so no two different prompts share an encoding, whatever
bytes they contain, and none share a block before which they differ.

Source: Austin Appleby, MurmurHash3 x64 128, its first half
(https://github.com/aappleby/smhasher), through ``mmh3``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import mmh3

__all__ = [
    "PROMPT_SEED",
    "RING_SEED",
    "ChainBuilder",
    "Part",
    "Segment",
    "copied",
    "digest64",
    "pack_fields",
    "running_hash",
    "utf8",
    "window_key",
]

PROMPT_SEED: Final = 0x70726F6D  # "prom": prompts and ring positions must not share a hash
RING_SEED: Final = 0x72696E67  # "ring"

_MASK_32: Final = 0xFFFF_FFFF

DOUBLE_EVERY: Final = 64
"""Blocks after which the length of a block doubles, so that a long chain stays a short tuple."""

_FRAME: Final = struct.Struct("<QIB")
_ENTRY: Final = struct.Struct("<cQ")
_PIECE: Final = struct.Struct("<cBQ")
_TEXT_ENDS: Final = b"t\x01"  # kind and mark of a piece that is all of a text part

Part: TypeAlias = tuple[bytes, bytes, int]
"""A piece of a segment: kind (one byte), bytes to hash, size in units for the work it makes."""

Segment: TypeAlias = tuple[bytes, "bytes | list[Part]"]
"""A head from :func:`pack_fields` with what follows it: the bytes of one text, or parts."""


def digest64(data: bytes | bytearray | memoryview, seed: int = PROMPT_SEED) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 of ``data``, as an unsigned int."""
    return mmh3.mmh3_x64_128_utupledigest(data, seed & _MASK_32)[0]


def running_hash(seed: int = PROMPT_SEED) -> mmh3.mmh3_x64_128:
    """Return a hash with ``update(bytes)`` whose digest can be read at every boundary.

    ``utupledigest()[0]`` names all bytes so far, as :func:`digest64` of them would, so digests
    read along a prompt form a chain: two are equal only where everything before them is.
    """
    return mmh3.mmh3_x64_128(seed=seed & _MASK_32)


def copied(running: mmh3.mmh3_x64_128) -> mmh3.mmh3_x64_128:
    """Return a hash that goes on from where another one is."""
    copy: Any = running.copy()  # its stub names the base class
    return copy  # type: ignore[no-any-return]


def utf8(text: str) -> bytes:
    """Return text as bytes, also where it holds half of a surrogate pair.

    A pair that stands as two halves becomes the one character that a JSON parser makes of it.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return whole.encode("utf-8", "surrogatepass")


def pack_fields(tag: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a tag (one byte), then each field's name (one byte), length and bytes."""
    out = [tag]
    for name, value in fields:
        out.append(_ENTRY.pack(name, len(value)))
        out.append(value)
    return b"".join(out)


class ChainBuilder:
    """Cuts segments into blocks and hashes them one after the other.

    Args:
        block_bytes: Length of a block, in bytes of payload.
    """

    __slots__ = ("block_bytes", "chain", "ends", "hash", "replies", "root_blocks", "size")

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.hash = running_hash()
        self.chain: list[int] = []
        self.ends: list[int] = []
        self.replies: list[int] = []
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
        self, head: bytes, parts: Iterable[Part], *, extra: int = 0, steps: Sequence[int] = ()
    ) -> None:
        """Add a segment: its head, its parts in order, ``extra`` units of size around them.

        Args:
            head: From :func:`pack_fields`; never cut.
            parts: Payload, cut every block and at ``steps``.
            extra: Size that the engine's template adds.
            steps: Boundaries before the first whole block, bytes from the payload's start.
        """
        front, pieces, entries = head, [], []
        at, limit = 0, self._next_end(0, steps)
        for kind, data, size in parts:
            start, base, length = 0, self.size, len(data)
            while at + length - start > limit:
                if room := limit - at:
                    entries.append(_PIECE.pack(kind, 0, room))
                    pieces.append(data[start : start + room])
                    start += room
                self.size = base + size * start // length
                self._close(front, entries, pieces, last=False)
                front, pieces, entries = b"", [], []
                at, limit = limit, self._next_end(limit, steps)
            entries.append(_PIECE.pack(kind, 1, length - start))
            pieces.append(data[start:])
            at += length - start
            self.size = base + size
        self.size += extra
        self._close(front, entries, pieces, last=True)

    def add_all(
        self,
        segments: Iterable[Segment],
        *,
        extra: int = 0,
        steps: Sequence[int] = (),
        replies: Sequence[int] = (),
    ) -> None:
        """Add segments: the same as :meth:`add` of each, but faster where they are short texts.

        Args:
            segments: In order.
            extra: As for :meth:`add`, and so the next.
            steps: Boundaries before the first whole block.
            replies: Indices of the segments that a model wrote, ascending; their blocks are noted.
        """
        update, digest = self.hash.update, self.hash.utupledigest
        chain, ends, short = self.chain, self.ends, -1 if steps else self.block_bytes
        fronts: dict[bytes, bytes] = {}
        first, split, size = len(chain), [(sys.maxsize, 1)], self.size
        for head, body in segments:
            if type(body) is bytes and (length := len(body)) <= short:
                front = fronts.get(head)
                if front is None:
                    front = fronts[head] = _FRAME.pack(len(head), 1, 1) + head + _TEXT_ENDS
                update(front + length.to_bytes(8, "little") + body)
                chain.append(digest()[0])
                size += length + extra
                ends.append(size)
                continue
            start, self.size = len(chain), size
            if not isinstance(body, bytes):
                self.add(head, body, extra=extra, steps=steps)
            elif steps:
                self.add(head, [(b"t", body, len(body))], extra=extra, steps=steps)
            else:
                self._add_text(head, body, extra)
            split.append((start, len(chain) - start))
            size = self.size
        self.size = size
        self._note(replies, first, split)

    def _add_text(self, head: bytes, text: bytes, extra: int) -> None:
        """Add a segment: the same as :meth:`add` of one text without steps, but faster."""
        update, digest = self.hash.update, self.hash.utupledigest
        chain, ends = self.chain, self.ends
        at, length, base = 0, len(text), self.size
        step = self._step()
        while (whole := (length - at - 1) // step) > 0:  # before the last, which may be partial
            alike = DOUBLE_EVERY - len(chain) % DOUBLE_EVERY if at else 1
            front = _FRAME.pack(len(head), 1, 0) + head + _PIECE.pack(b"t", 0, step)
            for _ in range(min(whole, alike)):
                update(front + text[at : at + step])
                at += step
                chain.append(digest()[0])
                ends.append(base + at)
            head, step = b"", self._step()
        front = _FRAME.pack(len(head), 1, 1) + head + _PIECE.pack(b"t", 1, length - at)
        update(front + text[at:])
        self.size = base + length + extra
        chain.append(digest()[0])
        ends.append(self.size)

    def _note(self, replies: Iterable[int], first: int, split: list[tuple[int, int]]) -> None:
        """Note the blocks of replies, given the first block and the blocks of longer segments."""
        if len(split) == 1:  # only the one that ends the list
            self.replies += [first + index for index in replies]
            return
        split.sort(reverse=True)
        more = 0  # blocks than segments, up to here
        for index in replies:
            while split[-1][0] < first + index + more:
                more += split.pop()[1] - 1
            start = first + index + more
            self.replies += range(start, start + (split[-1][1] if split[-1][0] == start else 1))

    def _next_end(self, start: int, steps: Sequence[int]) -> int:
        for step in steps:
            if step > start:
                return step
        if steps and start == steps[-1] and start < self.block_bytes:
            return self.block_bytes
        return start + self._step()

    def _step(self) -> int:
        """Return the length of a block that starts now."""
        return self.block_bytes << (len(self.chain) // DOUBLE_EVERY)

    def _close(self, head: bytes, entries: list[bytes], pieces: list[bytes], *, last: bool) -> None:
        frame = _FRAME.pack(len(head), len(entries), last)
        self.hash.update(b"".join([frame, head, *entries, *pieces]))
        self.chain.append(self.hash.utupledigest()[0])
        self.ends.append(self.size)


def window_key(head: bytes, segments: Iterable[Segment], window_bytes: int | None) -> int:
    """Return one key for the first bytes of a prompt.

    Args:
        head: Model, salts and tools: always part of the key, whatever their length.
        segments: Root and first message, in order; their heads count, but not their lengths.
        window_bytes: How many bytes of their parts count; ``None``: all.
    """
    fields, left = [(b"h", head)], sys.maxsize if window_bytes is None else window_bytes
    for front, body in segments:
        fields.append((b"h", front))
        for kind, data, _ in [(b"t", body, 0)] if isinstance(body, bytes) else body:
            fields.append((kind, data[:left]))
            left -= len(data)
            if left <= 0:
                return digest64(pack_fields(b"W", fields))
    return digest64(pack_fields(b"W", fields))
