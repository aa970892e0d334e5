"""What a router does and how it stands, as Prometheus metrics.

>>> from prefixroute import Router
>>> from prefixroute.metrics import PrometheusObserver, RouterMetrics
>>> router = Router(["http://gpu-0:8000/v1"], observers=[PrometheusObserver()])  # doctest: +SKIP
>>> RouterMetrics(router)  # doctest: +SKIP

``PrometheusObserver`` counts a router's events, ``RouterMetrics`` shows its state when the registry
is read, ``FleetMetrics`` how a ``RedisFleet`` fares. Nothing holds a prompt or a key.
"""

try:
    import prometheus_client as _  # noqa: F401 - all that is below needs it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "prefixroute.metrics needs prometheus-client: pip install 'prefixroute[prometheus]'",
        name=error.name,
    ) from error

from prefixroute.metrics.fleet import FleetMetrics
from prefixroute.metrics.observer import PrometheusObserver
from prefixroute.metrics.state import RouterMetrics

__all__ = ["FleetMetrics", "PrometheusObserver", "RouterMetrics"]
