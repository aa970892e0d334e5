"""One connection to a served replica: HTTP/1.1 by h11, byte for byte under the script's control."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

import h11

from prefixroute.testing.clock import Clock
from prefixroute.testing.replica import Replica
from prefixroute.testing.wire import Action, Data, Drop, Head, Hold, ReceivedRequest, Script

__all__ = ["Connection"]

_HOLD_S = 0.01
_BATCH = 256
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Connection(asyncio.Protocol):
    """Reads requests, and does what the replica's scripts say, when they say it.

    It runs in callbacks, without a task: a script's next step is a timer. Steps that are due
    together go out in one write.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        clock: Clock,
        keep_alive_s: float | None,
        connections: set[Connection],
    ) -> None:
        """Wait for a connection.

        Args:
            replica: Who answers.
            clock: Tells the simulated time.
            keep_alive_s: See `FakeCluster.serve`.
            connections: Holds this one while it is open.
        """
        self._lives = replica.lives
        self._eras = replica.eras
        self._replica = replica
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._connections = connections
        self._http = h11.Connection(h11.SERVER)
        self._request: h11.Request
        self._body: list[bytes] = []
        self._script: Script | None = None
        self._due: Action | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_chunked = False
        self._requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to read."""
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._connections.add(self)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel what is running: the client has gone."""
        self._connections.discard(self)
        self._stop_timer()
        if self._script is not None:
            self._script.close()
            self._script = None

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        self._http.receive_data(data)
        self._read()

    def pause_writing(self) -> None:
        """Stop: the client doesn't read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self._is_paused = False
        if self._timer is None:
            self._pump()

    def tidy(self) -> None:
        """Break off if the replica has died since; close if it has closed what is idle.

        A connection that is answering a request is closed after it.
        """
        if self._lives != self._replica.lives:
            self.abort()
        elif self._eras != self._replica.eras and self._script is None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _read(self) -> None:
        try:
            while self._script is None and not self._transport.is_closing():
                match event := self._http.next_event():
                    case h11.Request():
                        self._request = event
                        self._body = []
                        self._stop_timer()
                        self._continue()
                    case h11.Data():
                        self._body.append(bytes(event.data))
                    case h11.EndOfMessage():
                        self._begin()
                    case _:
                        return
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            self._transport.write(b"HTTP/1.1 %d \r\nconnection: close\r\n\r\n" % status)
            self._transport.close()

    def _continue(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._transport.write(_sent(self._http, go_on))

    def _begin(self) -> None:
        request, replica = self._request, self._replica
        received = ReceivedRequest(
            replica=replica.index,
            method=request.method.decode("ascii"),
            target=request.target.decode("latin-1"),
            headers=tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in request.headers.raw_items()
            ),
            body=b"".join(self._body),
            at_s=self._clock.now_s(),
            reused_connection=self._requests > 0,
        )
        self._requests += 1
        fault = replica.take_fault(
            method=received.method,
            path=received.path,
            reused_connection=received.reused_connection,
        )
        self._script = replica.script(received, fault)
        self._pump()

    def _pump(self) -> None:
        """Do the steps that are due, and see to it that the next one is done in time."""
        self._timer = None
        if self._script is None or self._is_paused:
            return
        written: list[bytes] = []
        try:
            last = self._steps(self._script, written)
        except Exception:
            self._transport.abort()
            raise
        if written:
            self._transport.write(b"".join(written))
        match last:
            case None:
                self._finish()
            case Drop():
                self._drop(last)
            case Hold():
                self._timer = self._loop.call_later(_HOLD_S, self._pump)
            case _:
                self._due = last
                delay_s = self._clock.pause(last.at_s).sleep_s
                self._timer = self._loop.call_later(delay_s, self._pump)

    def _steps(self, script: Script, written: list[bytes]) -> Action | None:
        """Do a batch of steps that are due.

        Args:
            script: Gives the steps, after the one left over from the last time.
            written: Takes what is to be sent.

        Returns:
            The step that is not done yet, or None at the end.
        """
        while True:
            action = self._due or next(script, None)
            self._due = None
            match action:
                case None:
                    written.append(_sent(self._http, h11.EndOfMessage()))
                    return None
                case Hold():
                    return action
            if len(written) >= _BATCH or self._clock.pause(action.at_s).sleep_s > 0:
                return action
            match action:
                case Head():
                    is_modern = self._http.their_http_version != b"1.0"
                    self._is_chunked = is_modern and not action.has_length
                    written.append(_sent(self._http, _response(action)))
                case Data(data=data) if self._is_chunked:
                    # What h11 would send, in a third of the time.
                    written.append(b"%x\r\n%b\r\n" % (len(data), data))
                case Data(data=data):
                    written.append(_sent(self._http, h11.Data(data=data)))
                case Drop():
                    return action

    def _finish(self) -> None:
        self._script = None
        must_close = self._http.our_state is h11.MUST_CLOSE
        if must_close or self._eras != self._replica.eras or self._transport.is_closing():
            self._transport.close()
            return
        self._http.start_next_cycle()
        self._await_request()
        if self._http.trailing_data[0]:
            self._loop.call_soon(self._read)

    def _drop(self, drop: Drop) -> None:
        if not drop.reset or self._transport.is_closing():
            self._transport.close()
        elif self._transport.get_write_buffer_size():
            # A reset throws away what is still to be sent; so does abort().
            self._loop.call_later(_HOLD_S, self._drop, drop)
        else:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def _await_request(self) -> None:
        if self._keep_alive_s is not None:
            self._timer = self._loop.call_later(self._keep_alive_s, self._transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _sent(http: h11.Connection, event: h11.Event) -> bytes:
    return http.send(event) or b""


def _response(head: Head) -> h11.Response:
    return h11.Response(status_code=head.status, headers=list(head.headers))
