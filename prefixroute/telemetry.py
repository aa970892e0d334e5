"""``OpenTelemetryObserver``: a router's decisions on your spans, and its counts as metrics.

>>> from prefixroute import Router
>>> from prefixroute.telemetry import OpenTelemetryObserver
>>> router = Router(["http://gpu-0:8000/v1"], observers=[OpenTelemetryObserver()])

It makes no spans: the one that is current when a request is sent (your own, or that of an
instrumentation of the SDK) gets attributes. Nothing holds a prompt or a key.
"""

from __future__ import annotations

import threading
from typing import Final

from prefixroute.core.bounded import BoundedDict
from prefixroute.core.decision import Decision
from prefixroute.core.events import (
    EndpointCooling,
    EndpointEjected,
    EndpointReadmitted,
    Event,
    FirstToken,
    MembershipChanged,
    RequestDone,
    RequestSent,
)
from prefixroute.core.urls import split_url

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.trace import Span
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "OpenTelemetryObserver needs opentelemetry-api: pip install 'prefixroute[otel]'",
        name=error.name,
    ) from error

__all__ = ["OpenTelemetryObserver"]

_MOST_SPANS: Final = 131_072
_PORTS: Final = {"http": 80, "https": 443}
_TTFT_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_REQUEST_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0)
_DECISION_S: Final = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)

_Attributes = dict[str, str | int | float | bool]


class OpenTelemetryObserver:
    """Puts decisions on the current span, and counts. Give each router one of its own.

    Attributes of the span that is current when a request is sent; of several requests in one span,
    and of several tries of one, the last:

    - ``server.address``, ``server.port``: of the endpoint, in place of the router's reserved host
    - ``prefixroute.endpoint``, ``.home`` (ids), ``.reason``, ``.key`` (a digest), ``.depth``,
      ``.spread``, ``.retry``, ``.expected_cached_tokens``
    - ``prefixroute.time_to_first_token``, seconds, of streams
    - ``gen_ai.usage.input_tokens``, ``gen_ai.usage.cache_read.input_tokens``: as replies reported

    A try that the endpoint failed adds an event, ``prefixroute.failed``, with its endpoint. What
    comes after the span has ended is left out.

    Metrics, named ``prefixroute.`` and each with the attribute ``prefixroute.endpoint``:
    ``requests``, ``attempts``, ``failovers``, ``spills`` (also ``prefixroute.reason``),
    ``failures``, ``ejections``, ``readmissions``, ``cooldowns``, ``in_flight``, ``prompt_tokens``,
    ``cached_tokens``, ``expected_cached_tokens``, ``time_to_first_token``, ``request.duration``,
    ``decision.duration`` (without the attribute); they are those of ``PrometheusObserver``.

    Args:
        meter_provider: Where metrics go; ``None``: the global one.
        spans: Whether spans get attributes.
    """

    def __init__(self, meter_provider: MeterProvider | None = None, *, spans: bool = True) -> None:
        self._spans_wanted = spans
        self._lock = threading.Lock()
        self._spans: BoundedDict[int, Span] = BoundedDict(_MOST_SPANS)  # by serial, in flight
        self._meter = metrics.get_meter("prefixroute", meter_provider=meter_provider)
        self._requests = self._counter("requests", "{call}", "Calls, by the first endpoint tried.")
        self._attempts = self._counter("attempts", "{request}", "Tries, first and further ones.")
        self._failovers = self._counter("failovers", "{request}", "Tries after the first.")
        self._spills = self._counter("spills", "{request}", "Requests that left their home.")
        self._failures = self._counter("failures", "{request}", "Requests that it failed.")
        self._ejections = self._counter("ejections", "{ejection}", "Times that it was ejected.")
        self._readmissions = self._counter("readmissions", "{time}", "Times it was taken in again.")
        self._cooldowns = self._counter("cooldowns", "{time}", "Times it wanted to be left alone.")
        self._prompt = self._counter("prompt_tokens", "{token}", "Of replies with a cache report.")
        self._cached = self._counter("cached_tokens", "{token}", "Of these, reported as cached.")
        self._expected = self._counter("expected_cached_tokens", "{token}", "Of these, expected.")
        self._in_flight = self._meter.create_up_down_counter(
            "prefixroute.in_flight", "{request}", "Requests in flight."
        )
        self._ttft = self._histogram("time_to_first_token", "Of streams.", _TTFT_S)
        self._duration = self._histogram("request.duration", "Time of a lease.", _REQUEST_S)
        self._decision = self._histogram("decision.duration", "Reading and choosing.", _DECISION_S)

    def _counter(self, name: str, unit: str, text: str) -> Counter:
        return self._meter.create_counter(f"prefixroute.{name}", unit, text)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        return self._meter.create_histogram(
            f"prefixroute.{name}", "s", text, explicit_bucket_boundaries_advisory=list(bounds)
        )

    def on_event(self, event: Event) -> None:
        """Count an event, and put it on its request's span."""
        match event:
            case RequestSent():
                self._sent(event)
            case FirstToken(endpoint_id=name, ttft_s=ttft_s):
                self._ttft.record(ttft_s, _of(name))
                self._put(event.serial, {"prefixroute.time_to_first_token": ttft_s})
            case RequestDone():
                self._done(event)
            case EndpointEjected(endpoint_id=name):
                self._ejections.add(1, _of(name))
            case EndpointReadmitted(endpoint_id=name):
                self._readmissions.add(1, _of(name))
            case EndpointCooling(endpoint_id=name):
                self._cooldowns.add(1, _of(name))
            case MembershipChanged():
                pass

    def _sent(self, event: RequestSent) -> None:
        decision = event.decision
        labels = _of(decision.endpoint.id)
        self._attempts.add(1, labels)
        (self._failovers if event.retry else self._requests).add(1, labels)
        if decision.reason.is_spill:
            self._spills.add(1, {**labels, "prefixroute.reason": decision.reason.value})
        if event.decision_s is not None:
            self._decision.record(event.decision_s)
        self._in_flight.add(1, labels)
        if not self._spans_wanted:
            return
        current = trace.get_current_span
        span = current() if event.context is None else event.context.run(current)
        if span.is_recording():
            with self._lock:
                self._spans.put(event.serial, span)
            span.set_attributes({**_attributes(decision), "prefixroute.retry": event.retry})

    def _done(self, event: RequestDone) -> None:
        labels = _of(event.endpoint_id)
        self._in_flight.add(-1, labels)
        self._duration.record(event.duration_s, labels)
        if event.failed:
            self._failures.add(1, labels)
        if event.cached_tokens is not None:
            self._prompt.add(max(event.cached_tokens, event.prompt_tokens or 0), labels)
            self._cached.add(event.cached_tokens, labels)
            self._expected.add(event.expected_cached_tokens, labels)
        found: _Attributes = {}
        if event.prompt_tokens is not None:
            found["gen_ai.usage.input_tokens"] = event.prompt_tokens
        if event.cached_tokens is not None:
            found["gen_ai.usage.cache_read.input_tokens"] = event.cached_tokens
        self._put(event.serial, found)
        with self._lock:
            span = self._spans.pop(event.serial)
        if event.failed and span is not None and span.is_recording():
            span.add_event("prefixroute.failed", labels)

    def _put(self, serial: int, found: _Attributes) -> None:
        with self._lock:
            span = self._spans.get(serial)
        if span is not None and span.is_recording():
            span.set_attributes(found)


def _of(endpoint_id: str) -> dict[str, str]:
    return {"prefixroute.endpoint": endpoint_id}


def _attributes(decision: Decision) -> _Attributes:
    parts = split_url(decision.endpoint.url)
    found: _Attributes = {
        "server.address": parts.host,
        "server.port": parts.port or _PORTS[parts.scheme],
        "prefixroute.endpoint": decision.endpoint.id,
        "prefixroute.reason": decision.reason.value,
        "prefixroute.expected_cached_tokens": decision.expected_cached_tokens,
        "prefixroute.spread": decision.spread,
    }
    if decision.home is not None:
        found["prefixroute.home"] = decision.home.id
    if decision.key is not None:
        found["prefixroute.key"] = decision.key
        found["prefixroute.depth"] = decision.depth
    return found
