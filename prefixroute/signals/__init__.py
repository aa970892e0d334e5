"""What the world tells a router beyond its own replies.

>>> from prefixroute import Router
>>> from prefixroute.signals import EngineMetrics
>>> router = Router(["http://gpu-0:8000/v1", "http://gpu-1:8000/v1"])
>>> with EngineMetrics(router, every_s=1.0):  # doctest: +SKIP
...     ...
"""

from __future__ import annotations

from prefixroute.signals.engines import EngineMetrics
from prefixroute.signals.metrics import read_load

__all__ = ["EngineMetrics", "read_load"]
