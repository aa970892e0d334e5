"""Retrieval (RAG): passages in the order of the library share a prefix, passages by rank do not.

A prefix cache helps only where prompts start alike. Questions about one machine retrieve the same
passages, each question in another order: so the order is worth more than the ranks.
"""

import os
from itertools import product

from openai import OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")

MACHINES = ("crane", "drill", "forge", "kiln", "lathe", "loom", "press", "winch")
PARTS = ("belt", "motor", "valve")
LIBRARY = [
    f"The {part} of the {machine}. " + f"Rule {i} of the {machine}: oil the {part} weekly. " * 30
    for i, (machine, part) in enumerate(product(MACHINES, PARTS))
]
QUESTIONS = [
    f"{how} does the {part} of the {machine} wear?"
    for how, part, machine in product(("How fast", "Why"), PARTS, MACHINES)
]


def retrieve(question: str, count: int = 3) -> list[int]:
    """Return the passages that have most words of a question, best first: a stand-in for yours."""
    words = set(question.removesuffix(" wear?").split())
    shared = [len(words & set(passage.split(".")[0].split())) for passage in LIBRARY]
    return sorted(range(len(LIBRARY)), key=lambda i: -shared[i])[:count]


def ask(client: OpenAI, question: str, passages: list[int], instructions: str) -> None:
    context = "\n\n".join(LIBRARY[i] for i in passages)
    client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": f"{instructions}\n\n{context}"},
            {"role": "user", "content": question},  # what varies most comes last
        ],
        max_tokens=8,
    )


for order in ("by rank", "as in the library"):
    with Router(ENDPOINTS) as router, router.wrap(OpenAI(api_key="-")) as client:
        for question in QUESTIONS:
            found = retrieve(question)
            passages = found if order == "by rank" else sorted(found)
            # The order is named in the prompt only so that one run finds nothing of the other's.
            ask(client, question, passages, f"Answer from these passages, given {order}.")
        print(f"passages {order:18} hit rate {router.stats().hit_rate}")
