"""Logs of request bodies for tests: made-up prose, the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

WORDS = [
    "router",
    "prefix",
    "cache",
    "token",
    "model",
    "engine",
    "replica",
    "system",
    "prompt",
    "answer",
    "customer",
    "policy",
    "refund",
    "order",
    "ship",
    "account",
    "invoice",
    "question",
    "support",
    "detail",
    "always",
    "never",
    "please",
    "contact",
    "agent",
    "manual",
    "section",
    "clause",
    "payment",
    "method",
    "delivery",
    "address",
    "warranty",
    "return",
    "window",
    "business",
    "period",
    "apply",
    "exempt",
    "product",
    "category",
    "special",
    "offer",
    "coupon",
    "river",
    "mountain",
    "forest",
    "island",
    "harbour",
    "bridge",
    "winter",
    "summer",
    "autumn",
    "copper",
    "silver",
    "velvet",
    "marble",
    "lantern",
    "garden",
    "kettle",
    "pepper",
    "saddle",
    "anchor",
]


def prose(rng: Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def asked(rng: Random) -> dict[str, object]:
    return {"role": "user", "content": prose(rng, rng.randrange(15, 40))}


def chat(rng: Random, system: object, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "system", "content": system}, asked(rng)], **more}


def tool(name: str, about: str) -> dict[str, object]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }


def rows(bodies: Iterable[object], *, every_s: float = 0.2) -> list[object]:
    return [{"time": every_s * at, "body": body} for at, body in enumerate(bodies)]


def written(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
