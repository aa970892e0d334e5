"""A replica's prefix cache as llama.cpp's server has it: slots, each with one whole prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prefixroute.core.prompt import Prompt

__all__ = ["SlotCache"]

_SIMILAR: Final = 0.1
"""What a slot must share of a prompt for the prompt to be computed there: llama-server's default of
``--slot-prompt-similarity``."""


class _Slot:
    """The prompt that was computed last in a slot, and the reply to it."""

    __slots__ = ("chain", "ends", "held")

    def __init__(self, prompt: Prompt, held: int) -> None:
        self.chain, self.ends, self.held = prompt.chain, prompt.ends, held


class SlotCache:
    """The last prompts with their replies, one in each slot.

    A prompt goes to the slot whose content makes up most of it, if that is more than a tenth, and
    else to the one that was used longest ago; there it keeps what it shares and replaces the rest.
    A prompt that continues all of a slot's prompt is taken to go on with the reply to that, as a
    chat does.

    Rule reimplemented from ``get_available_slot`` in tools/server/server-context.cpp of
    github.com/ggml-org/llama.cpp, with ``--cache-ram 0``. Slots that are busy are not left out.

    Args:
        slots: How many there are.
    """

    __slots__ = ("_count", "_slots")

    def __init__(self, slots: int) -> None:
        self._count = slots
        self._slots: list[_Slot] = []  # least recently used first

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()

    def take(self, prompt: Prompt, tokens: int, reply_tokens: int) -> int:
        """Return how many leading tokens of a prompt are held, and hold all of it from now on.

        Args:
            prompt: The prompt.
            tokens: Its length; the last token is always computed.
            reply_tokens: Length of the reply; its last token is sampled and never computed.
        """
        slots = self._slots
        found = [self._shared(slot, prompt) for slot in slots]
        best = max(range(len(slots)), key=found.__getitem__, default=None)
        if best is None or found[best] <= _SIMILAR * tokens:
            best = 0 if len(slots) >= self._count else None
        cached = 0
        if best is not None:
            cached = found[best]
            del slots[best]
        slots.append(_Slot(prompt, tokens + max(0, reply_tokens - 1)))
        return max(0, min(cached, tokens - 1))

    @staticmethod
    def _shared(slot: _Slot, prompt: Prompt) -> int:
        blocks = _common(slot.chain, prompt.chain)
        if blocks == len(slot.chain):
            return slot.held
        return int(slot.ends[blocks - 1] * prompt.tokens_per_unit) if blocks else 0


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading blocks two chains have in common; each names all that is before."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
