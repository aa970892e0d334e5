"""Many questions about one long document: put the document first and it is computed once."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
DOCUMENT = "\n".join(f"Clause {i}: the tenant keeps room {i} in good repair." for i in range(400))


def ask(client: OpenAI, number: int) -> str:
    """Ask one question; return the endpoint that answered."""
    reply = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": f"Answer from this contract only.\n{DOCUMENT}"},
            {"role": "user", "content": f"Who repairs room {number}?"},  # what varies comes last
        ],
        max_tokens=16,
    )
    return reply.http_response.extensions["prefixroute"].endpoint.id


with Router(ENDPOINTS) as router, router.wrap(OpenAI(api_key="-")) as client:
    with ThreadPoolExecutor(4) as pool:
        endpoints = Counter(pool.map(lambda number: ask(client, number), range(24)))
    print(dict(sorted(endpoints.items())))
    print("hit rate", router.stats().hit_rate)
