"""Reads traces from files: Mooncake's block ids, or logs of request bodies; a request per line.

Compressed files (gzip, zstd) are recognised by their first bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias, TypeVar, cast

import msgspec

from prefixroute.core.prompt import KeySource
from prefixroute.core.request import read_prompt
from prefixroute.errors import ConfigurationError
from prefixroute.simulator.traces import Change, Request, Trace, block_prompt

__all__ = ["Logged", "TraceError", "read_requests", "read_trace"]

MOONCAKE_BLOCK_TOKENS: Final = 512
LOG_BLOCK_TOKENS: Final = 256
"""A block of 1,024 bytes, at four bytes per token."""

_OUTPUT_TOKENS: Final = 256
"""Length of replies that a log does not tell."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SHOWN: Final = 60

_T = TypeVar("_T")

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


class _Row(msgspec.Struct):
    """A request body with its time."""

    body: dict[str, object]
    time: float | str | None = None
    timestamp: float | None = None
    path: str | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A request of a log, one line of it.

    Args:
        request: What was asked; its ``at_s`` is the log's own time, not from 0 on.
        timed: Whether the line tells a time.
        told_output: Whether the line tells the length of the reply.
        line: The line itself.
    """

    request: Request
    timed: bool = True
    told_output: bool = True
    line: bytes = b""


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
    requests = [logged.request for logged in _rows(path, reader)]
    name = name if name is not None else path.name.partition(".")[0]
    start = min(request.at_s for request in requests)
    trace = Trace.of(name, requests, block_tokens=reader.block_tokens, changes=reader.changes)
    return trace.shifted(-start) if start else trace


def read_requests(
    path: str | Path,
    *,
    format: TraceFormat | None = None,  # noqa: A002 - as above
    block_tokens: int | None = None,
) -> Iterator[Logged]:
    """Yield the requests of a trace or log one by one, so that any length fits into memory.

    Takes what :func:`read_trace` takes, and also bodies without a time, and lines that are a body
    themselves. Changes of the membership are left out.

    Args:
        path: The file; may be compressed by gzip or zstd.
        format: As for :func:`read_trace`, and so the next.
        block_tokens: Size of a block, tokens.

    Raises:
        TraceError: When a line cannot be read, by its number; or there is no request at all.
        OSError: The file cannot be read.
    """
    return _rows(Path(path), _Reader(format, block_tokens, untimed=True))


def _rows(path: Path, reader: _Reader) -> Iterator[Logged]:
    found = False
    with path.open("rb") as raw, _decompressed(raw, path) as lines:
        for number, line in _numbered(lines, path):
            try:
                logged = reader.line(line)
            except (ValueError, msgspec.MsgspecError) as error:
                shown = line[:_SHOWN].decode("utf-8", "replace").rstrip()
                raise TraceError(f"{path}, line {number}: {error}; it begins: {shown}") from None
            if logged is not None:
                found = True
                yield logged
    if not found:
        raise TraceError(f"{path}: there is no request in it; give one JSON object a line")


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
    """Reads lines of one format: the first request's, if none was given.

    Args:
        format_: The format.
        block_tokens: Size of a block, tokens.
        untimed: Takes bodies without a time, too, and lines that are a body themselves.
    """

    def __init__(
        self, format_: TraceFormat | None, block_tokens: int | None, *, untimed: bool = False
    ) -> None:
        self._format, self._block_tokens, self._untimed = format_, block_tokens, untimed
        self._blocks = msgspec.json.Decoder(_Blocks)
        self._bodies = msgspec.json.Decoder(_Row)
        self._bare = msgspec.json.Decoder(dict[str, object])
        self._changes = msgspec.json.Decoder(_Change)
        self.changes: list[Change] = []

    @property
    def block_tokens(self) -> int:
        """Size of a block, tokens."""
        if self._block_tokens is not None:
            return self._block_tokens
        return LOG_BLOCK_TOKENS if self._format == "bodies" else MOONCAKE_BLOCK_TOKENS

    def line(self, line: bytes) -> Logged | None:
        """Read a line; a change is noted, and ``None`` returned.

        Raises:
            ValueError: It is neither a request nor a change; or one of msgspec's errors.
        """
        if b'"leave"' in line or b'"join"' in line:
            change = self._change(line)
            if change is not None:
                self.changes.append(change)
                return None
        if self._format is None:
            self._format = "mooncake" if b'"hash_ids"' in line else "bodies"
        if self._format == "mooncake":
            return Logged(request=self._block_request(self._blocks.decode(line)))
        return _logged(self._row(line), line, untimed=self._untimed)

    def _row(self, line: bytes) -> _Row:
        try:
            return _decoded(self._bodies, line)
        except msgspec.ValidationError:
            body = _decoded(self._bare, line) if self._untimed else {}
            if not body or "body" in body:
                raise
            return _Row(body=body)

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


def _decoded(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:  # json also takes half a surrogate pair
        try:
            plain = json.loads(line)
        except ValueError:
            raise error from None
    found: _T = msgspec.convert(plain, decoder.type)
    return found


def _logged(row: _Row, line: bytes, *, untimed: bool) -> Logged:
    prompt = read_prompt(row.body, path=row.path)
    if prompt.source is KeySource.NONE:
        raise ValueError("its body has no prompt, messages or input that could be read")
    output_tokens = _OUTPUT_TOKENS if row.output_tokens is None else row.output_tokens
    if output_tokens < 0:
        raise ValueError(f"output_tokens={output_tokens} must be 0 or greater")
    timed = row.time is not None or row.timestamp is not None
    request = Request(
        at_s=0.0 if untimed and not timed else _seconds(row),
        prompt=prompt,
        output_tokens=output_tokens,
        body=row.body,
        path=row.path,
    )
    told = row.output_tokens is not None
    return Logged(request=request, timed=timed, told_output=told, line=line)


def _seconds(row: _Row) -> float:
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
