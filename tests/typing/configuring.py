"""Settings: endpoints, placements, policies."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import assert_type

from prefixroute import (
    Endpoint,
    Failover,
    Fixed,
    HealthPolicy,
    LeastLoaded,
    Nested,
    Placement,
    Random,
    RoundRobin,
    Router,
)
from prefixroute.signals import DnsSource, EngineMetrics, FileSource, RedisFleet


class MyRouter(Router):
    """A subclass of the application."""


def configured(key: Callable[[], str], tls: ssl.SSLContext) -> None:
    """All that can be said."""
    endpoints: list[Endpoint | str] = [
        "http://gpu-0:8000/v1",
        Endpoint("http://gpu-1", weight=2, models={"m"}, tier=1, max_in_flight=8),
        Endpoint("https://gpu-2", id="c", api_key=key, headers={"x": "y"}, ssl_context=tls),
    ]
    Router(endpoints)
    Router(url for url in ("http://gpu-0", "http://gpu-1"))
    router = Router(
        endpoints,
        placement=Nested(block_bytes=512, target=0.25),
        failover=Failover(max_attempts=2, hedge_after_s=1.0, replay_sent=True),
        health=HealthPolicy(probe_every_s=5.0),
        peers=1,
        seed=7,
        holdout=0.05,
        holdout_placement=LeastLoaded(),
        shadow=Fixed(prefix_bytes=1024),
    )
    assert_type(router, Router)
    router.set_endpoints(["http://gpu-9"])
    router.add("http://gpu-10")
    router.add(Endpoint("http://gpu-11"))
    assert_type(router.drain("http://gpu-10", timeout_s=1.0), bool)
    assert_type(router.fingerprint, str)


def from_elsewhere(path: Path) -> None:
    """Files and variables give the class that they are asked of."""
    assert_type(Router.from_file("prefixroute.toml"), Router)
    assert_type(MyRouter.from_file(path), MyRouter)
    assert_type(MyRouter.from_env({"PREFIXROUTE_ENDPOINTS": "http://gpu-0"}), MyRouter)


def placements() -> list[Placement]:
    """All of them are placements."""
    return [Nested(), Fixed(), LeastLoaded(), Random(), RoundRobin()]


def heard(router: Router) -> None:
    """Signals take a router; context managers give themselves."""
    with EngineMetrics(router, every_s=1.0) as metrics:
        assert_type(metrics, EngineMetrics)
    with RedisFleet(router, "redis://cache") as fleet:
        assert_type(fleet, RedisFleet)
    Router(DnsSource("gpu.example", port=8000).endpoints())
    Router(FileSource("endpoints.toml").endpoints())
    with Router(["http://gpu-0"]) as opened:
        assert_type(opened, Router)


def wrong(endpoint: Endpoint) -> None:
    """What cannot work is an error before it runs."""
    Router()  # type: ignore[call-arg]
    Router([8000])  # type: ignore[list-item]
    Router(["http://gpu-0"], Nested())  # type: ignore[call-arg]
    Router(["http://gpu-0"], placement="nested")  # type: ignore[arg-type]
    Router(["http://gpu-0"], placement=Nested)  # type: ignore[arg-type]
    Router(["http://gpu-0"], observers=print)  # type: ignore[arg-type]
    Nested(1024)  # type: ignore[call-arg]
    Nested(block_bytes="1k")  # type: ignore[arg-type]
    Endpoint("http://gpu-0", weigth=2.0)  # type: ignore[call-arg]
    Endpoint("http://gpu-0", api_key=7)  # type: ignore[arg-type]
    Failover(max_attempts=1.5)  # type: ignore[arg-type]
    endpoint.weight = 2.0  # type: ignore[misc]
