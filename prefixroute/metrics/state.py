"""``RouterMetrics``: how a router stands, as Prometheus metrics made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from prefixroute.core.checks import check_int
from prefixroute.core.health import HealthState
from prefixroute.core.hottest import hottest
from prefixroute.core.stats import EndpointStats, Stats
from prefixroute.core.traffic import Hot
from prefixroute.errors import ConfigurationError

__all__ = ["RouterMetrics"]

_LOOKED_AT: Final = 32
"""Prefixes looked at for each that is shown: the blocks of one prompt are as hot as each other."""


class _Router(Protocol):
    """What is asked of a router."""

    def stats(self) -> Stats: ...
    def hot(self, limit: int) -> Hot: ...


class RouterMetrics(Collector):
    """Shows how a router stands, asked when the registry is read. Give each router one of its own.

    - ``prefixroute_state`` (``endpoint``, ``state``): 1 for the state that the endpoint is in, 0
      for the others: healthy, cooling, ejected, probing, draining
    - ``prefixroute_queued_tokens`` (``endpoint``): sent there by this router and not computed yet
    - ``prefixroute_engine_running``, ``prefixroute_engine_waiting`` (``endpoint``): requests, as
      the engine last reported; no series where it has not, or too long ago
    - ``prefixroute_waiting`` (no label): calls that wait here for an endpoint to have room
    - with ``hot_prefixes``, each with the label ``prefix``, 16 hexadecimal digits:
      ``prefixroute_hot_prefix_requests``, ``prefixroute_hot_prefix_share``,
      ``prefixroute_hot_prefix_endpoints``, ``prefixroute_hot_prefix_tokens``, the last where its
      size is known

    Endpoints that have had no request yet have series too.

    Args:
        router: The router.
        registry: Where they are registered; ``None``: prometheus_client's own.
        namespace: First part of the names.
        hot_prefixes: How many are shown, the hottest first; 0: none. There are never more series
            at once, but a server keeps those of each prefix that was ever among them.

    Raises:
        ConfigurationError: The registry has metrics of these names already.
    """

    def __init__(
        self,
        router: _Router,
        registry: CollectorRegistry | None = None,
        *,
        namespace: str = "prefixroute",
        hot_prefixes: int = 0,
    ) -> None:
        check_int("RouterMetrics", "hot_prefixes", hot_prefixes, 0)
        self._router, self._namespace, self._hot_prefixes = router, namespace, hot_prefixes
        try:
            (registry if registry is not None else REGISTRY).register(self)
        except ValueError as error:
            raise ConfigurationError(
                f"RouterMetrics(namespace={namespace!r}): {error}; give each router a registry or "
                "a namespace of its own"
            ) from None

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the metrics without their values."""
        yield from self._of_endpoints(())
        yield self._gauge("waiting", "Calls that wait for room.", value=0)
        yield from self._of_prefixes(Hot())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the metrics as they are now."""
        stats = self._router.stats()
        yield from self._of_endpoints(stats.endpoints)
        yield self._gauge("waiting", "Calls that wait for room.", value=stats.waiting)
        if self._hot_prefixes:
            yield from self._of_prefixes(self._router.hot(self._hot_prefixes * _LOOKED_AT))

    def _gauge(
        self, name: str, text: str, *labels: str, value: float | None = None
    ) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{self._namespace}_{name}", text, value, labels=labels or None)

    def _of_endpoints(self, endpoints: Iterable[EndpointStats]) -> Iterator[GaugeMetricFamily]:
        state = self._gauge("state", "1: the endpoint is in this state.", "endpoint", "state")
        queued = self._gauge("queued_tokens", "Sent there and not computed yet.", "endpoint")
        running = self._gauge("engine_running", "Requests, as the engine says.", "endpoint")
        waiting = self._gauge("engine_waiting", "Requests in its queue.", "endpoint")
        for one in endpoints:
            for each in HealthState:
                state.add_metric([one.id, each.value], float(one.state is each))
            queued.add_metric([one.id], one.work)
            if one.load is not None:
                running.add_metric([one.id], one.load.running)
                waiting.add_metric([one.id], one.load.waiting)
        yield from (state, queued, running, waiting)

    def _of_prefixes(self, hot: Hot) -> Iterator[GaugeMetricFamily]:
        name = "hot_prefix"
        requests = self._gauge(f"{name}_requests", "Decayed requests that start so.", "prefix")
        share = self._gauge(f"{name}_share", "Of all requests.", "prefix")
        endpoints = self._gauge(f"{name}_endpoints", "Endpoints it was given.", "prefix")
        tokens = self._gauge(f"{name}_tokens", "Its size.", "prefix")
        for one in hottest(hot, self._hot_prefixes):
            requests.add_metric([one.digest], one.requests)
            share.add_metric([one.digest], one.share)
            endpoints.add_metric([one.digest], one.endpoints)
            if one.tokens is not None:
                tokens.add_metric([one.digest], one.tokens)
        yield from (requests, share, endpoints, tokens)
