"""How many tokens a byte of prompt is, learned per model from what replies count."""

from __future__ import annotations

from typing import Final

from prefixroute.core.bounded import BoundedDict
from prefixroute.core.prompt import BYTES_PER_TOKEN, Prompt

__all__ = ["Ratios"]

_MODELS: Final = 256
_FADE: Final = 0.99
"""Per reply: a window of about a hundred."""

_PRIOR_BYTES: Final = 4096.0
"""Weight of the first guess: one short prompt."""


class Ratios:
    """Tokens per byte of prompt, for each model."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: BoundedDict[str, tuple[float, float]] = BoundedDict(_MODELS)

    def of(self, prompt: Prompt) -> float:
        """Return the tokens in one unit of the prompt's sizes."""
        if prompt.tokens_per_unit == 1.0:
            return 1.0
        sums = self._sums.peek(prompt.model or "")
        return prompt.tokens_per_unit if sums is None else sums[0] / sums[1]

    def learn(self, prompt: Prompt, prompt_tokens: int) -> None:
        """Learn from a reply's count of its prompt's tokens.

        Not from a batch: some engines count all of its prompts, llama.cpp the first alone.
        """
        if prompt.tokens_per_unit == 1.0 or prompt.size <= 0 or prompt_tokens <= 0:
            return
        if prompt.batch:
            return
        model = prompt.model or ""
        tokens, size = self._sums.get(model) or (_PRIOR_BYTES / BYTES_PER_TOKEN, _PRIOR_BYTES)
        self._sums.put(model, (tokens * _FADE + prompt_tokens, size * _FADE + prompt.size))
