"""Text to token ids, piece by piece: bounded, remembered, and never raising.

A tokenizer is somebody else's code, in places quadratic, and slow beside a hash. So a long text is
cut where no tokenizer's word goes on, before it is encoded; a piece is encoded once and then
remembered, so that turn n+1 of a chat costs what is new in it; and a piece without any place to
cut it (a million spaces), or that a tokenizer fails on, is left to the caller as bytes.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prefixroute.errors import TokenizerUnavailable

__all__ = ["Pieces", "char_start", "is_failure", "pack_ids", "plain_ids"]

PIECE_BYTES: Final = 4096
"""The most that is encoded in one go: tokenizers that are quadratic stay within milliseconds."""

_CUT_WITHIN: Final = 1024
"""A text is cut within the last bytes of a piece; a run that is longer than this is no text."""

_SAFE: Final = re.compile(
    rb"(?s:.*)(?:"
    rb"[^\s](?= [^\s])"  # before the one space between words
    rb"|[A-Za-z0-9](?=[\n\r!-&(-/:-@\[-`{-~])"  # between a word and what isn't one, but for '
    rb"|[\xe3-\xe9][\x80-\xbf]{2}(?=\xe3\x80[\x81\x82]|\xef\xbc[\x81\x8c\x9a\x9b\x9f])"
    rb")"
)
"""Where the words end that GPT-2's pattern and all of its descendants cut text into: Latin before
space and punctuation, Chinese and Japanese before punctuation of their own."""

_MEMO_BYTES: Final = 2**24
_UNKNOWN: Final = b"\xff"  # is no packed list of ids


class Pieces:
    """Encodes texts with one function of a tokenizer; safe to share between threads.

    Args:
        encode: Returns the ids of a text.
        warn: Told of what could not be encoded: a kind, and words for people.
    """

    __slots__ = ("_encode", "_memo", "_warn")

    def __init__(self, encode: Callable[[str], object], warn: Callable[[str, str], None]) -> None:
        self._encode, self._warn = encode, warn
        self._memo = _Memo(_MEMO_BYTES)

    def runs(self, data: bytes) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield for each piece of a UTF-8 text its packed ids, or ``None``, and the piece itself.

        Where a text is cut depends on what stands before the cut alone, so two texts that start
        alike have the same pieces for as long as they do.

        Raises:
            TokenizerUnavailable: As the tokenizer says.
        """
        start = 0
        while start < len(data):
            end, safe = _piece_end(data, start)
            piece = data[start:end]
            if not safe:
                self._warn("run", f"over {_CUT_WITHIN} bytes without the end of a word")
            yield self._ids(piece) if safe else None, piece
            start = end

    def _ids(self, piece: bytes) -> bytes | None:
        found = self._memo.get(piece)
        if found is _UNKNOWN:
            found = self._encoded(piece)
            self._memo.put(piece, found)
        return found

    def _encoded(self, piece: bytes) -> bytes | None:
        try:
            text = piece.decode()
        except UnicodeDecodeError:  # half a surrogate pair, which no tokenizer takes
            return None
        try:
            return pack_ids(plain_ids(self._encode(text)))
        except BaseException as error:
            if not is_failure(error):
                raise
            self._warn("encode", f"it raised {type(error).__name__}")
            return None


def is_failure(error: BaseException) -> bool:
    """Whether an error is a tokenizer's own, rather than the way out of the program.

    A panic of a Rust library reaches Python as a ``BaseException`` of its own.
    """
    if isinstance(error, TokenizerUnavailable):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def plain_ids(value: Any) -> Any:
    """Return the ids in whatever a tokenizer returned: a list, a batch, a mapping, an encoding."""
    if isinstance(value, Mapping) or hasattr(value, "input_ids"):
        value = value["input_ids"]
    value = getattr(value, "ids", value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if len(value) == 1 and not hasattr(value[0], "__index__"):  # a batch of one
        value = getattr(value[0], "ids", value[0])
    return value


def pack_ids(ids: Any) -> bytes:
    """Return token ids as the bytes that are hashed for them, 8 for each.

    Raises:
        OverflowError: One is larger than any token id.
        TypeError: One is no integer.
    """
    packed = array("q", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _piece_end(data: bytes, start: int) -> tuple[int, bool]:
    """Return where a piece ends, and whether a word ends there."""
    end = start + PIECE_BYTES
    if end >= len(data):
        return len(data), True
    match = _SAFE.match(data, end - _CUT_WITHIN, end)
    if match is not None:
        return match.end(), True
    return char_start(data, end), False


def char_start(data: bytes, at: int) -> int:
    """Return the nearest start of a character at or before ``at``, in UTF-8."""
    if at >= len(data):
        return len(data)
    return next((p for p in range(at, max(0, at - 4), -1) if data[p] & 0xC0 != 0x80), at)


class _Memo:
    """Remembers the ids of pieces within a number of bytes; see ``BoundedDict``.

    No lock: threads that meet here lose an entry at worst.
    """

    __slots__ = ("_half", "_old", "_size", "_young")

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._young: dict[bytes, bytes | None] = {}
        self._old: dict[bytes, bytes | None] = {}
        self._size = 0

    def get(self, piece: bytes) -> bytes | None:
        """Return what was put, or ``_UNKNOWN``; a use."""
        found = self._young.get(piece, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._old.get(piece, _UNKNOWN)
            if found is not _UNKNOWN:
                self.put(piece, found)
        return found

    def put(self, piece: bytes, ids: bytes | None) -> None:
        """Remember the ids of a piece; ``None``: it has none."""
        self._size += len(piece) + len(ids or b"") + 200
        if self._size > self._half:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[piece] = ids
