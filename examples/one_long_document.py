"""Many questions about one long document: put the document first and it is computed once."""

import os
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000/v1,http://localhost:8001/v1").split(
    ","
)
MODEL = os.environ.get("MODEL", "simulated-model")
DOCUMENT = "\n".join(f"Clause {i}: the tenant keeps room {i} in good repair." for i in range(400))

with Router(ENDPOINTS) as router, router.wrap(OpenAI(api_key="-")) as client:

    def ask(number: int) -> str:
        reply = client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": f"Answer from this contract only.\n{DOCUMENT}"},
                {
                    "role": "user",
                    "content": f"Who repairs room {number}?",
                },  # what varies comes last
            ],
            max_tokens=16,
        )
        return reply.http_response.extensions["prefixroute"].endpoint.id

    with ThreadPoolExecutor(4) as pool:
        endpoints = list(pool.map(ask, range(24)))
    print({endpoint: endpoints.count(endpoint) for endpoint in sorted(set(endpoints))})
    print("hit rate", router.stats().hit_rate)
