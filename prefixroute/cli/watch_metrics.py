"""Watches an application's Prometheus metrics: rates are made of what two scrapes say."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import httpx

from prefixroute.cli.watch_scrape import (
    EVERYBODY,
    Scrape,
    Series,
    counted_between,
    quantile,
    read_scrape,
)
from prefixroute.cli.watch_view import EndpointView, SourceLost, View
from prefixroute.core.hottest import HotPrefix
from prefixroute.core.urls import shown_url
from prefixroute.errors import ConfigurationError

__all__ = ["MetricsSource", "view_of"]

_TIMEOUT_S: Final = 5.0
_LARGEST: Final = 32 * 1024 * 1024
_OK: Final = 200
_ASKED: Final = {"accept": "text/plain;version=0.0.4"}
_NO_OBSERVER: Final = (
    "there are no {namespace}_ series: the application needs PrometheusObserver (--namespace names "
    "another)"
)
_NO_COUNTS: Final = "requests, hit rates and times are not told: PrometheusObserver tells them"
_NO_STATE: Final = (
    "health but for ejections, engines' queues, calls that wait and endpoints without requests are "
    "not told: RouterMetrics(router) tells them"
)
_NO_PREFIXES: Final = "the hottest prefixes are not told: RouterMetrics(router, hot_prefixes=8)"
_NO_CACHED: Final = "no reply has told its cached tokens: prefixroute check names what turns it on"
_NO_STREAMS: Final = "TTFT is not known: there was no stream"


class MetricsSource:
    """An application's metrics endpoint.

    Args:
        url: Of its metrics; a bare host means ``/metrics``.
        namespace: First part of the metrics' names.
        window_s: Rates are of as much time, if it has been watched for so long, seconds.
        clock: Returns monotonic seconds.

    Raises:
        ConfigurationError: It is no URL.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        window_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if not parsed.host:
            rule = "a URL such as http://127.0.0.1:9100/metrics"
            raise ConfigurationError(f"{shown_url(url)!r} must be {rule}")
        self._url = parsed.copy_with(path="/metrics") if parsed.path == "/" else parsed
        self.shown = shown_url(str(self._url))
        self._namespace, self._window_s, self._clock = namespace, window_s, clock
        self._scrapes: deque[Scrape] = deque()
        self._client = httpx.Client(timeout=_TIMEOUT_S, headers=_ASKED)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def read(self) -> View:
        """Scrape, and compare with the scrape that is a window old."""
        at_s = self._clock()
        latest = read_scrape(self._text(), self._namespace, at_s)
        scrapes = self._scrapes
        while len(scrapes) > 1 and at_s - scrapes[1].at_s >= self._window_s:
            scrapes.popleft()
        before = scrapes[0] if scrapes else None
        scrapes.append(latest)
        return view_of(before, latest, self._namespace)

    def _text(self) -> str:
        try:
            with self._client.stream("GET", self._url) as reply:
                return _body(reply)
        except httpx.HTTPError as error:
            raise SourceLost(f"{type(error).__name__}: {error}".removesuffix(": ")) from None


def _body(reply: httpx.Response) -> str:
    if reply.status_code != _OK:
        raise SourceLost(f"it answers {reply.status_code}")
    body = bytearray()
    for piece in reply.iter_bytes():
        body += piece
        if len(body) > _LARGEST:
            raise SourceLost(f"it answers more than {_LARGEST >> 20} MiB")
    return body.decode("utf-8", "replace")


def view_of(before: Scrape | None, now: Scrape, namespace: str) -> View:
    """Return the view that two scrapes make.

    Args:
        before: ``None``: what was counted since the application's start is shown, without rates.
        now: The later one.
        namespace: For notes.
    """
    window_s = None if before is None else now.at_s - before.at_s
    earlier = before.counts if before is not None else {}
    counted = {
        name: counted_between(earlier.get(name, {}), series) for name, series in now.counts.items()
    }
    names = sorted((now.counts.keys() | now.gauges.keys()) - {EVERYBODY})
    general, ours = now.gauges.get(EVERYBODY, {}), counted.get(EVERYBODY, {})
    total = _sum(counted.get(name, {}) for name in names)
    observed = _is_observed(now)
    peers = general.get(("fleet_peers", ""))

    def endpoint(name: str, health: str | None, of: Sequence[str], lately: Series) -> EndpointView:
        return EndpointView(
            id=name,
            health=health,
            **_at_present([now.gauges.get(one, {}) for one in of], observed=observed),
            **(_lately(lately, window_s) if observed else {}),
            ejections=_ejections([now.counts.get(one, {}) for one in of]) if observed else None,
        )

    return View(
        endpoints=[
            endpoint(name, _health(now.gauges.get(name, {})), [name], counted.get(name, {}))
            for name in names
        ],
        total=endpoint(EVERYBODY, None, names, total),
        window_s=window_s,
        routers=None if peers is None else round(peers) + 1,
        waiting_calls=_whole(general.get(("waiting", ""))),
        failovers=round(_of(total, "failovers_total")) if observed else None,
        decision_p99_s=quantile(0.99, _buckets(ours, "decision_seconds_bucket")),
        hottest=_hottest(general),
        notes=list(_notes(now, namespace)),
    )


def _is_observed(now: Scrape) -> bool:
    """Return whether there is a PrometheusObserver: it has this series from the start."""
    return any(name == "decision_seconds_bucket" for name, _ in now.counts.get(EVERYBODY, {}))


def _at_present(gauges: Sequence[Series], *, observed: bool) -> dict[str, Any]:
    """Return what gauges say, as fields of :class:`EndpointView`."""
    held = _gauge(gauges, "in_flight")  # no series: there has been no request
    return {
        "in_flight": _whole(0.0 if held is None and observed else held),
        "waiting": _whole(_gauge(gauges, "engine_waiting")),
        "queued_tokens": _whole(_gauge(gauges, "queued_tokens")),
    }


def _lately(counted: Series, window_s: float | None) -> dict[str, Any]:
    """Return what was counted in a window, as fields of :class:`EndpointView`."""
    prompt, attempts = _of(counted, "prompt_tokens_total"), _of(counted, "attempts_total")
    ttft = _buckets(counted, "ttft_seconds_bucket")
    return {
        "requests_per_s": attempts / window_s if window_s else None,
        "hit_rate": _of(counted, "cached_tokens_total") / prompt if prompt else None,
        "expected_hit_rate": (
            _of(counted, "expected_cached_tokens_total") / prompt if prompt else None
        ),
        "ttft_p50_s": quantile(0.5, ttft),
        "ttft_p95_s": quantile(0.95, ttft),
        "spills": {
            reason: round(count)
            for (name, reason), count in sorted(counted.items())
            if name == "spills_total" and count
        },
        "failures": round(_of(counted, "failures_total")),
    }


def _ejections(counts: Iterable[Series]) -> int:
    return round(sum(_of(series, "ejections_total") for series in counts))


def _health(gauges: Series) -> str | None:
    for (name, state), value in gauges.items():
        if name == "state" and value:
            return state
    return "ejected" if gauges.get(("ejected", "")) else None


def _gauge(gauges: Iterable[Series], name: str) -> float | None:
    values = [series[name, ""] for series in gauges if (name, "") in series]
    return sum(values) if values else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _of(series: Series, name: str) -> float:
    return series.get((name, ""), 0.0)


def _sum(series: Iterable[Series]) -> Series:
    total: dict[tuple[str, str], float] = {}
    for one in series:
        for key, value in one.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _buckets(series: Series, name: str) -> dict[float, float]:
    return {float(le): count for (one, le), count in series.items() if one == name}


def _hottest(gauges: Series) -> list[HotPrefix] | None:
    found = [
        HotPrefix(
            digest=prefix,
            requests=count,
            share=gauges.get(("hot_prefix_share", prefix), 0.0),
            endpoints=round(gauges.get(("hot_prefix_endpoints", prefix), 1.0)),
            tokens=_whole(gauges.get(("hot_prefix_tokens", prefix))),
        )
        for (name, prefix), count in gauges.items()
        if name == "hot_prefix_requests"
    ]
    return sorted(found, key=lambda one: -one.requests) or None


def _notes(now: Scrape, namespace: str) -> Iterable[str]:
    if not now.counts and not now.gauges:
        yield _NO_OBSERVER.format(namespace=namespace)
        return
    general, total = now.gauges.get(EVERYBODY, {}), _sum(now.counts.values())
    if not _is_observed(now):
        yield _NO_COUNTS
    if ("waiting", "") not in general:
        yield _NO_STATE
    if _hottest(general) is None:
        yield _NO_PREFIXES
    if _of(total, "attempts_total"):
        if not _of(total, "prompt_tokens_total"):
            yield _NO_CACHED
        if not _buckets(total, "ttft_seconds_bucket"):
            yield _NO_STREAMS
