"""``FleetMetrics``: how a router's talk with others goes, as Prometheus metrics."""

from __future__ import annotations

import math
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from prefixroute.errors import ConfigurationError

__all__ = ["FleetMetrics"]


class _FleetStats(Protocol):
    """What is read of :class:`prefixroute.signals.fleet.FleetStats`."""

    @property
    def connected(self) -> bool: ...
    @property
    def peers(self) -> int: ...
    @property
    def age_s(self) -> float | None: ...
    @property
    def losses(self) -> int: ...


class _Fleet(Protocol):
    def stats(self) -> _FleetStats: ...


class FleetMetrics:
    """Shows how a ``RedisFleet`` fares, asked when the registry is read.

    - ``prefixroute_fleet_connected``: 1 while the server answers
    - ``prefixroute_fleet_peers``: other routers
    - ``prefixroute_fleet_age_seconds``: since they were last heard of; infinite: never yet
    - ``prefixroute_fleet_losses``: how often the server could not be used any more

    Args:
        fleet: The ``RedisFleet``.
        registry: Where they are registered; ``None``: prometheus_client's own.
        namespace: First part of the names.

    Raises:
        ConfigurationError: The registry has metrics of these names already.
    """

    def __init__(
        self,
        fleet: _Fleet,
        registry: CollectorRegistry | None = None,
        *,
        namespace: str = "prefixroute",
    ) -> None:
        def gauge(name: str, text: str) -> Gauge:
            where = registry if registry is not None else REGISTRY
            return Gauge(f"fleet_{name}", text, namespace=namespace, registry=where)

        def age_s() -> float:
            age = fleet.stats().age_s
            return math.inf if age is None else age

        try:
            connected = gauge("connected", "1 while the server answers.")
            peers = gauge("peers", "Other routers.")
            age = gauge("age_seconds", "Since the other routers were last heard of.")
            losses = gauge("losses", "Times that the server could not be used any more.")
        except ValueError as error:
            raise ConfigurationError(
                f"FleetMetrics(namespace={namespace!r}): {error}; give each fleet a registry or a "
                "namespace of its own"
            ) from None
        connected.set_function(lambda: float(fleet.stats().connected))
        peers.set_function(lambda: float(fleet.stats().peers))
        age.set_function(age_s)
        losses.set_function(lambda: float(fleet.stats().losses))
