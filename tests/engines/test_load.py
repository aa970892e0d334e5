"""The load that real llama.cpp replicas report, read while they work."""

from __future__ import annotations

import threading
import time

import pytest

from prefixroute import EngineLoad, Router
from prefixroute.signals import EngineMetrics
from tests.engines.llama import LlamaReplicas
from tests.engines.placements import named_endpoints

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def test_running_and_waiting_requests_are_read() -> None:
    with (
        LlamaReplicas(1, slots=1) as replicas,
        Router(named_endpoints(replicas.urls)) as router,
        router.client() as client,
    ):
        poller = EngineMetrics(router)
        assert poller.poll() == {"replica-0": EngineLoad(running=0, waiting=0)}

        def ask() -> None:
            body = {"prompt": "Once upon a time " * 20, "max_tokens": 40}
            assert client.post("/completions", json=body).status_code == 200

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        seen = EngineLoad()
        while any(thread.is_alive() for thread in asking):
            load = poller.poll().get("replica-0", EngineLoad())
            running, waiting = max(seen.running, load.running), max(seen.waiting, load.waiting)
            seen = EngineLoad(running=running, waiting=waiting)
            time.sleep(0.02)
        assert (seen.running, seen.waiting) == (1, 2)
        assert poller.poll() == {"replica-0": EngineLoad(running=0, waiting=0)}
        assert router.stats().endpoints[0].load == EngineLoad(running=0, waiting=0)
