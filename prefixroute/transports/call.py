"""One call, as both shells see it: what is read of the request, what is made of the response."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, Final

from prefixroute.core.exchange import Answer, Exchange, Failed, Failure, Responded, Script
from prefixroute.core.hashing import digest64
from prefixroute.core.lease import Lease
from prefixroute.core.prompt import Prompt
from prefixroute.core.router import RouterCore
from prefixroute.transports.attempt import attempt_request, caller_location
from prefixroute.transports.library import Library
from prefixroute.transports.replies import Watch, stream_types

__all__ = ["Call", "is_buffered", "is_replayable"]

_REPLAYABLE: Final = frozenset({"ByteStream", "MultipartStream"})
_LARGEST_BUFFERED: Final = 64 * 2**20
_STALE_WITHIN_S: Final = 0.25
_LONGEST_WAIT_S: Final = 3600.0


class Call:
    """What both shells do alike with one request.

    Args:
        core: The router.
        library: The one that the request is of.
        request: The caller's request; its body is read where it can be read twice.
        asynchronous: Which of the two shells runs it.
    """

    def __init__(
        self,
        core: RouterCore,
        library: Library,
        request: Any,
        *,
        asynchronous: bool,
    ) -> None:
        self._core, self.library, self.request = core, library, request
        self._asynchronous = asynchronous
        headers = request.headers
        self._body: bytes | None = getattr(request, "_content", None)
        self.prompt = self._read(headers)

    def _read(self, headers: Any) -> Prompt:
        path = self.request.url.path
        if self.request.method != "POST" or self._body is None:
            return Prompt()
        return self._core.read(self._body, path=path, headers=headers)

    def script(self) -> Script[Any]:
        """Return the exchange that answers this call."""
        failover = self._core.failover
        attempts = failover.max_attempts
        if self._body is None or self._retried_by_caller():
            attempts = 1
        exchange: Exchange[Any] = Exchange(
            self._core, self.prompt, failover, max_attempts=attempts, digest=self._digest
        )
        return exchange.run()

    def _retried_by_caller(self) -> bool:
        count = self.request.headers.get("x-stainless-retry-count", "")
        return count.isascii() and count.isdigit() and int(count[:9]) > 0

    def _digest(self) -> int:
        return digest64(self._body or b"")

    # -- one attempt -----------------------------------------------------------

    def attempt(self, lease: Lease) -> tuple[Any, Wire]:
        """Return the request to send, and what watches how far it gets."""
        made = attempt_request(self.library, self.request, lease.endpoint)
        wire = Wire(made.extensions.get("trace"), asynchronous=self._asynchronous)
        made.extensions["trace"] = wire.trace
        return made, wire

    def responded(self, response: Any) -> Responded[Any]:
        """Return the outcome of an attempt that was answered."""
        seconds = None
        if response.status_code >= 400:
            seconds = retry_after_s(response.headers, self._core.wall_clock)
        return Responded(response, response.status_code, seconds)

    def failed(self, error: Exception, wire: Wire) -> Failed:
        """Return the outcome of an attempt that was not answered."""
        failure = self.library.failure(error, stale=wire.stale)
        if failure is not Failure.NOT_OURS:
            error.request = self.request  # type: ignore[attr-defined]  # not the one with a key
        return Failed(error, failure)

    # -- the answer --------------------------------------------------------------

    def answer(self, answer: Answer[Any]) -> Any:
        """Return the response for the caller: the endpoint's, its body watched."""
        if answer.response is None:
            return self._saturated(answer.retry_after_s)
        response, lease = answer.response, answer.lease
        headers = response.headers
        if "set-cookie" in headers:  # a jar would send it to every endpoint
            del headers["set-cookie"]
        if answer.waited:
            headers["x-should-retry"] = "false"
        extensions = dict(response.extensions)
        stream = response.stream
        extensions["prefixroute"] = answer.decision
        if lease is not None:
            if "location" in headers and 300 <= response.status_code < 400:
                self._redirect(headers, lease)
            stream = self._watched(response, lease)
        return self.library.module.Response(
            response.status_code, headers=headers, stream=stream, extensions=extensions
        )

    def _redirect(self, headers: Any, lease: Lease) -> None:
        location = caller_location(headers["location"], lease.endpoint)
        del headers["location"]
        if location is not None:
            headers["location"] = location

    def _watched(self, response: Any, lease: Lease) -> Any:
        watch = Watch(
            lease,
            events=response.headers.get("content-type", "").startswith("text/event-stream"),
            encoding=response.headers.get("content-encoding", "").lower(),
            keep_id=self.request.url.path.rstrip("/").endswith("/responses"),
        )
        sync, asynchronous = stream_types(self.library)
        return (asynchronous if self._asynchronous else sync)(response.stream, watch)

    def _saturated(self, retry_after: float) -> Any:
        return self.library.module.Response(
            503,
            headers={"retry-after": f"{max(1, round(retry_after))}"},
            json={
                "error": {
                    "message": "every endpoint is at its max_in_flight (prefixroute)",
                    "type": "saturated",
                    "code": "saturated",
                }
            },
        )


class Wire:
    """Watches how far an attempt got, through the library's trace extension.

    Args:
        inner: The caller's own trace function, which goes on being called.
        asynchronous: Whether trace functions are awaited.
    """

    __slots__ = ("_inner", "_opened", "_written_at", "trace")

    def __init__(self, inner: Callable[..., Any] | None, *, asynchronous: bool) -> None:
        self._inner = inner
        self._opened = False
        self._written_at: float | None = None
        self.trace = self._atrace if asynchronous else self._trace

    def _note(self, name: str) -> None:
        if name.startswith(("connection.connect", "connection.start_tls")):
            self._opened = True
        elif ".send_request_" in name:
            self._written_at = time.monotonic()

    def _trace(self, name: str, info: dict[str, Any]) -> None:
        self._note(name)
        if self._inner is not None:
            self._inner(name, info)

    async def _atrace(self, name: str, info: dict[str, Any]) -> None:
        self._note(name)
        if self._inner is not None:
            await self._inner(name, info)

    @property
    def stale(self) -> bool:
        """Whether the attempt wrote to an idle connection, and only just now."""
        written = self._written_at
        return (
            not self._opened
            and written is not None
            and time.monotonic() - written <= _STALE_WITHIN_S
        )


def is_replayable(request: Any) -> bool:
    """Return whether a request's body may be read into memory, to be sent again if need be."""
    if type(request.stream).__name__ not in _REPLAYABLE:
        return False  # a generator can be read once: it is passed on as it is
    length = request.headers.get("content-length", "")
    return length.isascii() and length.isdigit() and int(length[:18]) <= _LARGEST_BUFFERED


def is_buffered(request: Any) -> bool:
    """Return whether a request's body is in memory already."""
    return hasattr(request, "_content")


def retry_after_s(headers: Any, wall_clock: Callable[[], float]) -> float | None:
    """Return what a response asks to wait, seconds, 0 to an hour; ``None``: nothing readable.

    Knows ``retry-after-ms``, and ``Retry-After`` as seconds and as an HTTP date (RFC 9110, 10.2.3).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            if unit != 1.0:
                continue
            try:
                seconds = parsedate_to_datetime(value).timestamp() - wall_clock()
            except (ValueError, OverflowError, TypeError):
                continue
        if not math.isnan(seconds):
            return min(_LONGEST_WAIT_S, max(0.0, seconds))
    return None
