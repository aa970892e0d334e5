"""What a simulated engine is like."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["EngineModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """The size and speed of one simulated engine. All times are simulated seconds.

    Attributes:
        names: The model names it serves; the first is the default.
        strict_names: Answer 404 to any other model name, as vLLM does; otherwise, as llama.cpp
            does, accept it.
        bytes_per_token: A token is this many bytes of the rendered prompt.
        block_tokens: Tokens in a block of the prefix cache; only whole blocks are cached.
        cache_blocks: Blocks in the prefix cache; 0 switches it off.
        prefill_tokens_per_s: Speed of computing prompt tokens that aren't cached.
        request_overhead_s: Time that a request takes in the prefill queue besides its tokens.
        decode_s_per_token: Time from one output token to the next.
        max_running: Requests that decode at once; more wait in the queue.
        context_tokens: Longest prompt and output together; more is answered with 400.
        output_tokens: Length of an answer that no limit cuts short.
        tokens_per_event: Output tokens in one event of a stream.
        loading_s: For how long it answers 503 after it has started.
        reports_cached_tokens: Say in `usage` how many tokens were cached (vLLM does with
            `--enable-prompt-tokens-details` only).
        load_header_on_streams: Answer `endpoint-load-metrics-format` on streams too, not only on
            replies that are one JSON document (vLLM does not).
        api_key: What `Authorization: Bearer` or `x-api-key` must carry on `/v1` paths; None: any.
    """

    names: tuple[str, ...] = ("simulated-model",)
    strict_names: bool = False
    bytes_per_token: int = 4
    block_tokens: int = 16
    cache_blocks: int = 8192
    prefill_tokens_per_s: float = 8000.0
    request_overhead_s: float = 0.005
    decode_s_per_token: float = 0.01
    max_running: int = 256
    context_tokens: int = 131_072
    output_tokens: int = 16
    tokens_per_event: int = 1
    loading_s: float = 0.0
    reports_cached_tokens: bool = True
    load_header_on_streams: bool = False
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        names: object = self.names
        if not names or not isinstance(names, tuple):
            raise ValueError(
                f"names={self.names!r} must be a tuple of at least one model name,"
                ' such as names=("simulated-model",)'
            )
        self._require_counts()
        self._require_times()

    @property
    def block_bytes(self) -> int:
        """Bytes of the rendered prompt in one block."""
        return self.block_tokens * self.bytes_per_token

    def tokens_of(self, data: bytes) -> int:
        """How many tokens some rendered bytes are; a last partial token counts."""
        return -(-len(data) // self.bytes_per_token)

    def _require_counts(self) -> None:
        least_of = {
            "bytes_per_token": 1,
            "block_tokens": 1,
            "cache_blocks": 0,
            "max_running": 1,
            "context_tokens": 1,
            "output_tokens": 1,
            "tokens_per_event": 1,
        }
        for name, least in least_of.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name}={value!r} must be a whole number, at least {least}: set it so"
                )

    def _require_times(self) -> None:
        for name in ("request_overhead_s", "decode_s_per_token", "loading_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{name}={value!r} must be finite and not negative: it is simulated seconds,"
                    " 0 takes no time"
                )
        if not self.prefill_tokens_per_s > 0:
            raise ValueError(
                f"prefill_tokens_per_s={self.prefill_tokens_per_s!r} must be above 0:"
                " use math.inf for a prefill that takes no time"
            )
