"""A FastAPI service: one router for its lifetime. Run it with ``uvicorn fastapi_service:app``."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from openai import AsyncOpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000/v1,http://localhost:8001/v1").split(
    ","
)
MODEL = os.environ.get("MODEL", "simulated-model")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Router(ENDPOINTS) as router, router.wrap(AsyncOpenAI(api_key="-")) as client:
        app.state.router, app.state.client = router, client
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/answer")
async def answer(question: str, request: Request) -> dict[str, str | None]:
    reply = await request.app.state.client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "You answer in one sentence. " * 30},
            {"role": "user", "content": question},
        ],
        max_tokens=32,
    )
    return {"answer": reply.choices[0].message.content}


@app.get("/routing")
async def routing(request: Request) -> dict[str, float | int | None]:
    stats = request.app.state.router.stats()
    return {"requests": stats.requests, "in_flight": stats.in_flight, "hit_rate": stats.hit_rate}
