"""The matrix: what goes wrong where, and what must come of it, for the caller and the endpoint."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from prefixroute import HealthState
from tests.contract.flavours import Flavour, Library, Mode
from tests.faults.server import Plan, Then
from tests.faults.wire import (
    EVENTS,
    JSON_BODY,
    JSON_POSITIONS,
    STREAM_BODY,
    STREAM_POSITIONS,
    body_before,
    json_reply,
    stream_reply,
)

__all__ = ["CASES", "FLAVOURS", "PLANS", "Case"]

FLAVOURS = [Flavour(library, mode) for library in get_args(Library) for mode in get_args(Mode)]

Blame = Literal["none", "counted", "cooled"]

ERRORS: dict[str, tuple[str, ...]] = {
    "close": ("RemoteProtocolError",),
    "junk": ("RemoteProtocolError",),
    "reset": ("ReadError",),
    "stall": ("ReadTimeout",),
}
"""What the libraries call it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault, and what is expected.

    ``port``: where the request goes first; ``good`` is next.
    ``replay``: with ``Failover(replay_sent=True)``.
    ``sends``: how often the request arrives at the port.
    ``status``: of the response that the caller gets; ``None``: an error instead of one.
    ``elsewhere``: the response is that of ``good``.
    ``body``: what the caller can read, up to an error if ``error`` says so.
    ``error``: the names of the library's errors, one of which is raised; none: no error.
    ``blame``: what the endpoint is left with.
    """

    name: str
    plan: Plan | None = None
    port: str = "faulty"
    streamed: bool = False
    replay: bool = False
    sends: int = 1
    status: int | None = 200
    elsewhere: bool = False
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    error: tuple[str, ...] = ()
    blame: Blame = "none"

    @property
    def state(self) -> HealthState:
        """Of the endpoint, which one counted failure ejects here."""
        states = {"none": HealthState.HEALTHY, "counted": HealthState.EJECTED}
        return states.get(self.blame, HealthState.COOLING)


def whole(*, streamed: bool) -> bytes:
    return STREAM_BODY if streamed else JSON_BODY


def kind(*, streamed: bool) -> str:
    return "stream" if streamed else "json"


def connecting() -> Iterator[Case]:
    """Nothing was sent: somebody else is asked."""
    for streamed in (False, True):
        body = whole(streamed=streamed)
        for port in ("refused", "closing tls", "garbled tls"):
            name = f"{port} {kind(streamed=streamed)}"
            yield Case(
                name=name, port=port, streamed=streamed, sends=0, elsewhere=True, body=body,
                blame="counted",
            )  # fmt: skip


def broken() -> Iterator[Case]:
    """A reply that breaks off: before its headers nothing comes of it, later its first part."""
    for streamed, positions in ((False, JSON_POSITIONS), (True, STREAM_POSITIONS)):
        reply = stream_reply() if streamed else json_reply()
        for position, at in positions.items():
            got = body_before(streamed=streamed, position=position)
            thens: list[Then] = ["close", "reset", "stall"]
            if got is None or (streamed and position != "inside an event"):
                thens.append("junk")  # elsewhere it would be part of the body
            for then in thens:
                yield Case(
                    name=f"{then} at {position} {kind(streamed=streamed)}",
                    plan=Plan(reply[:at], then),
                    streamed=streamed,
                    status=None if got is None else 200,
                    body=got or b"",
                    error=ERRORS[then],
                    blame="counted",
                )


def replayed() -> Iterator[Case]:
    """What may have been sent is sent elsewhere, if that is allowed."""
    for position in ("nothing", "headers"):
        for then in ("close", "reset", "junk"):
            yield Case(
                name=f"{then} at {position} replayed",
                plan=Plan(json_reply()[: JSON_POSITIONS[position]], then),
                replay=True,
                elsewhere=True,
                body=JSON_BODY,
                blame="counted",
            )


def lengths() -> Iterator[Case]:
    """A Content-Length that is wrong."""
    long, short = str(len(JSON_BODY) + 7), str(len(JSON_BODY) - 7)
    yield Case(
        name="length too long",
        plan=Plan(json_reply(content_length=long), "close"),
        body=JSON_BODY,
        error=ERRORS["close"],
        blame="counted",
    )
    yield Case(
        name="length too short", plan=Plan(json_reply(content_length=short)), body=JSON_BODY[:-7]
    )


def statuses() -> Iterator[Case]:
    """A refusal goes elsewhere; what the caller did wrong, and 500, is returned."""
    asked: dict[str, dict[str, str]] = {"": {}, " asked": {"retry_after": "7"}}
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 500, 501, 502, 503, 504):
        for suffix, headers in asked.items():
            elsewhere = status in (429, 502, 503, 504)
            counts = status >= 500 and status != 501  # which says that it does not serve this
            blame: Blame = "counted" if counts else "none"
            body = b'{"error":{"message":"no"}}'
            yield Case(
                name=f"{status}{suffix}",
                plan=Plan(json_reply(status, body, **headers)),
                status=200 if elsewhere else status,
                elsewhere=elsewhere,
                body=JSON_BODY if elsewhere else body,
                headers={} if elsewhere else {"retry-after": "7"} if headers else {},
                blame="cooled" if status in (429, 503) else blame,
            )


def resets() -> Iterator[Case]:
    """Other words for Retry-After."""
    for name, value in (
        ("x_ratelimit_reset_requests", "20s"),
        ("x_ratelimit_reset_tokens", "6m0s"),
        ("anthropic_ratelimit_tokens_reset", "2999-01-01T00:00:00Z"),
        ("ratelimit_reset", "30"),
        ("retry_after_ms", "5000"),
    ):
        plan = Plan(json_reply(429, b"{}", **{name: value}))
        yield Case(name=f"429 {name}", plan=plan, elsewhere=True, body=JSON_BODY, blame="cooled")


def broken_refusals() -> Iterator[Case]:
    """A refusal whose body breaks off is a refusal."""
    reply = json_reply(503, b"x" * 100)
    for then in ("close", "reset", "junk", "stall"):
        yield Case(
            name=f"503 and {then} in its body",
            plan=Plan(reply[:-50], then),
            elsewhere=True,
            body=JSON_BODY,
            blame="cooled",
        )


def garbled() -> Iterator[Case]:
    """A body that is not in the encoding that it claims: decoding it fails."""
    packed = gzip.compress(JSON_BODY * 9)
    for name, body in {"not gzip": b"what is this", "then not": packed[:40] + b"?" * 40}.items():
        for streamed in (False, True):
            headers = {"content_encoding": "gzip"}
            reply = json_reply(200, body, **headers)
            if streamed:
                reply = reply.replace(b"application/json", b"text/event-stream")
            yield Case(
                name=f"gzip, {name}, {kind(streamed=streamed)}",
                plan=Plan(reply),
                streamed=streamed,
                body=body,
                blame="counted",
            )


def well() -> Iterator[Case]:
    """Odd, but nothing is wrong."""
    for streamed in (False, True):
        body, words = whole(streamed=streamed), kind(streamed=streamed)
        yield Case(name=f"fine {words}", plan=Plan(), streamed=streamed, body=body)
        trickle = Plan(then="trickle")
        yield Case(name=f"slow trickle {words}", plan=trickle, streamed=streamed, body=body)
        yield Case(
            name=f"closed after {words}", plan=Plan(then="close"), streamed=streamed, body=body
        )
    body = STREAM_BODY + b": bye\n\n"
    yield Case(
        name="a tail after [DONE]",
        plan=Plan(stream_reply(*EVENTS, b": bye\n\n")),
        streamed=True,
        body=body,
    )


def errors_in_streams() -> Iterator[Case]:
    """200, and then an error: passed on as it is."""
    error = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    refused = b'data: {"error":{"message":"too long","code":400}}\n\n'
    full = b'data: {"error":{"message":"busy","code":429}}\n\n'
    parts: dict[str, tuple[tuple[bytes, ...], Blame]] = {
        "first": ((error,), "counted"),
        "after the role": ((EVENTS[0], error, EVENTS[-1]), "counted"),
        "among tokens": ((*EVENTS[:2], error, EVENTS[-1]), "counted"),
        "of the caller": ((refused,), "none"),
        "of load": ((full,), "cooled"),
    }
    for name, (events, blame) in parts.items():
        yield Case(
            name=f"an error in a stream, {name}",
            plan=Plan(stream_reply(*events)),
            streamed=True,
            body=b"".join(events),
            blame=blame,
        )


CASES: list[Case] = [
    *connecting(),
    *broken(),
    *replayed(),
    *lengths(),
    *statuses(),
    *resets(),
    *broken_refusals(),
    *garbled(),
    *well(),
    *errors_in_streams(),
]

PLANS: dict[str, Plan] = {case.name: case.plan for case in CASES if case.plan is not None}
