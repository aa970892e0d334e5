"""httpx alone; and a router that only decides, for an HTTP stack of your own."""

import os

import httpx

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}

with Router(ENDPOINTS) as router:
    with httpx.Client(base_url=router.base_url, transport=router.transport()) as http:
        reply = http.post("/chat/completions", json=BODY).raise_for_status()
        print(reply.extensions["prefixroute"], reply.json()["choices"][0]["message"])

    with router.acquire(BODY) as lease:  # counted as in flight there until the block ends
        reply = httpx.post(f"{lease.endpoint.url}/chat/completions", json=BODY).raise_for_status()
        usage = reply.json()["usage"]
        lease.usage(
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )
    print(router)
