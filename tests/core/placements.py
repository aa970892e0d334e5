"""Prints where a fixed list of prompts goes, as JSON; run in processes of their own.

``python -m tests.core.placements SEED_OF_SHUFFLE mapping|bytes``; with ``> golden_placements.json``
after a change of placement, which needs a new ``PLACEMENT_VERSION``.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement

from .support import blocks, chat, conversation, make_router, text

PLACEMENTS: dict[str, Placement] = {"Nested": Nested(), "Fixed": Fixed()}


def endpoints() -> list[Endpoint]:
    return [
        *(Endpoint(f"http://gpu-{number}:8000/v1", id=f"e{number}") for number in range(6)),
        Endpoint("http://big:8000/v1", id="big", weight=2),
        Endpoint("http://half:8000/v1", id="half", weight=0.5, models=["m", "n"]),
    ]


def bodies() -> list[Any]:
    return [
        *(chat(text(number, 600), system=text("s", 2500)) for number in range(4)),
        *conversation("talk", 3),
        {"model": "n", "prompt": text("p", 3000)},
        {"model": "n", "prompt": [1, 2, 3] * 400},
        {"model": "m", "input": "Grüße", "instructions": "Sé breve 🙂"},
        {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s" * 2000}],
         "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ]  # fmt: skip


def placed(shuffle: int, kind: str) -> dict[str, Any]:
    """The fingerprint, and where everything goes: on a fresh router, and after some traffic."""
    found: dict[str, Any] = {}
    for name, placement in PLACEMENTS.items():
        some = random.Random(shuffle).sample(endpoints(), 8) if shuffle else endpoints()
        router = make_router(some, placement=placement, seed=3)
        asked: list[Any] = [
            json.dumps(body).encode() if kind == "bytes" else body for body in bodies()
        ]
        asked += [blocks(1, number, number + 1) for number in range(8)]
        fresh = [router.route(one).endpoint.id for one in asked]
        warm = []
        for _ in range(2):
            for one in asked:
                lease = router.acquire(one)
                warm.append(lease.endpoint.id)
                lease.release()
        found[name] = {"fingerprint": router.fingerprint, "fresh": fresh, "warm": warm}
    return found


if __name__ == "__main__":
    print(json.dumps(placed(int(sys.argv[1]), sys.argv[2]), indent=1))
