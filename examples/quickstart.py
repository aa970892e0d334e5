"""The OpenAI SDK through a router: two turns of a chat go to one endpoint."""

import os

from openai import OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")

with Router(ENDPOINTS) as router, router.wrap(OpenAI(api_key="-")) as client:
    messages = [
        {"role": "system", "content": "You answer questions about gardening, briefly."},
        {"role": "user", "content": "When do I sow tomatoes?"},
    ]
    first = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And cucumbers?"},
    ]
    print(router.explain({"model": MODEL, "messages": messages}))  # where it will go, and why
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32)

    for endpoint in router.stats().endpoints:
        print(endpoint.url, endpoint.requests, "requests, hit rate", endpoint.hit_rate)
