# /// script
# requires-python = ">=3.11"
# dependencies = ["prefixroute", "fastapi", "openai", "pydantic", "uvicorn"]
#
# [tool.uv.sources]
# prefixroute = { path = "..", editable = true }
# ///
"""A FastAPI service that streams answers: one router for its lifetime.

Run this file, or ``uvicorn fastapi_service:app --port 9000`` in its folder, and ask::

    curl -N localhost:9000/chat --json '[{"role": "user", "content": "Is it open today?"}]'
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI
from pydantic import BaseModel

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
SYSTEM = {"role": "system", "content": "You answer visitors of a museum in one sentence. " * 30}


class Message(BaseModel):
    """One turn of a chat."""

    role: Literal["user", "assistant"]
    content: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the router when the service starts; close it when the last answer has ended."""
    async with Router(ENDPOINTS) as router, router.wrap(AsyncOpenAI(api_key="-")) as client:
        app.state.router, app.state.client = router, client
        yield
        logging.getLogger("uvicorn.error").info("Closing %r", router)


app = FastAPI(lifespan=lifespan)


@app.post("/chat")
async def chat(messages: list[Message], request: Request) -> StreamingResponse:
    """Stream the next turn of a chat as plain text."""
    stream = await request.app.state.client.chat.completions.create(
        model=MODEL,
        messages=[SYSTEM, *(message.model_dump() for message in messages)],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},  # tells the router what was cached
    )

    async def pieces() -> AsyncIterator[str]:
        async with stream:  # closed, too, when the visitor goes away: nothing stays in flight
            async for chunk in stream:
                if chunk.choices:
                    yield chunk.choices[0].delta.content or ""

    return StreamingResponse(pieces(), media_type="text/plain")


@app.get("/routing")
async def routing(request: Request) -> dict[str, float | int | None]:
    """Say what the router has done so far."""
    stats = request.app.state.router.stats()
    return {"requests": stats.requests, "in_flight": stats.in_flight, "hit_rate": stats.hit_rate}


if __name__ == "__main__":
    uvicorn.run(app, port=9000)
