"""A prompt as placement sees it: a chain of block hashes with their sizes.

``chain[i]`` names everything from the start of the prompt up to boundary i, so two prompts have a
block hash in common only where they are equal up to there. Boundaries are the end of the root
(model, salts, tools, system prompt), the end of every message, and every block inside any of these
that is longer. Turn n+1 of a chat therefore extends the chain of turn n.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum
from operator import index
from typing import Final

import msgspec
from msgspec.structs import replace

from prefixroute.core.hashing import ChainBuilder, pack_fields, running_hash, utf8
from prefixroute.errors import ConfigurationError

__all__ = ["BYTES_PER_TOKEN", "Aside", "ChainBuilder", "Cut", "KeySource", "Prompt"]

BYTES_PER_TOKEN: Final = 4.0
"""What a token is taken for until replies of a model have said better."""


class KeySource(Enum):
    """What a prompt's chain was made of."""

    MESSAGES = "messages"
    TEXT = "text"
    TOKENS = "tokens"
    INPUT = "input"
    SESSION = "session"
    BLOCKS = "blocks"
    NONE = "none"


_GROWS: Final = (KeySource.TEXT, KeySource.TOKENS)
"""Sources whose last block is cut where the prompt happens to end."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Where a placement wants prompts cut.

    Args:
        block_bytes: Length of a block, bytes; doubles every 64 blocks.
        window_bytes: If given, the chain is one key: system prompt and first message, cut to this
            length, and whole what stands before them (model, salts, tools); or the session.

    Raises:
        ConfigurationError: A length that is no int or below 1.
    """

    block_bytes: int = 1024
    window_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the lengths: a block of no bytes would never get to the end of a prompt."""
        _as_int("block_bytes", self.block_bytes, least=1)
        if self.window_bytes is not None:
            _as_int("window_bytes", self.window_bytes, least=1)


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """What a router that compares placements knows of a request beside what places it.

    Args:
        held_out: It is placed by the baseline of a holdout.
        part: Which part of its group its conversation belongs to; ``None``: it is in no group.
        excess: It would be held out, but more than its share was already.
        shadow: The same request, cut as the shadow placement wants it.
        whole: The same request with its whole chain, for what both would have found cached.
    """

    held_out: bool = False
    part: int | None = None
    excess: bool = False
    shadow: Prompt | None = None
    whole: Prompt | None = None


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What placement knows of a request. Holds hashes and sizes, never text.

    Args:
        chain: Block hashes, 64 bits each, from the root on; empty: the request has no key.
        ends: Size of the prompt up to each boundary, in units.
        size: Size of all that the request asks to prefill (a batch: of all prompts), in units.
        tokens_per_unit: 1 where units are tokens, else a guess until replies say better.
        root_blocks: How many blocks of the chain belong to the root.
        replies: Indices of the blocks that a model wrote, ascending.
        source: What the chain was made of.
        model: The model asked for.
        session: The session that keeps the conversation together.
        pin: Id of the earlier response or conversation that this one continues.
        stream: The request asks for a streamed reply.
        batch: The request asks for the replies to several prompts.
        aside: What a holdout or a shadow knows of the request; ``None``: there is neither.
    """

    chain: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    size: int = 0
    tokens_per_unit: float = 1 / BYTES_PER_TOKEN
    root_blocks: int = 0
    replies: tuple[int, ...] = ()
    source: KeySource = KeySource.NONE
    model: str | None = None
    session: str | None = None
    pin: str | None = None
    stream: bool = False
    batch: bool = False
    aside: Aside | None = None

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

    @property
    def lasting_blocks(self) -> int:
        """How many blocks a prompt that goes on from this one has too: of a text not the tail."""
        return len(self.chain) - (self.source in _GROWS)

    def with_reply(self, blocks: int) -> int:
        """Return how many leading blocks an endpoint holds that was sent so many of them.

        It wrote the reply that follows these itself, and holds that too.
        """
        replies = self.replies
        at = bisect_left(replies, blocks - 1)
        if at < len(replies) and replies[at] == blocks - 1:
            return blocks  # within a reply: it was sent another one
        while at < len(replies) and replies[at] == blocks:
            at, blocks = at + 1, blocks + 1
        return blocks

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
            ConfigurationError: An id that is no int, ``block_tokens`` below 1, ``tokens`` that do
                not end in the last block, or a model that is no str.
        """
        ids = _as_ints("block_ids", block_ids)
        block_tokens = _as_int("block_tokens", block_tokens, least=1)
        whole = len(ids) * block_tokens
        total = whole if tokens is None else _as_int("tokens", tokens)
        least = whole - block_tokens + 1 if ids else 0
        if not least <= total <= whole:
            raise ConfigurationError(
                f"tokens={total} must end in the last of {len(ids)} blocks of {block_tokens}, from "
                f"{least} to {whole}; name every block, or leave tokens out for whole blocks"
            )
        state = running_hash()
        state.update(pack_fields(b"B", _model_field(model)))
        chain = []
        for block_id in ids:
            length = block_id.bit_length() // 8 + 1
            data = block_id.to_bytes(length, "little", signed=True)
            state.update(pack_fields(b"B", [(b"b", data)]))
            chain.append(state.utupledigest()[0])
        return cls(
            chain=tuple(chain),
            ends=tuple([min(total, end * block_tokens) for end in range(1, len(ids) + 1)]),
            size=total,
            tokens_per_unit=1.0,
            source=KeySource.BLOCKS if ids else KeySource.NONE,
            model=model,
        )

    def with_ratio(self, tokens_per_unit: float) -> Prompt:
        """Return the same prompt with another guess of tokens per unit."""
        if tokens_per_unit == self.tokens_per_unit:
            return self
        return replace(self, tokens_per_unit=tokens_per_unit)


def _model_field(model: object) -> list[tuple[bytes, bytes]]:
    if model is None:
        return []
    if not isinstance(model, str):
        raise ConfigurationError(f"model={model!r} must be a str or None; give the model's name")
    return [(b"m", utf8(model))]


def _as_ints(name: str, values: object) -> list[int]:
    if not isinstance(values, Iterable):
        raise ConfigurationError(f"{name}={values!r} must be iterable; give a list of ints")
    return [_as_int(f"{name}[{i}]", value) for i, value in enumerate(values)]


def _as_int(name: str, value: object, least: int | None = None) -> int:
    """Return a value as an int, also if it is NumPy's.

    Raises:
        ConfigurationError: It is no int, or below ``least``.
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        rule = "an int" if least is None else f"an int, {least} or greater"
        raise ConfigurationError(f"{name}={value!r} must be {rule}; give a whole number")
    return number
