"""What the world tells a router beyond its own replies.

>>> from prefixroute import Router
>>> from prefixroute.signals import Discovery, DnsSource, EngineMetrics
>>> source = DnsSource("gpu.default.svc.cluster.local", port=8000)
>>> router = Router(["http://gpu-0:8000/v1"])
>>> with Discovery(router, source), EngineMetrics(router, every_s=1.0):  # doctest: +SKIP
...     ...

Importing this loads none of the extras: each name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prefixroute.signals.discovery import Discovery
    from prefixroute.signals.engines import EngineMetrics
    from prefixroute.signals.metrics import read_load
    from prefixroute.signals.redis import RedisFleet
    from prefixroute.signals.sources import (
        DnsSource,
        FileSource,
        KubernetesSource,
        Listing,
        Reader,
        Source,
    )

__all__ = [
    "Discovery",
    "DnsSource",
    "EngineMetrics",
    "FileSource",
    "KubernetesSource",
    "Listing",
    "Reader",
    "RedisFleet",
    "Source",
    "read_load",
]

_HOMES: Final = {
    "Discovery": "discovery",
    "EngineMetrics": "engines",
    "RedisFleet": "redis",
    "read_load": "metrics",
}
"""The modules of the names that are not a source's."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'sources')}"), name)
