"""One call, as both shells see it: what is read of the request, what is made of the response."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from prefixroute.core.bodies import PRIMED_PATHS
from prefixroute.core.exchange import Exchange
from prefixroute.core.hashing import digest64
from prefixroute.core.lease import Lease
from prefixroute.core.load_header import ASK, REPORT
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Answer, Failed, Failure, Keep, Responded, Send
from prefixroute.transports.asked import resets_in_s, retry_after_s
from prefixroute.transports.attempt import attempt_request, caller_location
from prefixroute.transports.injection import asking_for_usage, hiding_types
from prefixroute.transports.library import Library
from prefixroute.transports.replies import Watch, stream_types
from prefixroute.transports.wire import Limit, Wire

__all__ = ["Attempt", "Call", "Refusal", "Reply", "is_buffered", "is_replayable"]

_REPLAYABLE: Final = frozenset({"ByteStream", "MultipartStream"})
_LARGEST_BUFFERED: Final = 64 * 2**20
_LARGEST_REFUSAL: Final = 2**20
_READ_REFUSAL_S: Final = 5.0
_LEAST_READ_S: Final = 0.25
_OK: Final = 200
_LOAD: Final = frozenset({429, 503})
_OF_THE_WIRE: Final = ("content-length", "content-encoding", "transfer-encoding")
_NOT_JSON: Final = digest64(b"a body that is no JSON")
_KEPT_IDS: Final = ("/responses", "/conversations")


class Attempt(msgspec.Struct):
    """One try: the request as it is sent, and what watches how far it gets.

    ``transport`` is what sends it; the shells set it. ``lease`` is a caller's.
    """

    request: Any
    wire: Wire
    limit: Limit | None
    transport: Any = None
    lease: Lease | None = None


class Reply(msgspec.Struct):
    """An endpoint's response, and the request that it answers."""

    response: Any
    request: Any


class Call:
    """What both shells do alike with one request.

    Args:
        core: The router.
        library: The one that the request is of.
        request: The caller's request; its body is in memory if it can be sent twice.
        asynchronous: Which of the two shells runs it.
        closed: Tells whether the caller has closed the transport, and so what runs through it.
    """

    def __init__(
        self,
        core: RouterCore,
        library: Library,
        request: Any,
        *,
        asynchronous: bool,
        closed: Callable[[], bool],
    ) -> None:
        self._core, self.library, self.request = core, library, request
        self._asynchronous, self._closed = asynchronous, closed
        self._body: bytes | None = request.content if is_buffered(request) else None
        self._path: str = request.url.path
        self._began = core.now()
        self._prompt = core.read(self._body, path=self._path, headers=request.headers)
        self._sent = request  # but for URL, host and key
        if core.inject_usage:
            self._sent = asking_for_usage(library, request, self._body)

    def exchange(self) -> Exchange[Reply]:
        """Return the exchange that answers this call."""
        return Exchange(
            self._core,
            self._prompt,
            self._core.failover,
            digest=self._digest,
            identity=self._identity,
            retry=self._retried_by_caller(),
            once=self._body is None,
            resendable=self._body is not None,
            began=self._began,
        )

    def _retried_by_caller(self) -> bool:
        count = self.request.headers.get("x-stainless-retry-count", "0")
        return count.isascii() and count.isdigit() and int(count[:9]) > 0

    def _digest(self) -> int | None:
        """Return what the errors of one request have in common; ``None``: it is not known.

        Bodies that claim to be JSON and are not have one digest together: some engines answer them
        with 500, and that says nothing about the engines, however many there are.
        """
        if not self._body:
            return None
        kind = self.request.headers.get("content-type", "")
        if "json" in kind.lower() and not _is_json(self._body):
            return _NOT_JSON
        return digest64(b"%s\0%s" % (self._path.encode("utf-8", "replace"), self._body))

    def _identity(self) -> int | None:
        """Return a digest of this very request; ``None``: its body cannot be sent twice."""
        if self._body is None:
            return None
        url = self.request.url.raw_path
        return digest64(b"%s %s\0%s" % (self.request.method.encode(), url, self._body))

    # -- one attempt -----------------------------------------------------------

    def attempt(self, send: Send) -> Attempt:
        """Return the request to send to the endpoint of a lease."""
        lease, ask_load = send.lease, self._core.ask_load
        made = attempt_request(
            self.library, self._sent, lease.endpoint, send.key, ask_load=ask_load
        )
        limit = None
        if send.within_s is not None:
            limit = Limit(made.extensions.setdefault("timeout", {}), send.within_s)
        wire = Wire(made.extensions.get("trace"), limit)
        made.extensions["trace"] = wire.atrace if self._asynchronous else wire.trace
        return Attempt(made, wire, limit, lease=lease)

    def responded(self, response: Any, attempt: Attempt) -> Responded[Reply]:
        """Return the outcome of an attempt that was answered."""
        if attempt.limit is not None:
            attempt.limit.lift()
        if self._core.ask_load and attempt.lease is not None:
            attempt.lease.heard_load(response.headers.get(REPORT))
        status, asked = response.status_code, None
        if status >= 400:
            asked = retry_after_s(response.headers, self._core.wall_clock)
        if asked is None and status in _LOAD:
            asked = resets_in_s(response.headers, self._core.wall_clock)
        return Responded(Reply(response, attempt.request), status, asked)

    def failed(self, error: Exception, attempt: Attempt) -> Failed:
        """Return the outcome of an attempt that was not answered."""
        library, limit = self.library, attempt.limit
        if library.is_request_error(error):
            error.request = self.request  # type: ignore[attr-defined]  # not the one with a key
        cut = limit is not None and limit.is_over and library.is_timeout(error)
        failure = library.failure(error, stale=attempt.wire.stale)
        return Failed(error, Failure.NOT_OURS if self._closed() else failure, cut)

    # -- the answer --------------------------------------------------------------

    def answer(self, answer: Answer[Reply]) -> Any:
        """Return the response for the caller: the endpoint's, its body watched."""
        if answer.response is None:
            return self._saturated(answer.retry_after_s)
        inner, lease = answer.response.response, answer.lease
        if self._core.remembers and lease is not None and inner.status_code == _OK and self._body:
            self._remember(self._body)
        given, stream = self._body_of(inner)
        response = self.library.module.Response(
            inner.status_code,
            headers=given,
            stream=stream if lease is None else self._hiding(given, stream, lease),
            extensions={**inner.extensions, "prefixroute": answer.decision},
        )
        headers = response.headers
        if "set-cookie" in headers:  # a jar would send it to every endpoint
            del headers["set-cookie"]
        if self._core.ask_load and ASK not in self.request.headers:
            headers.pop(REPORT, None)
        if answer.waited:
            headers["x-should-retry"] = "false"
        if lease is not None and "location" in headers and 300 <= inner.status_code < 400:
            self._redirect(headers, answer.response, lease)
        return response

    def _remember(self, body: bytes) -> None:
        if self._path.rstrip("/").endswith(PRIMED_PATHS):
            self._core.remember(self._prompt, body, self._path)

    def _redirect(self, headers: Any, reply: Reply, lease: Lease) -> None:
        sent = reply.request.url
        location = caller_location(headers["location"], sent, lease.endpoint, self.request.url)
        del headers["location"]
        if location is not None:
            headers["location"] = location

    def _body_of(self, inner: Any) -> tuple[Any, Any]:
        """Return headers and stream of a response that an inner transport may have read itself."""
        module, headers = self.library.module, inner.headers
        if not inner.is_stream_consumed or isinstance(inner.stream, module.ByteStream):
            return headers, inner.stream
        headers = headers.copy()
        for name in _OF_THE_WIRE:
            headers.pop(name, None)
        return headers, module.ByteStream(inner.content)  # which is decoded

    def _hiding(self, headers: Any, stream: Any, lease: Lease) -> Any:
        """Return the watched body without what the caller did not ask for."""
        body = self._watched(headers, stream, lease)
        kind, encoding = headers.get("content-type", ""), headers.get("content-encoding", "")
        events = kind.lower().startswith("text/event-stream")
        if self._sent is self.request or not events or encoding not in ("", "identity"):
            return body
        headers.pop("content-length", None)
        return hiding_types(self.library)[self._asynchronous](body)

    def _watched(self, headers: Any, stream: Any, lease: Lease) -> Any:
        watch = Watch(
            lease,
            kind=headers.get("content-type", "").lower(),
            encoding=headers.get("content-encoding", "").strip().lower(),
            keep_id=self._path.rstrip("/").endswith(_KEPT_IDS),
            digest=self._digest,
            on_failure=partial(self._note_failed, lease.endpoint.id),
            closed=self._closed,
        )
        sync, asynchronous = stream_types(self.library)
        return (asynchronous if self._asynchronous else sync)(stream, watch)

    def _note_failed(self, endpoint_id: str) -> None:
        self._core.note_failed(self._identity(), endpoint_id)

    def _saturated(self, retry_after: float) -> Any:
        return self.library.module.Response(
            503,
            headers={"retry-after": f"{max(1, round(retry_after))}"},
            extensions={"prefixroute": None},
            json={
                "error": {
                    "message": "every endpoint is at its max_in_flight (prefixroute)",
                    "type": "saturated",
                    "code": "saturated",
                }
            },
        )


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


class Refusal:
    """Reads what an endpoint said when it refused, so that its connection is free again.

    Bounded in bytes and time: what is longer, or slower, is left out.

    Args:
        library: Of the reply.
        keep: The reply; its body is not read yet.
    """

    def __init__(self, library: Library, keep: Keep[Reply]) -> None:
        self._library, self._refusal = library, keep.refusal
        self._chunks: list[bytes] | None = []
        self._size = 0
        within_s = _READ_REFUSAL_S
        if keep.within_s is not None:
            within_s = min(within_s, max(_LEAST_READ_S, keep.within_s))
        self._deadline = time.monotonic() + within_s
        timeouts = keep.refusal.response.request.extensions.get("timeout")
        if isinstance(timeouts, dict):
            read_s = timeouts.get("read")
            timeouts["read"] = min(within_s, read_s if read_s else within_s)

    def take(self, chunk: bytes) -> bool:
        """Take the next bytes; ``False``: it is enough."""
        self._size += len(chunk)
        if self._size > _LARGEST_REFUSAL or time.monotonic() > self._deadline:
            self._chunks = None
        elif self._chunks is not None:
            self._chunks.append(chunk)
        return self._chunks is not None

    def broke(self) -> None:
        """Note that the body broke off."""
        self._chunks = None

    def kept(self) -> Responded[Reply]:
        """Return the refusal with its body in memory."""
        refusal, module = self._refusal, self._library.module
        try:
            self._response().read()
        except module.DecodingError:  # garbled: the refusal itself is known
            self._chunks = None
        reply = Reply(self._response(), refusal.response.request)
        return Responded(reply, refusal.status, refusal.retry_after_s)

    def _response(self) -> Any:
        response, module = self._refusal.response.response, self._library.module
        headers = response.headers.copy()
        if self._chunks is None:
            for name in _OF_THE_WIRE:
                headers.pop(name, None)
        content = module.ByteStream(b"".join(self._chunks or ()))
        return module.Response(
            response.status_code, headers=headers, stream=content, extensions=response.extensions
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
