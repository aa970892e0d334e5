"""One request through a mock transport: all that the sync and the async one have in common."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import cast

from prefixroute.testing.clock import Clock, Pause
from prefixroute.testing.faults import Fault, Refuse
from prefixroute.testing.libraries import AnyRequest, library_error, library_of
from prefixroute.testing.replica import Replica
from prefixroute.testing.wire import Data, Drop, Head, Hold, ReceivedRequest, Script

__all__ = ["Call", "IdleConnections", "Trace"]

Trace = tuple[str, dict[str, object]]
"""An event for the `trace` extension of a request: its name and what belongs to it."""

_HOLD_S = 0.01
_RESET = "[Errno 104] Connection reset by peer"
_NO_REPLY = "Server disconnected without sending a response."
_CUT = "peer closed connection without sending complete message body (incomplete chunked read)"


class IdleConnections:
    """The kept-alive connections of one transport, as counts: there are no real ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: Counter[tuple[int, int]] = Counter()

    def take(self, replica: Replica) -> bool:
        """Whether there was an idle connection to a replica; it is in use now."""
        key = (replica.index, replica.eras)
        with self._lock:
            if not self._idle[key]:
                return False
            self._idle[key] -= 1
            return True

    def put(self, replica: Replica, eras: int) -> None:
        """Keep a connection that was made in an era of the replica."""
        with self._lock:
            self._idle[replica.index, eras] += 1


class Call:
    """One request to one replica. The shells do its waiting, its reading and its tracing."""

    def __init__(
        self, *, request: AnyRequest, replica: Replica, clock: Clock, idle: IdleConnections
    ) -> None:
        """Prepare a call; nothing happens yet.

        Args:
            request: Of httpx or httpx2.
            replica: Who answers.
            clock: Tells the simulated time.
            idle: The connections of the transport.
        """
        self.library = library_of(request)
        self._request = request
        self._replica = replica
        self._clock = clock
        self._idle = idle
        self._script: Script | None = None
        self._fault: Fault | None = None
        self._is_reused = False
        self._lives, self._eras = replica.lives, replica.eras
        self._silent_since_s = 0.0
        timeouts = request.extensions.get("timeout")
        limit = timeouts.get("read") if isinstance(timeouts, Mapping) else None
        self._read_limit_s = limit if isinstance(limit, int | float) else None
        trace = request.extensions.get("trace")
        self.trace = cast("Callable[[str, dict[str, object]], object] | None", trace)

    def connect(self) -> Iterator[Trace]:
        """Find an idle connection or make one, and send the headers.

        Raises:
            ConnectError: Of the request's library: refused.
        """
        replica, url = self._replica, self._request.url
        address: dict[str, object] = {"host": url.host, "port": url.port or 80}
        self._is_reused = replica.accepts and self._idle.take(replica)
        self._lives, self._eras = replica.lives, replica.eras
        self._fault = replica.take_fault(
            method=self._request.method, path=url.path, reused_connection=self._is_reused
        )
        if not self._is_reused:
            yield "connection.connect_tcp.started", address
        if not replica.accepts or isinstance(self._fault, Refuse):
            raise self._error("ConnectError", "[Errno 111] Connection refused")
        if not self._is_reused:
            yield "connection.connect_tcp.complete", {"return_value": None}
        yield "http11.send_request_headers.started", {}
        yield "http11.send_request_headers.complete", {"return_value": None}
        yield "http11.send_request_body.started", {}

    def send(self, body: bytes) -> Iterator[Trace]:
        """Let the request arrive."""
        replica, request = self._replica, self._request
        received = ReceivedRequest(
            replica=replica.index,
            method=request.method,
            target=request.url.raw_path.decode("ascii"),
            headers=tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in request.headers.raw
            ),
            body=body,
            at_s=self._clock.now_s(),
            reused_connection=self._is_reused,
        )
        self._silent_since_s = self._clock.waited_s()
        self._script = replica.script(received, self._fault)
        yield "http11.send_request_body.complete", {"return_value": None}
        yield "http11.receive_response_headers.started", {}

    def head(self) -> Generator[Pause, None, Head]:
        """Wait, where it says so, for the headers.

        Raises:
            ReadTimeout: Of the request's library, as are all of these.
            ReadError: The connection was reset.
            RemoteProtocolError: The connection was closed.
        """
        return cast("Head", (yield from self._next(_NO_REPLY)))

    def chunk(self) -> Generator[Pause, None, bytes | None]:
        """Wait, where it says so, for the next bytes of the body; None at its end.

        Raises:
            ReadTimeout, ReadError, RemoteProtocolError: As in `head`.
        """
        data = yield from self._next(_CUT)
        return data.data if isinstance(data, Data) else None

    def headers_of(self, head: Head) -> list[tuple[str, str]]:
        """The headers of the reply, those included that say how the body is framed."""
        headers = list(head.headers)
        if not head.has_length:
            headers.append(("transfer-encoding", "chunked"))
        return headers

    def cancel(self) -> None:
        """Go away, if the body has not ended yet."""
        if self._script is not None:
            self._script.close()
            self._script = None

    def _next(self, closed: str) -> Generator[Pause, None, Head | Data | None]:
        """Wait for the next thing that arrives; None at the end.

        Args:
            closed: What the library says if the connection is closed now.
        """
        for action in self._script or ():
            if isinstance(action, Hold):
                pause = self._hold()
            else:
                pause = self._clock.pause(action.at_s, self._patience_s())
            yield pause
            if pause.timed_out:
                raise self._error("ReadTimeout", "The read operation timed out")
            if isinstance(action, Drop) and action.reset:
                raise self._error("ReadError", _RESET)
            if isinstance(action, Drop) or self._replica.lives != self._lives:
                raise self._error("RemoteProtocolError", closed)
            if isinstance(action, Head | Data):
                self._silent_since_s = self._clock.waited_s()
                return action
        if self._script is not None:
            self._script = None
            self._idle.put(self._replica, self._eras)
        return None

    def _patience_s(self) -> float | None:
        if self._read_limit_s is None:
            return None
        waited_s = self._clock.waited_s() - self._silent_since_s
        return max(0.0, self._read_limit_s - waited_s)

    def _hold(self) -> Pause:
        """Wait for somebody to heal the replica: really, for simulated time may stand still."""
        patience_s = self._patience_s()
        if patience_s is None:
            return Pause(sleep_s=_HOLD_S, timed_out=False)
        if self._clock.time_scale == 0:
            return self._clock.pause(self._clock.now_s() + patience_s + 1, patience_s)
        return Pause(sleep_s=min(_HOLD_S, patience_s), timed_out=patience_s <= _HOLD_S)

    def _error(self, name: str, message: str) -> Exception:
        return library_error(self._request, name, message)
