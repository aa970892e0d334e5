"""``PrometheusObserver``: a router's events as Prometheus metrics.

The only label beside ``reason`` is ``endpoint``, an endpoint's id; the series of an endpoint that
leaves are dropped with it. Nothing holds a prompt or a key.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from prefixroute.core.decision import Decision, Reason
from prefixroute.core.events import (
    EndpointCooling,
    EndpointEjected,
    EndpointPrimed,
    EndpointReadmitted,
    Event,
    FirstToken,
    GroupReply,
    MembershipChanged,
    RequestDone,
    RequestSent,
    ShadowPlaced,
)
from prefixroute.errors import ConfigurationError

__all__ = ["PrometheusObserver"]

_M = TypeVar("_M", Counter, Gauge, Histogram)

_TTFT_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_REQUEST_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0)
_DECISION_S: Final = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)


class PrometheusObserver:
    """Counts what a router does. Give each router one of its own.

    Metrics, each with the label ``endpoint`` unless said otherwise:

    - ``prefixroute_requests_total``: calls, by the endpoint that was tried first
    - ``prefixroute_attempts_total``: all tries; ``prefixroute_failovers_total``: those after the
      first of a call
    - ``prefixroute_spills_total`` (also ``reason``): requests that did not go to their home
    - ``prefixroute_failures_total``, ``prefixroute_ejections_total``,
      ``prefixroute_readmissions_total``, ``prefixroute_cooldowns_total``,
      ``prefixroute_primed_total``: prefixes
    - ``prefixroute_ejected``: 1 while it is; ``prefixroute_in_flight``
    - ``prefixroute_prompt_tokens_total``, ``prefixroute_cached_tokens_total``,
      ``prefixroute_expected_cached_tokens_total``: of replies that report their cached tokens
    - ``prefixroute_hit_rate``: cached over prompt tokens, since the start; for a window divide the
      rates of the two counters
    - ``prefixroute_ttft_seconds``, ``prefixroute_request_seconds``: of streamed replies, of all
    - ``prefixroute_decision_seconds`` (no label): reading the request and choosing
    - with ``Router(holdout=)``, each with the label ``group``, ``routed`` or ``held_out``:
      ``prefixroute_group_replies_total``, ``prefixroute_group_prompt_tokens_total``,
      ``prefixroute_group_cached_tokens_total``, ``prefixroute_group_ttft_seconds``
    - with ``Router(shadow=)``: ``prefixroute_shadow_requests_total``,
      ``prefixroute_shadow_moved_total``, ``prefixroute_shadow_tokens_total``, and
      ``prefixroute_shadow_expected_cached_tokens_total`` with the label ``placement``, ``given`` or
      ``shadow``

    Args:
        registry: Where they are registered; ``None``: prometheus_client's own.
        namespace: First part of the names.

    Raises:
        ConfigurationError: The registry has metrics of these names: another router's observer has
            the same registry and namespace.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, namespace: str = "prefixroute"
    ) -> None:
        self._registry = registry if registry is not None else REGISTRY
        self._namespace = namespace
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}  # requests in flight, by endpoint
        self._tokens: dict[str, tuple[int, int]] = {}  # prompt and cached, by endpoint
        self._leaving: set[str] = set()  # gone, with requests in flight
        self._by_endpoint: list[Counter | Gauge | Histogram] = []
        try:
            self._register()
        except ValueError as error:
            raise ConfigurationError(
                f"PrometheusObserver(namespace={namespace!r}): {error}; give each router's "
                "observer a registry or a namespace of its own"
            ) from None

    def _register(self) -> None:
        counter, gauge = self._counter, self._gauge
        self._requests = counter("requests", "Calls, by the endpoint that was tried first.")
        self._attempts = counter("attempts", "Tries, first and further ones.")
        self._failovers = counter("failovers", "Tries after the first of a call.")
        self._spills = Counter(
            "spills",
            "Requests that did not go to their home.",
            ("endpoint", "reason"),
            **self._common(),
        )
        self._failures = counter("failures", "Requests that the endpoint failed.")
        self._ejections = counter("ejections", "Times that it was ejected.")
        self._readmissions = counter("readmissions", "Times that it was taken in again.")
        self._cooldowns = counter("cooldowns", "Times that it asked to be left alone.")
        self._primed = counter("primed", "Prefixes that it was sent when it joined.")
        self._prompt = counter("prompt_tokens", "Prompt tokens of replies with a cache report.")
        self._cached = counter("cached_tokens", "Of these, reported as cached.")
        self._expected = counter("expected_cached_tokens", "Of these, expected to be cached.")
        self._ejected = gauge("ejected", "1 while it is ejected.")
        self._in_flight = gauge("in_flight", "Requests in flight.")
        self._hit_rate = gauge("hit_rate", "Cached over prompt tokens, since the start.")
        self._ttft = self._histogram("ttft_seconds", "Time to first token, streams.", _TTFT_S)
        self._duration = self._histogram("request_seconds", "Time of a lease.", _REQUEST_S)
        self._decision = Histogram(
            "decision_seconds",
            "Reading a request and choosing its endpoint.",
            namespace=self._namespace,
            registry=self._registry,
            buckets=_DECISION_S,
        )
        self._rare = (
            self._failovers, self._failures, self._ejections, self._readmissions, self._cooldowns,
            self._ejected,
        )  # fmt: skip
        self._trials: _Trials | None = None

    def _counter(self, name: str, text: str) -> Counter:
        return self._kept(Counter(name, text, ("endpoint",), **self._common()))

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._kept(Gauge(name, text, ("endpoint",), **self._common()))

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(name, text, ("endpoint",), buckets=buckets, **self._common())
        return self._kept(made)

    def _common(self) -> dict[str, Any]:
        return {"namespace": self._namespace, "registry": self._registry}

    def _kept(self, metric: _M) -> _M:
        self._by_endpoint.append(metric)
        return metric

    def on_event(self, event: Event) -> None:
        """Count an event."""
        with self._lock:  # joining, leaving and ending must not interleave
            match event:
                case RequestSent(decision=decision):
                    self._sent(event, decision)
                case RequestDone(endpoint_id=name):
                    self._done(event, name)
                case MembershipChanged(joined=joined, left=left):
                    self._leaving.difference_update(joined)
                    for name in left:
                        self._drop(name)
                case GroupReply() | ShadowPlaced():
                    if self._trials is None:
                        self._trials = _Trials(self._common())
                    self._trials.told(event)
                case _ if event.endpoint_id not in self._leaving:
                    self._told(event, event.endpoint_id)

    def _told(
        self,
        event: FirstToken | EndpointEjected | EndpointReadmitted | EndpointCooling | EndpointPrimed,
        name: str,
    ) -> None:
        match event:
            case FirstToken(ttft_s=ttft_s):
                self._ttft.labels(name).observe(ttft_s)
            case EndpointEjected():
                self._ejections.labels(name).inc()
                self._ejected.labels(name).set(1)
            case EndpointReadmitted():
                self._readmissions.labels(name).inc()
                self._ejected.labels(name).set(0)
            case EndpointCooling():
                self._cooldowns.labels(name).inc()
            case EndpointPrimed(prefixes=prefixes):
                self._primed.labels(name).inc(prefixes)

    def _sent(self, event: RequestSent, decision: Decision) -> None:
        name = decision.endpoint.id
        self._attempts.labels(name).inc()
        (self._failovers if event.retry else self._requests).labels(name).inc()
        if decision.reason.is_spill:
            self._spills.labels(name, decision.reason.value).inc()
        if event.decision_s is not None:
            self._decision.observe(event.decision_s)
        self._count(name, 1)

    def _count(self, name: str, change: int) -> None:
        if name not in self._held and name not in self._leaving:
            for rare in self._rare:
                rare.labels(name)  # from 0 on: the rate of a series misses what it begins with
        held = max(0, self._held.get(name, 0) + change)  # a fork's child drops its parent's
        self._held[name] = held
        if name not in self._leaving:
            self._in_flight.labels(name).set(held)
        elif not held:
            self._held.pop(name)
            self._leaving.discard(name)

    def _done(self, event: RequestDone, name: str) -> None:
        left = name in self._leaving
        self._count(name, -1)
        if left:
            return
        self._duration.labels(name).observe(event.duration_s)
        if event.failed:
            self._failures.labels(name).inc()
        if event.cached_tokens is None:
            return
        cached = event.cached_tokens
        tokens = max(cached, event.prompt_tokens or 0)
        prompt_before, cached_before = self._tokens.get(name, (0, 0))
        self._tokens[name] = total, found = prompt_before + tokens, cached_before + cached
        self._prompt.labels(name).inc(tokens)
        self._cached.labels(name).inc(cached)
        self._expected.labels(name).inc(event.expected_cached_tokens)
        self._hit_rate.labels(name).set(found / total if total else 0.0)

    def _drop(self, name: str) -> None:
        """Forget an endpoint; what it still has in flight must not bring its series back."""
        self._tokens.pop(name, None)
        if self._held.get(name):
            self._leaving.add(name)
        else:
            self._held.pop(name, None)
        for metric in self._by_endpoint:
            _remove(metric, name)
        for reason in Reason:
            _remove(self._spills, name, reason.value)


class _Trials:
    """The series of a holdout and of a shadow; there are none before one of these has told."""

    def __init__(self, common: dict[str, Any]) -> None:
        def by_group(name: str, text: str) -> Counter:
            return Counter(f"group_{name}", text, ("group",), **common)

        self._replies = by_group("replies", "Leases of a holdout's group that ended.")
        self._prompt = by_group("prompt_tokens", "Prompt tokens of replies with a cache report.")
        self._cached = by_group("cached_tokens", "Of these, reported as cached.")
        self._ttft = Histogram(
            "group_ttft_seconds",
            "Time to first token, streams.",
            ("group",),
            buckets=_TTFT_S,
            **common,
        )
        self._placed = Counter("shadow_requests", "Requests that the shadow placed.", **common)
        self._moved = Counter("shadow_moved", "Of these, to another endpoint.", **common)
        self._tokens = Counter("shadow_tokens", "Their size.", **common)
        self._expected = Counter(
            "shadow_expected_cached_tokens",
            "Of these, expected to be cached where they go, and would have gone.",
            ("placement",),
            **common,
        )

    def told(self, event: GroupReply | ShadowPlaced) -> None:
        """Count an event."""
        match event:
            case GroupReply(held_out=held_out, cached_tokens=cached, ttft_s=ttft_s):
                group = "held_out" if held_out else "routed"
                self._replies.labels(group).inc()
                if cached is not None and not event.failed:
                    self._prompt.labels(group).inc(max(cached, event.prompt_tokens or 0))
                    self._cached.labels(group).inc(cached)
                if ttft_s is not None and not event.failed:
                    self._ttft.labels(group).observe(ttft_s)
            case ShadowPlaced():
                self._placed.inc()
                self._moved.inc(event.moved)
                self._tokens.inc(event.tokens)
                self._expected.labels("given").inc(event.given_cached_tokens)
                self._expected.labels("shadow").inc(event.shadow_cached_tokens)


def _remove(metric: Counter | Gauge | Histogram, *labels: str) -> None:
    with suppress(KeyError):  # there is no such series
        metric.remove(*labels)
