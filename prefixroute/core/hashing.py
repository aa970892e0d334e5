"""Stable 64-bit digests (MurmurHash3 x64 128, its first half).

Every process that is to place a prompt alike has to compute the same numbers, so Python's salted
``hash()`` is never used and all seeds are fixed. MurmurHash3 is fast and well spread but not
cryptographic: somebody who crafts prompts can make two of them collide, which costs a worse
placement and nothing else.

Source: Austin Appleby, MurmurHash3 (https://github.com/aappleby/smhasher), through ``mmh3``.
"""

from __future__ import annotations

from typing import Final

import mmh3

__all__ = ["PROMPT_SEED", "RING_SEED", "digest64", "running_hash"]

PROMPT_SEED: Final = 0x70726F6D  # "prom": prompts and ring positions must not share a hash
RING_SEED: Final = 0x72696E67  # "ring"

_MASK_32: Final = 0xFFFF_FFFF


def digest64(data: bytes | bytearray | memoryview, seed: int = PROMPT_SEED) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 of ``data``, as an unsigned int."""
    return mmh3.mmh3_x64_128_utupledigest(data, seed & _MASK_32)[0]


def running_hash(seed: int = PROMPT_SEED) -> mmh3.mmh3_x64_128:
    """Return a hash with ``update(bytes)`` whose digest can be read at every boundary.

    ``utupledigest()[0]`` names all bytes so far, as :func:`digest64` of them would, so digests
    read along a prompt form a chain: two are equal only where everything before them is.
    """
    return mmh3.mmh3_x64_128(seed=seed & _MASK_32)
