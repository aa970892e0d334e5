"""LiteLLM's Router: its decisions and its calls, as a process of its own environment.

A worker for ``benchmarks.peers``: ``python -m benchmarks.peers.litellm``.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.lines import serve
from benchmarks.peers.timing import MODEL, pairs, timed, timed_async


class LiteLLM:
    """One Router, as it comes but for its checks."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._router: Any = None
        self._marked = False

    def start(self, urls: Sequence[str], checks: Sequence[str]) -> None:
        """Make the Router; with a check for prompt caching the chats are marked for it."""
        import litellm  # noqa: PLC0415 - reads its settings when it is imported

        random.seed(0)  # the draws of simple-shuffle
        self._marked = bool(checks)
        self._router = litellm.Router(
            model_list=[
                {
                    "model_name": MODEL,
                    "litellm_params": {
                        "model": f"openai/{MODEL}",
                        "api_base": url,
                        "api_key": "-",
                    },
                }
                for url in urls
            ],
            optional_pre_call_checks=list(checks) or None,
        )

    def decide(self, first: int, count: int, tokens: int) -> dict[str, float]:
        """Return what it costs to choose a deployment for a chat, as its ``acompletion`` does."""
        seen, following = (self._mark(chats) for chats in pairs(first, count, tokens))
        return {
            "first_us": self._runner.run(self._decided(seen)),
            "next_us": self._runner.run(self._decided(following)),
        }

    async def _decided(self, chats: Sequence[Any]) -> float:
        began = time.process_time_ns()
        for messages in chats:
            await self._router.select(MODEL, {}, messages=messages)
        return (time.process_time_ns() - began) / len(chats) / 1000

    def call(self, mode: str, first: int, count: int, tokens: int) -> dict[str, Any]:
        """Send chats, then their next turns, one call after the other; see ``timed``."""
        seen, following = (self._mark(chats) for chats in pairs(first, count, tokens))
        chats = [*seen, *following]
        if mode == "async":
            return self._runner.run(
                timed_async(lambda m: self._router.acompletion(model=MODEL, messages=m), chats)
            )
        return timed(lambda m: self._router.completion(model=MODEL, messages=m), chats)

    def _mark(self, chats: Sequence[Any]) -> list[Any]:
        """Mark the last message of each: LiteLLM looks for the beginnings of marked ones alone."""
        if not self._marked:
            return list(chats)
        mark = {"cache_control": {"type": "ephemeral"}}
        return [[*messages[:-1], {**messages[-1], **mark}] for messages in chats]


def main() -> None:
    """Serve until the input ends."""
    peer = LiteLLM()
    serve({"start": peer.start, "decide": peer.decide, "call": peer.call})


if __name__ == "__main__":
    main()
