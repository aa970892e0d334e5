"""``Bodies``: what a router may remember of requests, so that it can warm an endpoint that joins.

These are prompts: in memory alone, bounded, never in a ``repr``, a log, an event or a pickle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

import msgspec
from msgspec.structs import replace

from prefixroute.core.prompt import Prompt

__all__ = ["PRIMED_PATHS", "Bodies", "Remembered", "hottest", "priming_body"]

PRIMED_PATHS: Final = ("/chat/completions", "/completions", "/messages")
"""Of requests whose prompt can be computed for one token, and kept by nobody."""

_HALF_LIFE_S: Final = 600.0
_SHARE: Final = 4
"""A body longer than this part of the bound is not remembered: it would leave room for no other."""

_ANYTHING: Final = {"role": "user", "content": "."}
"""Ends a chat whose last message is not a user's, as many templates demand."""

_DROPPED: Final = (
    "stream", "stream_options", "max_completion_tokens", "best_of", "echo", "logprobs",
    "top_logprobs", "prompt_logprobs", "response_format", "continue_final_message",
    "add_generation_prompt", "store",
)  # fmt: skip
"""What makes an answer longer, dearer or no answer at all; nothing that a prompt is made of."""


class Remembered:
    """The latest body of those that start alike, and how much of it other conversations share.

    What extends it is the next turn of its own conversation, which goes where that went, and
    proves nothing.
    """

    __slots__ = ("_at", "_body", "_heat", "path", "prompt", "shared")

    def __init__(
        self,
        prompt: Prompt,
        body: bytes,
        path: str,
        now: float,
        *,
        shared: int = 0,
        heat: float = 1.0,
    ) -> None:
        self.prompt, self._body, self.path = prompt, body, path
        self.shared = shared  # leading blocks
        self._heat, self._at = heat, now

    def __repr__(self) -> str:
        return f"<Remembered {self.shared} shared blocks, {len(self._body)} bytes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a remembered body is a prompt and is not to be pickled")

    def __len__(self) -> int:
        return len(self._body)

    def again(self, prompt: Prompt, body: bytes, path: str, now: float) -> Remembered:
        """Return what is remembered after another request that starts alike."""
        mine, other = self.prompt.chain, prompt.chain
        shared = _common(mine, other)
        if shared == min(len(mine), len(other)):
            shared = min(shared, self.shared)
        heat = self.heat_at(now) + 1.0
        return Remembered(prompt, body, path, now, shared=shared, heat=heat)

    def heat_at(self, now: float) -> float:
        """Return how many such requests there were lately, decayed."""
        return self._heat * float(2.0 ** (-max(0.0, now - self._at) / _HALF_LIFE_S))

    def prefix(self) -> Prompt:
        """Return the prompt of what is shared."""
        prompt, shared = self.prompt, self.shared
        return replace(
            prompt,
            chain=prompt.chain[:shared],
            ends=prompt.ends[:shared],
            size=prompt.ends[shared - 1] if shared else 0,
            replies=tuple([block for block in prompt.replies if block < shared]),
            root_blocks=min(prompt.root_blocks, shared),
            aside=None,
        )

    def request(self, read: Callable[[bytes, str], Prompt]) -> bytes | None:
        """Return the body to prime with; see :func:`priming_body`."""
        return priming_body(self._body, self.path, self.prompt.chain[: self.shared], read)


class Bodies:
    """Remembers one body for each beginning of prompts, the latest; forgets the longest unused.

    Args:
        max_bytes: Of all bodies together.
    """

    __slots__ = ("_by_start", "_bytes", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._by_start: OrderedDict[int, Remembered] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Bodies {len(self._by_start)}, {self._bytes} of {self._max_bytes} bytes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("remembered bodies are prompts and are not to be pickled")

    def __len__(self) -> int:
        return len(self._by_start)

    @property
    def size_bytes(self) -> int:
        """Size of all that is remembered."""
        return self._bytes

    def note(self, prompt: Prompt, body: bytes, path: str, now: float) -> None:
        """Remember a request that was answered with 200."""
        start = _start(prompt)
        if start is None or len(body) * _SHARE > self._max_bytes or prompt.batch:
            return
        known = self._by_start.pop(start, None)
        if known is None:
            known = Remembered(prompt, body, path, now)
        else:
            self._bytes -= len(known)
            known = known.again(prompt, body, path, now)
        self._by_start[start] = known
        self._bytes += len(known)
        while self._bytes > self._max_bytes:
            _, oldest = self._by_start.popitem(last=False)
            self._bytes -= len(oldest)

    def hot(self) -> list[Remembered]:
        """Return those whose beginning several conversations share."""
        return [one for one in self._by_start.values() if one.shared]

    def clear(self) -> None:
        """Forget all."""
        self._by_start.clear()
        self._bytes = 0


def hottest(known: Iterable[Remembered], now: float) -> list[Remembered]:
    """Return what is remembered, the most tokens saved first."""
    return sorted(known, key=lambda one: -one.heat_at(now) * one.prompt.ends[one.shared - 1])


def _start(prompt: Prompt) -> int | None:
    """Return what names the beginning: tools and system prompt, else the first block after."""
    chain, root = prompt.chain, prompt.root_blocks
    if not chain:
        return None
    if root and prompt.ends[root - 1] > 0:
        return chain[root - 1]
    return chain[min(root, len(chain) - 1)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def priming_body(
    body: bytes, path: str, shared: Sequence[int], read: Callable[[bytes, str], Prompt]
) -> bytes | None:
    """Return a request that has an engine compute a prefix: one token, not streamed.

    It is cut after the prefix where that can be done safely, which is where the cut request, read
    as any other, still starts with the same blocks; else it is the whole.

    Args:
        body: A request that starts with the prefix.
        path: Where it was sent.
        shared: The prefix's block hashes.
        read: Returns the prompt of a body.

    Returns:
        ``None``: it is none that can be asked for one token.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not path.rstrip("/").endswith(PRIMED_PATHS):
        return None
    asked = {name: value for name, value in fields.items() if name not in _DROPPED}
    asked |= {"max_tokens": 1, "stream": False}
    if "n" in asked:
        asked["n"] = 1

    def still_starts(made: dict[str, Any]) -> bool:
        chain = read(msgspec.json.encode(made), path).chain
        return tuple(chain[: len(shared)]) == tuple(shared)

    made = _cut(asked, still_starts)
    return msgspec.json.encode(asked if made is None else made)


def _cut(
    asked: dict[str, Any], still_starts: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """Return the shortest request that does; ``None``: only the whole does."""
    messages, prompt = asked.get("messages"), asked.get("prompt", "")
    if isinstance(messages, list):
        longest = len(messages)
    elif isinstance(prompt, str):
        longest = len(prompt)
    else:
        return None

    def cut(length: int) -> dict[str, Any]:
        if isinstance(messages, list):
            return _chat_of(asked, messages[:length])
        return {**asked, "prompt": prompt[:length]}

    # A longer one starts with all that a shorter one starts with.
    length = bisect_left(range(longest), x=True, key=lambda length: still_starts(cut(length)))
    return cut(length) if length < longest else None


def _chat_of(asked: dict[str, Any], messages: list[Any]) -> dict[str, Any]:
    last = messages[-1] if messages else None
    by_user = isinstance(last, dict) and last.get("role") == "user"
    return {**asked, "messages": messages if by_user else [*messages, _ANYTHING]}
