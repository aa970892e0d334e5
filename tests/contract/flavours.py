"""One test for six ways to send: httpx and httpx2, each sync, on asyncio and on trio.

A test is written once, as a coroutine. Where the way is sync nothing in it ever suspends, so that
it runs to its end in one step.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import trio

from prefixroute import Router

Library = Literal["httpx", "httpx2"]
Mode = Literal["sync", "asyncio", "trio"]

CHAT = "/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}
STREAM: dict[str, Any] = {**BODY, "stream": True}


@dataclass(frozen=True)
class Flavour:
    """A library, and how its clients wait."""

    library: Library
    mode: Mode

    @property
    def module(self) -> Any:
        return importlib.import_module(self.library)

    @property
    def is_sync(self) -> bool:
        return self.mode == "sync"

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        match self.mode:
            case "asyncio":
                asyncio.run(main())
            case "trio":
                trio.run(main)
            case "sync":
                coroutine = main()
                try:
                    coroutine.send(None)
                except StopIteration:
                    return
                finally:
                    coroutine.close()
                raise AssertionError("a sync test suspended")

    async def checkpoint(self) -> None:
        await self.sleep(0)

    async def sleep(self, seconds: float) -> None:
        match self.mode:
            case "asyncio":
                await asyncio.sleep(seconds)
            case "trio":
                await trio.sleep(seconds)

    def transport(self, router: Router, inner: Any = None) -> Any:
        return router.transport(inner) if self.is_sync else router.async_transport(inner)

    def client(self, router: Router, inner: Any = None, **settings: Any) -> Client:
        """A client of the router whose requests go to ``inner``."""
        settings = {"base_url": router.base_url, **settings}
        return self.plain(transport=self.transport(router, inner), **settings)

    def plain(self, **settings: Any) -> Client:
        kind = self.module.Client if self.is_sync else self.module.AsyncClient
        return Client(self, kind(**settings))

    def stream(self, *parts: bytes | Exception | None) -> Any:
        """A reply's body: chunks, pauses (``None``) and errors."""
        bases = (ScriptedBody, self.module.SyncByteStream, self.module.AsyncByteStream)
        return type("Body", bases, {})(self, parts)

    def events(self, *parts: bytes | Exception | None, **fields: Any) -> Any:
        """A streamed reply."""
        headers = {"content-type": "text/event-stream", **fields.pop("headers", {})}
        return self.module.Response(200, headers=headers, stream=self.stream(*parts), **fields)

    def error(self, name: str) -> Exception:
        made: Exception = getattr(self.module, name)(name)
        return made


@dataclass
class Client:
    """A client whose methods are awaited, whether they wait or not."""

    flavour: Flavour
    http: Any

    async def post(self, path: str = CHAT, **given: Any) -> Any:
        if not {"json", "content", "files", "data"} & given.keys():
            given["json"] = BODY
        return await self.request("POST", path, **given)

    async def get(self, path: str, **given: Any) -> Any:
        return await self.request("GET", path, **given)

    async def request(self, method: str, path: str, **given: Any) -> Any:
        return await maybe(self.http.request(method, path, **given))

    async def open(self, path: str = CHAT, **given: Any) -> Any:
        """Send; the reply is not read."""
        given = given or {"json": STREAM}
        request = self.http.build_request("POST", path, **given)
        return await maybe(self.http.send(request, stream=True))

    @asynccontextmanager
    async def streaming(self, path: str = CHAT, **given: Any) -> AsyncIterator[Any]:
        response = await self.open(path, **given)
        try:
            yield response
        finally:
            await self.close_response(response)

    def chunks(self, response: Any) -> AsyncIterator[bytes]:
        """The raw bytes of a reply, as they come."""
        if self.flavour.is_sync:
            return _Chunks(response.iter_raw())
        raw: AsyncIterator[bytes] = response.aiter_raw()
        return raw

    async def read(self, response: Any) -> bytes:
        body: bytes = await maybe(response.read() if self.flavour.is_sync else response.aread())
        return body

    async def close_response(self, response: Any) -> None:
        await maybe(response.close() if self.flavour.is_sync else response.aclose())

    async def aclose(self) -> None:
        await maybe(self.http.close() if self.flavour.is_sync else self.http.aclose())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def maybe(result: Any) -> Any:
    return await result if asyncio.iscoroutine(result) else result


class _Chunks:
    """A sync iterator that ``async for`` takes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration

    async def aclose(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()


class ScriptedBody:
    """A body of a reply, sync and async, that does what it is told."""

    def __init__(self, flavour: Flavour, parts: Iterable[bytes | Exception | None]) -> None:
        self._flavour, self._parts = flavour, tuple(parts)
        self.closed = 0
        self.iterated = 0

    def __iter__(self) -> Any:
        self.iterated += 1
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            if part is not None:
                yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.iterated += 1
        for part in self._parts:
            await self._flavour.checkpoint()
            if isinstance(part, Exception):
                raise part
            if part is not None:
                yield part

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1
        await self._flavour.checkpoint()


@dataclass(frozen=True)
class Received:
    """What arrived at an inner transport."""

    method: str
    url: str
    headers: Any
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    stream: Any
    request: Any

    @property
    def host(self) -> str:
        return str(self.request.url.host)


Handler = Callable[[Received], Any]


@dataclass
class Inner:
    """An inner transport, sync and async: hands each request to ``handler`` and keeps it.

    The handler returns a response, or raises; one that is an exception is raised.
    """

    flavour: Flavour
    handler: Handler
    received: list[Received] = field(default_factory=list)
    closed: int = 0

    @property
    def hosts(self) -> list[str]:
        return [one.host for one in self.received]

    def _answer(self, request: Any, body: bytes) -> Any:
        received = Received(
            method=request.method,
            url=str(request.url),
            headers=request.headers,
            raw_headers=tuple(request.headers.raw),
            body=body,
            stream=request.stream,
            request=request,
        )
        self.received.append(received)
        answer = self.handler(received)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def handle_request(self, request: Any) -> Any:
        return self._answer(request, b"".join(request.stream))

    async def handle_async_request(self, request: Any) -> Any:
        body = b"".join([part async for part in request.stream])
        await self.flavour.checkpoint()
        answer = self._answer(request, body)
        return await answer if asyncio.iscoroutine(answer) else answer

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def in_turn(*answers: Any) -> Handler:
    """Give these answers in order, each to one request; the last one to all that follow."""
    left = list(answers)

    def answer(received: Received) -> Any:
        made = left.pop(0) if len(left) > 1 else left[0]
        return made(received) if callable(made) else made

    return answer


def urls(count: int) -> list[str]:
    return [f"http://gpu-{number}:8000/v1" for number in range(count)]


def sse(*data: str | bytes) -> list[bytes]:
    """The events of a stream, one chunk each."""
    return [b"data: " + (one if isinstance(one, bytes) else one.encode()) + b"\n\n" for one in data]
