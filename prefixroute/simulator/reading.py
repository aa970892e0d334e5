"""Reads traces from files: Mooncake's block ids, or logs of request bodies; a request per line.

Compressed files (gzip, zstd) are recognised by their first bytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias, cast

import msgspec

from prefixroute.core.prompt import KeySource
from prefixroute.core.request import read_prompt
from prefixroute.errors import ConfigurationError
from prefixroute.simulator.traces import Change, Request, Trace, block_prompt

__all__ = ["TraceError", "read_trace"]

MOONCAKE_BLOCK_TOKENS: Final = 512
LOG_BLOCK_TOKENS: Final = 256
"""A block of 1,024 bytes, at four bytes per token."""

_OUTPUT_TOKENS: Final = 256
"""Length of replies that a log does not tell."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SHOWN: Final = 60

TraceFormat: TypeAlias = Literal["mooncake", "bodies"]


class TraceError(ConfigurationError):
    """A trace that cannot be read: says in which line, and why."""


class _Blocks(msgspec.Struct):
    """A request of Mooncake's traces."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    """A replica that joins or leaves."""

    timestamp: float
    join: int | None = None
    leave: int | None = None


class _Logged(msgspec.Struct):
    """A request body with its time."""

    body: dict[str, object]
    time: float | str | None = None
    timestamp: float | None = None
    path: str | None = None
    output_tokens: int = _OUTPUT_TOKENS


def read_trace(
    path: str | Path,
    *,
    format: TraceFormat | None = None,  # noqa: A002 - what everybody calls it
    block_tokens: int | None = None,
    name: str | None = None,
) -> Trace:
    """Read a trace, one JSON object a line.

    - Mooncake: ``timestamp`` (ms), ``input_length``, ``output_length`` (tokens), ``hash_ids`` (one
      for each block's own content). Source: the FAST'25 trace release of
      https://github.com/kvcache-ai/Mooncake.
    - Bodies: ``body`` (a request body of OpenAI, Anthropic or an engine), ``time`` (seconds, or ISO
      8601) or ``timestamp`` (ms), and if known ``path`` and ``output_tokens``.

    In both, ``{"timestamp": ms, "leave": 3}`` and ``"join"`` change the membership.

    Args:
        path: The file; may be compressed by gzip or zstd.
        format: ``"mooncake"`` or ``"bodies"``; default: what the first request looks like.
        block_tokens: Size of a block, tokens; default: 512 for Mooncake's, 256 for bodies.
        name: What reports call it; default: the file's name.

    Raises:
        TraceError: A line that cannot be read, by its number; or no request at all.
        OSError: The file cannot be read.
    """
    path = Path(path)
    reader = _Reader(format, block_tokens)
    with path.open("rb") as raw, _decompressed(raw, path) as lines:
        for number, line in _numbered(lines, path):
            try:
                reader.line(line)
            except ValueError as error:  # msgspec's errors are some, too
                shown = line[:_SHOWN].decode("utf-8", "replace").rstrip()
                raise TraceError(f"{path}, line {number}: {error}; it begins: {shown}") from None
    if not reader.requests:
        raise TraceError(f"{path}: there is no request in it; give one JSON object a line")
    return reader.trace(name if name is not None else path.name.partition(".")[0])


def _numbered(lines: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if not line.isspace():
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: broken after line {number}: {error}") from None


class _Reader:
    """Takes lines of one format, and makes the trace."""

    def __init__(self, format_: TraceFormat | None, block_tokens: int | None) -> None:
        self._format, self._block_tokens = format_, block_tokens
        self._blocks = msgspec.json.Decoder(_Blocks)
        self._bodies = msgspec.json.Decoder(_Logged)
        self._changes = msgspec.json.Decoder(_Change)
        self.requests: list[Request] = []
        self.changes: list[Change] = []

    @property
    def block_tokens(self) -> int:
        """Size of a block, tokens."""
        if self._block_tokens is not None:
            return self._block_tokens
        return LOG_BLOCK_TOKENS if self._format == "bodies" else MOONCAKE_BLOCK_TOKENS

    def line(self, line: bytes) -> None:
        """Read a line.

        Raises:
            ValueError: It is neither a request nor a change.
        """
        if b'"leave"' in line or b'"join"' in line:
            change = self._change(line)
            if change is not None:
                self.changes.append(change)
                return
        if self._format is None:
            self._format = "mooncake" if b'"hash_ids"' in line else "bodies"
        if self._format == "mooncake":
            self.requests.append(self._block_request(self._blocks.decode(line)))
        else:
            self.requests.append(_body_request(self._bodies.decode(line)))

    def _change(self, line: bytes) -> Change | None:
        try:
            row = self._changes.decode(line)
        except msgspec.ValidationError:
            return None  # a request whose text has these words
        replica = row.join if row.join is not None else row.leave
        if replica is None or replica < 0 or (row.join is not None and row.leave is not None):
            raise ValueError('a change needs "join" or "leave" with the index of a replica')
        return Change(at_s=row.timestamp / 1e3, replica=replica, joins=row.join is not None)

    def _block_request(self, row: _Blocks) -> Request:
        if row.output_length < 0:
            raise ValueError(f"output_length={row.output_length} must be 0 or greater")
        prompt = block_prompt(row.hash_ids, block_tokens=self.block_tokens, tokens=row.input_length)
        return Request(at_s=row.timestamp / 1e3, prompt=prompt, output_tokens=row.output_length)

    def trace(self, name: str) -> Trace:
        """Return what was read; its time starts at 0."""
        start = min(request.at_s for request in self.requests)
        trace = Trace.of(name, self.requests, block_tokens=self.block_tokens, changes=self.changes)
        return trace.shifted(-start) if start else trace


def _body_request(row: _Logged) -> Request:
    prompt = read_prompt(row.body, path=row.path)
    if prompt.source is KeySource.NONE:
        raise ValueError("its body has no prompt, messages or input that could be read")
    if row.output_tokens < 0:
        raise ValueError(f"output_tokens={row.output_tokens} must be 0 or greater")
    return Request(
        at_s=_seconds(row),
        prompt=prompt,
        output_tokens=row.output_tokens,
        body=row.body,
        path=row.path,
    )


def _seconds(row: _Logged) -> float:
    if isinstance(row.time, str):
        return datetime.fromisoformat(row.time).timestamp()
    if row.time is not None:
        return row.time
    if row.timestamp is None:
        raise ValueError('it has no "time" (seconds, or ISO 8601) and no "timestamp" (ms)')
    return row.timestamp / 1e3


def _decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    head = raw.read(4)
    raw.seek(0)
    if head.startswith(_GZIP):
        return cast("IO[bytes]", gzip.open(raw))
    if head.startswith(_ZSTD):
        return _zstd(raw, path)
    return io.BufferedReader(cast("io.RawIOBase", raw))


def _zstd(raw: IO[bytes], path: Path) -> IO[bytes]:
    try:
        zstandard = import_module("zstandard")  # only for such files, so that nobody else needs it
    except ImportError:
        raise TraceError(
            f"{path} is compressed by zstd: install zstandard, or decompress it first"
        ) from None
    reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return cast("IO[bytes]", io.BufferedReader(reader))
