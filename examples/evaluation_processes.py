"""Sixteen processes, each with a router of its own: they agree without talking."""

import os
from collections import Counter
from multiprocessing import get_context

from openai import OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
TASKS = {name: f"You grade answers about {name}. " * 60 for name in ("history", "physics", "law")}


def evaluate(process: int) -> list[tuple[str, str]]:
    """Ask each task once; return where each went."""
    placed = []
    with Router(ENDPOINTS) as router, router.wrap(OpenAI(api_key="-")) as client:
        for task, system in TASKS.items():
            reply = client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[
                    {"role": "system", "content": system},
                    {"role": "user", "content": f"Answer {process}: 42."},
                ],
                max_tokens=8,
            )
            placed.append((task, reply.http_response.extensions["prefixroute"].endpoint.id))
    return placed


if __name__ == "__main__":
    with get_context("spawn").Pool(4) as pool:  # four at a time
        placed = Counter(pair for pairs in pool.map(evaluate, range(16)) for pair in pairs)
    for (task, endpoint), count in sorted(placed.items()):
        print(f"{task:10} {endpoint} {count}")
