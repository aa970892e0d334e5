"""Parts of routers alone: look-ups on hash rings, matches in trees of prompts, what they remember.

A worker for ``benchmarks.peers``: ``python -m benchmarks.peers.parts``, in the environment of
whatever part is asked for.
"""

# mypy: disable-error-code="import-not-found, import-untyped, unused-ignore"

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.bodies import TURNS
from benchmarks.measuring import peak_mb
from benchmarks.peers.lines import serve
from benchmarks.peers.timing import cpu_us, pairs

__all__ = ["NAMES"]

NAMES: Final = tuple(f"http://gpu-{number}:8000/v1" for number in range(8))
"""The members of rings, and whoever holds a prompt in a tree."""

_TREE: Final = "llm/_internal/serve/routing_policies/prefix_aware/prefix_tree.py"
_TRIE: Final = "src/vllm_router/prefix/hashtrie.py"

Text = Callable[[str], object]
"""Finds who holds a prompt's beginning, and notes who gets it now."""


# -- rings -----------------------------------------------------------------------------------------


def ring(kind: str, members: int, keys: int) -> float:
    """Return what it takes to find a key's member, microseconds: from a text to a name."""
    names = [f"http://gpu-{number}:8000/v1" for number in range(members)]
    look_up = {"prefixroute": _own_ring, "uhashring": _uhashring}[kind](names)
    texts = [f"a conversation's key, number {number}" for number in range(keys)]
    return cpu_us(look_up, texts)


def _own_ring(names: Sequence[str]) -> Callable[[str], object]:
    import mmh3  # noqa: PLC0415 - each part is loaded in its own environment alone

    from prefixroute.core.ring import Ring  # noqa: PLC0415

    made = Ring([(name, 1.0) for name in names])
    return lambda text: names[made.order(mmh3.hash64(text.encode(), signed=False)[0])[0]]


def _uhashring(names: Sequence[str]) -> Callable[[str], object]:
    from uhashring import HashRing  # noqa: PLC0415

    look_up: Callable[[str], object] = HashRing(nodes=list(names)).get_node
    return look_up


# -- trees -----------------------------------------------------------------------------------------


class Trees:
    """One tree, made when it is first asked for; what is put in it stays."""

    def __init__(self) -> None:
        self._noted: Text | None = None

    def match(self, kind: str, first: int, count: int, tokens: int, checkout: str) -> Any:
        """Return what it takes to match a chat and to note it, microseconds."""
        noted = self._tree(kind, checkout)
        seen, following = pairs(first, count, tokens)
        return {
            "first_us": cpu_us(noted, [_text(messages) for messages in seen]),
            "next_us": cpu_us(noted, [_text(messages) for messages in following]),
        }

    def memory(self, kind: str, prompts: int, tokens: int, checkout: str) -> float:
        """Return by how many MB the peak of resident memory grows by prompts all unlike."""
        noted = self._tree(kind, checkout)
        for number in range(-200, 0):
            noted(_unlike(number, tokens))
        before = peak_mb()
        for number in range(prompts):
            noted(_unlike(number, tokens))
        return peak_mb() - before

    def _tree(self, kind: str, checkout: str) -> Text:
        if self._noted is None:
            self._noted = _ray() if kind == "ray" else _hash_trie(Path(checkout))
        return self._noted


def _ray() -> Text:
    ray = importlib.util.find_spec("ray")
    if ray is None or not ray.submodule_search_locations:
        raise ModuleNotFoundError("ray is not installed in this environment")
    # By its path: the packages above it import engines.
    module = _module("prefix_tree", Path(ray.submodule_search_locations[0]) / _TREE)
    tree = module.PrefixTree()
    tree.add_tenants(list(NAMES), time.time())
    turn = _turns()

    def noted(text: str) -> None:
        _, holders = tree.prefix_match(text)
        holder = holders[0] if holders and len(holders) < len(NAMES) else turn()
        tree.insert(text, holder, time.time())

    return noted


def _hash_trie(checkout: Path) -> Text:
    trie = _module("hashtrie", checkout / _TRIE).HashTrie()
    loop, turn, every = asyncio.new_event_loop(), _turns(), set(NAMES)

    async def note(text: str) -> None:
        _, holders = await trie.longest_prefix_match(text, every)
        holder = next(iter(holders)) if holders and len(holders) < len(every) else turn()
        await trie.insert(text, holder)

    return lambda text: loop.run_until_complete(note(text))


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _turns() -> Callable[[], str]:
    """Return what names everybody in turn."""
    asked = iter(range(10**12))
    return lambda: NAMES[next(asked) % len(NAMES)]


def _text(messages: Sequence[dict[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages)


def _unlike(number: int, tokens: int) -> str:
    """Return the text of a chat of which no message is in any other, as in ``memory``."""
    length = 4 * tokens // TURNS
    return "\n".join(f"{number} {turn} ".ljust(length) for turn in range(TURNS))


def main() -> None:
    """Serve until the input ends."""
    trees = Trees()
    serve({"ring": ring, "match": trees.match, "memory": trees.memory})


if __name__ == "__main__":
    main()
