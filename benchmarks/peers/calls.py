"""Clients of this environment, straight, through a Router and through gateways, as a process.

A worker for ``benchmarks.peers``: ``python -m benchmarks.peers.calls``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import httpx
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from benchmarks.bodies import encoded
from benchmarks.peers.lines import serve
from benchmarks.peers.timing import MODEL, cpu_us, pairs, timed, timed_async
from prefixroute import Router

__all__ = ["ROUTED", "Clients"]

ROUTED: Final = "prefixroute"
_JSON: Final = {"content-type": "application/json"}

Messages: TypeAlias = list[dict[str, str]]
Send: TypeAlias = Callable[[Any], Any]
"""Sends a request and returns what came of it, or an awaitable of that."""


class Clients:
    """One client for each way to call and each place to call, made when it is first asked for."""

    def __init__(self) -> None:
        self._places: Mapping[str, Mapping[str, Sequence[str]]] = {}
        self._sends: dict[tuple[str, str], Send] = {}
        self._deciding: Router | None = None
        self._runner = asyncio.Runner()
        self._open = ExitStack()

    def start(self, places: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Take the places that can be called.

        Args:
            places: Base URLs by the place's name, for each kind of answer, ``json`` and ``sse``;
                a Router has all those of ``ROUTED``.
        """
        self._places = places

    def close(self) -> None:
        """Close every client and Router."""
        self._open.close()
        self._runner.close()

    def decide(self, first: int, count: int, tokens: int, form: str) -> dict[str, float]:
        """Return what a decision costs: from a body's bytes, or from a mapping, to a lease."""
        if self._deciding is None:
            self._deciding = self._router(self._places["json"][ROUTED])
        router = self._deciding

        def run(body: Any) -> None:
            router.acquire(body).release()

        make = encoded if form == "bytes" else _mapping
        seen, following = pairs(first, count, tokens)
        return {
            "first_us": cpu_us(run, [make(messages) for messages in seen]),
            "next_us": cpu_us(run, [make(messages) for messages in following]),
        }

    def call(
        self, client: str, through: str, first: int, count: int, tokens: int
    ) -> dict[str, Any]:
        """Send chats, then their next turns, one call after the other; see ``timed``."""
        make, connect = {
            "httpx": (_as_json, self._post),
            "httpx-sse": (encoded, self._stream),
            "openai": (_as_is, self._create),
            "openai-async": (_as_is, self._acreate),
            "openai-post": (_as_body, self._openai_post),
            "openai-post-async": (_as_body, self._openai_apost),
        }[client]
        if (client, through) not in self._sends:
            urls = self._places["sse" if client == "httpx-sse" else "json"][through]
            routed = self._router(urls) if through == ROUTED else None
            self._sends[client, through] = connect(urls[0], routed)
        send = self._sends[client, through]
        seen, following = pairs(first, count, tokens)
        requests = [make(messages) for messages in (*seen, *following)]
        if client.endswith("async"):
            return self._runner.run(timed_async(send, requests))
        return timed(send, requests)

    def _router(self, urls: Sequence[str]) -> Router:
        return self._open.enter_context(Router(urls, seed=0))

    def _http(self, url: str, router: Router | None) -> httpx.Client:
        if router is None:
            return self._open.enter_context(httpx.Client(base_url=url))
        made = httpx.Client(base_url=router.base_url, transport=router.transport())
        return self._open.enter_context(made)

    def _post(self, url: str, router: Router | None) -> Send:
        http = self._http(url, router)

        def send(body: bytes) -> object:
            reply = http.post("/chat/completions", content=body, headers=_JSON)
            return reply.raise_for_status().json()

        return send

    def _stream(self, url: str, router: Router | None) -> Send:
        http = self._http(url, router)

        def send(body: bytes) -> int:
            with http.stream("POST", "/chat/completions", content=body, headers=_JSON) as reply:
                return sum(1 for _ in reply.raise_for_status().iter_lines())

        return send

    def _openai(self, url: str, router: Router | None) -> OpenAI:
        client = self._open.enter_context(OpenAI(base_url=url, api_key="-"))
        return client if router is None else self._open.enter_context(router.wrap(client))

    def _async_openai(self, url: str, router: Router | None) -> AsyncOpenAI:
        client = AsyncOpenAI(base_url=url, api_key="-")
        self._open.callback(lambda plain: self._runner.run(plain.close()), client)
        if router is not None:
            client = router.wrap(client)
            self._open.callback(lambda routed: self._runner.run(routed.close()), client)
        return client

    def _create(self, url: str, router: Router | None) -> Send:
        client = self._openai(url, router)

        def send(messages: Any) -> object:
            return client.chat.completions.create(model=MODEL, messages=messages)

        return send

    def _acreate(self, url: str, router: Router | None) -> Send:
        client = self._async_openai(url, router)

        def send(messages: Any) -> Awaitable[object]:
            return client.chat.completions.create(model=MODEL, messages=messages)

        return send

    def _openai_post(self, url: str, router: Router | None) -> Send:
        client = self._openai(url, router)

        def send(body: Any) -> object:
            return client.post("/chat/completions", body=body, cast_to=ChatCompletion)

        return send

    def _openai_apost(self, url: str, router: Router | None) -> Send:
        client = self._async_openai(url, router)

        def send(body: Any) -> Awaitable[object]:
            return client.post("/chat/completions", body=body, cast_to=ChatCompletion)

        return send


def _mapping(messages: Messages) -> dict[str, Any]:
    return {"messages": messages, "model": MODEL, "stream": True}


def _as_json(messages: Messages) -> bytes:
    return encoded(messages, stream=False)


def _as_body(messages: Messages) -> dict[str, Any]:
    return {"messages": messages, "model": MODEL}


def _as_is(messages: Messages) -> Messages:
    return messages


def main() -> None:
    """Serve until the input ends."""
    clients = Clients()
    serve({"start": clients.start, "decide": clients.decide, "call": clients.call})


if __name__ == "__main__":
    main()
