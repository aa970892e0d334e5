# /// script
# requires-python = ">=3.11"
# dependencies = ["prefixroute", "anthropic"]
#
# [tool.uv.sources]
# prefixroute = { path = "..", editable = true }
# ///
"""The Anthropic SDK through a router (vLLM, SGLang and llama.cpp serve /v1/messages)."""

import os

from anthropic import Anthropic

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")

with Router(ENDPOINTS) as router, router.wrap(Anthropic(api_key="-")) as client:
    for question in ("What is a ring?", "What is a virtual node?"):
        with client.messages.stream(
            model=MODEL,
            max_tokens=32,
            system="You explain consistent hashing to newcomers. " * 20,
            messages=[{"role": "user", "content": question}],
        ) as stream:
            print(question, "->", stream.get_final_text())
    print("hit rate", router.stats().hit_rate)
