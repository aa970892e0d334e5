"""What reading the earlier turns of long chats left, so that a next turn is read from their end.

JSON is read from left to right: two bodies that are the same up to the end of a message are read
the same up to there. A digest of these bytes therefore finds the state in which reading them ended,
and only what follows is decoded and hashed. Nothing of a prompt is kept but digests and sizes.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

import msgspec
from mmh3 import mmh3_x64_128

from prefixroute.core.body import Fields, decode_fields
from prefixroute.core.hashing import ChainBuilder, copied, digest64, running_hash

__all__ = ["SeenTurns", "Turns"]

_LEAST_BYTES: Final = 16_384
"""A shorter body is read in no more time than it takes to look it up."""

_MAX_BLOCKS: Final = 131_072
"""Of the chains of all turns that were put in, 16 bytes each."""

_ALIKE: Final = 4
"""Chats remembered of those that begin alike."""

_SAMPLE: Final = 1024
"""Bytes at the end of a beginning by which it is told apart before all of it is compared."""

_OPEN: Final = b'{"messages":['
_OPENING: Final = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[')
_KEY: Final = b'"messages"'
_SPACE: Final = b" \t\r\n"


class _Raw(msgspec.Struct):
    messages: msgspec.Raw


_decode_raw = msgspec.json.Decoder(_Raw).decode


class _Seen:
    """Where the last turn of one chat ended in its body, and what reading it left."""

    __slots__ = (
        "_block_bytes", "_chain", "_ends", "_hash", "_replies", "_root_blocks", "_size", "before",
        "digest", "end", "root", "sample",
    )  # fmt: skip

    def __init__(
        self,
        builder: ChainBuilder,
        root: int,
        before: Fields,
        end: int,
        sample: int,
        digest: int,
    ) -> None:
        self._block_bytes, self._hash = builder.block_bytes, copied(builder.hash)
        self._chain, self._ends = array("Q", builder.chain), array("Q", builder.ends)
        self._replies = array("Q", builder.replies)
        self._root_blocks, self._size = builder.root_blocks, builder.size
        self.root, self.before = root, before
        self.end, self.sample, self.digest = end, sample, digest

    def __len__(self) -> int:
        return len(self._chain)

    def builder(self) -> ChainBuilder:
        """Return a builder that goes on from there."""
        builder = ChainBuilder(self._block_bytes)
        builder.hash = copied(self._hash)
        builder.chain, builder.ends = self._chain.tolist(), self._ends.tolist()
        builder.replies, builder.root_blocks = self._replies.tolist(), self._root_blocks
        builder.size = self._size
        return builder


class Turns:
    """A body whose first turns were seen.

    Attributes:
        fields: The body's, but of the messages only those that follow.
    """

    __slots__ = ("_body", "_memory", "_running", "_seen", "_tail", "fields")

    def __init__(
        self,
        memory: SeenTurns,
        seen: _Seen,
        body: bytes,
        fields: Fields,
        tail: bytes,
        running: mmh3_x64_128,
    ) -> None:
        self._memory, self._seen, self._body, self.fields = memory, seen, body, fields
        self._tail = tail  # what follows, as a body of its own
        self._running = running  # hash of what was seen

    @property
    def root(self) -> int:
        """What :meth:`SeenTurns.note` was given of those that were seen."""
        return self._seen.root

    def builder(self) -> ChainBuilder:
        """Return what reading them left, to be gone on with."""
        return self._seen.builder()

    def note(self, builder: ChainBuilder) -> None:
        """Remember all of its turns from now on.

        Args:
            builder: That of those that were seen, gone on with.
        """
        seen, body = self._seen, self._body
        follow = len(memoryview(_decode_raw(self._tail).messages)) + len(_OPEN) - 1
        end = _end(body, len(body) - len(self._tail) + follow)
        if end <= seen.end:
            return  # the same turns again
        self._running.update(memoryview(body)[seen.end : end])
        digest = self._running.utupledigest()[0]
        new = _Seen(builder, seen.root, seen.before, end, _sample(body, end), digest)
        self._memory.put(body, new, instead=seen)


class SeenTurns:
    """Remembers where the turns of chats ended; bounded; needs no lock.

    Two generations, as a :class:`~prefixroute.core.bounded.BoundedDict` has: threads that meet here
    may at worst forget a chat.
    """

    __slots__ = ("_blocks", "_old", "_young")

    def __init__(self) -> None:
        self._young: dict[int, tuple[_Seen, ...]] = {}  # by a digest of how they begin
        self._old: dict[int, tuple[_Seen, ...]] = {}
        self._blocks = 0  # of what was put into the young one

    def find(self, body: object) -> Turns | None:
        """Return what is known of a body's first turns; ``None``: nothing."""
        if type(body) is not bytes or len(body) < _LEAST_BYTES:
            return None
        start = _start(len(body))
        for length in (start, start // 2):
            for seen in self._alike(_sample(body, length)):
                end = seen.end
                if len(body) <= end or _sample(body, end) != seen.sample:
                    continue
                running = running_hash()
                running.update(memoryview(body)[:end])
                if running.utupledigest()[0] == seen.digest:
                    return self._turns(seen, body, running)
        return None

    def note(self, body: object, root: int, builder: ChainBuilder) -> None:
        """Remember the turns of a body that was read as a whole.

        Args:
            body: Of a chat in which a model has replied, as one that goes on has.
            root: A digest of all that the chain's first block is made of beside the messages.
            builder: What reading it left.
        """
        if type(body) is not bytes or len(body) < _LEAST_BYTES:
            return
        opening = _OPENING.search(body)
        before = None if opening is None else _kept(body[: opening.end()] + b"]}")
        if opening is None or before is None:
            return
        first = opening.end() - 1
        try:
            messages = bytes(_decode_raw(body).messages)
        except msgspec.MsgspecError:
            return
        if not body.startswith(messages, first):
            return  # a second list of messages has replaced the first
        end = _end(body, first + len(messages))
        digest = digest64(memoryview(body)[:end])
        self.put(body, _Seen(builder, root, before, end, _sample(body, end), digest))

    def _turns(self, seen: _Seen, body: bytes, running: mmh3_x64_128) -> Turns | None:
        """Return the body that begins with these turns; ``None``: it does not go on as they do."""
        follow = body[seen.end :].lstrip(_SPACE)
        if follow[:1] == b",":
            follow = follow[1:]
        elif follow[:1] != b"]":
            return None  # the last value goes on
        if _KEY in follow:
            return None  # a second list of messages would replace the first
        tail = _OPEN + follow
        try:
            fields = decode_fields(tail)
        except msgspec.MsgspecError:
            return None
        if fields.model is None:
            fields.model = seen.before.model
        if fields.stream is None:
            fields.stream = seen.before.stream
        return Turns(self, seen, body, fields, tail, running)

    def _alike(self, start: int) -> tuple[_Seen, ...]:
        return self._young.get(start) or self._old.get(start, ())

    def put(self, body: bytes, seen: _Seen, instead: _Seen | None = None) -> None:
        """Remember where the turns of a body end, in place of where fewer of them did."""
        start = _sample(body, _start(seen.end))
        others = [one for one in self._alike(start) if one is not instead]
        self._young[start] = (seen, *others[: _ALIKE - 1])
        self._blocks += len(seen)
        if self._blocks > _MAX_BLOCKS // 2:
            self._old, self._young, self._blocks = self._young, {}, 0


def _kept(data: bytes) -> Fields | None:
    """Return the fields before the messages; ``None``: one of them may hold text, or a secret.

    Args:
        data: All up to the messages, as a body with none; if the word stood somewhere else, in a
            text say, this is no JSON.
    """
    try:
        fields = decode_fields(data)
    except msgspec.MsgspecError:
        return None
    kept = Fields(messages=[], model=fields.model, stream=fields.stream)
    return fields if fields == kept else None


def _end(body: bytes, end: int) -> int:
    """Return where the last message ends, given the end of the list of messages."""
    end -= 1
    while body[end - 1] in _SPACE:
        end -= 1
    return end


def _start(length: int) -> int:
    """Return how much of so many bytes counts as the start: the largest power of two in them."""
    return 1 << length.bit_length() - 1


def _sample(body: bytes, end: int) -> int:
    """Return a digest of the bytes before ``end``."""
    return digest64(body[max(0, end - _SAMPLE) : end], end)
