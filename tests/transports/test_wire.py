"""How an attempt is cut to a limit, phase by phase, and what it was told before."""

from __future__ import annotations

from typing import Any

import pytest

from prefixroute.transports import wire as wire_module
from prefixroute.transports.wire import Cancelled, Limit, Wire


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(wire_module, "time", made)
    return made


OWN: dict[str, float | None] = {"connect": 5.0, "read": 600.0, "write": None, "pool": 1.0}


def test_each_phase_gets_what_is_left(clock: Clock) -> None:
    timeouts = dict(OWN)
    limit = Limit(timeouts, 10.0)
    wire = Wire(None, limit)
    assert timeouts == {"connect": 5.0, "read": 10.0, "write": 10.0, "pool": 1.0}
    clock.now += 4
    wire.trace("connection.connect_tcp.started", {})
    assert timeouts == {"connect": 5.0, "read": 6.0, "write": 6.0, "pool": 1.0}
    clock.now += 3
    wire.trace("connection.connect_tcp.complete", {})
    assert timeouts["read"] == 6.0
    wire.trace("http11.receive_response_headers.started", {})
    assert timeouts == {"connect": 3.0, "read": 3.0, "write": 3.0, "pool": 1.0}
    assert not limit.is_over
    clock.now += 3
    wire.trace("http11.receive_response_headers.started", {})
    assert 0 < (timeouts["read"] or 0) < 0.01, "0 would mean something else to a socket"
    assert limit.is_over


def test_the_body_has_the_callers_own_timeouts(clock: Clock) -> None:
    every: tuple[dict[str, float | None], ...] = (OWN, {}, {"read": 3.0})
    for own in every:
        timeouts = dict(own)
        limit = Limit(timeouts, 1.0)
        assert timeouts != own
        limit.lift()
        assert timeouts == own
        clock.now += 5
        Wire(None, limit).trace("http11.receive_response_body.started", {})
        assert timeouts == own


def test_who_is_cancelled_writes_nothing() -> None:
    told: list[str] = []

    def trace(name: str, info: dict[str, Any]) -> None:
        told.append(name)

    wire = Wire(trace)
    wire.trace("http11.send_request_headers.started", {})
    wire.cancelled = True
    wire.trace("connection.connect_tcp.complete", {})  # raised here, it would leave a socket open
    with pytest.raises(Cancelled):
        wire.trace("http11.send_request_headers.started", {})
    assert told == ["http11.send_request_headers.started", "connection.connect_tcp.complete"]
