"""Observers, events, and what turns them into figures."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from prefixroute import Event, Observer, Router
from prefixroute.core.events import EndpointEjected, FirstToken, RequestSent
from prefixroute.metrics import PrometheusObserver
from prefixroute.telemetry import OpenTelemetryObserver


class Mine:
    """An application's own; it inherits from nothing."""

    def on_event(self, event: Event) -> None:
        """Tell events apart."""
        match event:
            case FirstToken(endpoint_id=name, ttft_s=ttft_s):
                assert_type(name, str)
                assert_type(ttft_s, float)
            case RequestSent(decision=decision):
                assert_type(decision.endpoint.id, str)
            case EndpointEjected():
                assert_type(event.for_s, float)
            case _:
                pass


class Silent:
    """Lacks the method."""


class Narrow:
    """Takes too little."""

    def on_event(self, event: FirstToken) -> None:
        """Hear of first tokens alone."""


def watched() -> None:
    """All of these are observers."""
    every: list[Observer] = [Mine(), PrometheusObserver(), OpenTelemetryObserver()]
    Router(["http://gpu-0"], observers=every)
    Router(["http://gpu-0"], observers=(Mine(),))


def wrong() -> None:
    """These are not."""
    Router(["http://gpu-0"], observers=[Silent()])  # type: ignore[list-item]
    Router(["http://gpu-0"], observers=[Narrow()])  # type: ignore[list-item]
    Router(["http://gpu-0"], observers=Mine())  # type: ignore[arg-type]
