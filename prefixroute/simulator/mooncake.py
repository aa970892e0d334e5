"""Reads the trace format of Mooncake's data sets: one request's sizes and block ids a line.

Source: https://github.com/kvcache-ai/Mooncake, FAST'25 trace release.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from prefixroute.simulator.traces import Request, Trace, block_prompt

BLOCK_TOKENS = 512


class Line(msgspec.Struct):
    """One line."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read(name: str, lines: Iterable[bytes]) -> Trace:
    """Read."""
    decoder = msgspec.json.Decoder(Line)
    out = []
    for line in lines:
        row = decoder.decode(line)
        out.append(
            Request(
                at_s=row.timestamp / 1000.0,
                prompt=block_prompt(row.hash_ids, block_tokens=BLOCK_TOKENS, tokens=row.input_length),
                output_tokens=row.output_length,
            )
        )
    return Trace.of(name, out, block_tokens=BLOCK_TOKENS)
