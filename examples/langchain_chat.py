# /// script
# requires-python = ">=3.11"
# dependencies = ["prefixroute", "langchain-core>=1", "langchain-openai>=1", "openai>=3"]
#
# [tool.uv.sources]
# prefixroute = { path = "..", editable = true }
# ///
"""LangChain: ChatOpenAI takes the router's HTTP clients, a sync and an async one."""

import asyncio
import os

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
SYSTEM = SystemMessage("You help passengers of the ferries to the islands. " * 30)
QUESTIONS = ("Can I take a bicycle?", "Is there a night ferry?", "Where do I buy a ticket?")


@tool
def next_departure(island: str) -> str:
    """Look up the next ferry to an island."""
    return f"The next ferry to {island or 'the island'} leaves at 14:40."


with Router(ENDPOINTS) as router:
    model = ChatOpenAI(
        model=MODEL,
        base_url=router.base_url,
        api_key="-",
        http_client=router.client("httpx2"),  # what openai 3 is built on; before, it was "httpx"
        http_async_client=router.async_client("httpx2"),
        stream_usage=True,  # tells the router what was cached
        max_completion_tokens=64,
    )
    # Tools stand at the start of a prompt: bind the same ones on every turn, or nothing is shared.
    chat = model.bind_tools([next_departure])
    forced = model.bind_tools([next_departure], tool_choice="required")

    messages = [SYSTEM, HumanMessage("When does the next ferry to Vormsi leave?")]
    messages.append(forced.invoke(messages))
    messages += [next_departure.invoke(call) for call in messages[-1].tool_calls]
    print("".join(chunk.text for chunk in chat.stream(messages)))
    print("one conversation:", [e.requests for e in router.stats().endpoints], "requests")

    batch = [[SYSTEM, HumanMessage(question)] for question in QUESTIONS]
    for question, reply in zip(QUESTIONS, asyncio.run(chat.abatch(batch)), strict=True):
        print(question, "->", reply.text)
    print("hit rate", router.stats().hit_rate)
