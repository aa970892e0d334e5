"""Tests on engines find them installed: the first run fetches and builds them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from prefixroute import Router
from tests.engines import setup, vllm_setup
from tests.engines.chat import direct_client
from tests.engines.llama import LlamaReplicas
from tests.engines.placements import named_endpoints


@pytest.fixture(scope="session", autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    if any(item.get_closest_marker("engine") for item in request.session.items):
        setup.install()
    if any(item.get_closest_marker("nightly") for item in request.session.items):
        vllm_setup.install()


@pytest.fixture(scope="module")
def replicas() -> Iterator[LlamaReplicas]:
    """Three replicas for the tests of one module."""
    with LlamaReplicas(3, slots=6) as running:
        yield running


@pytest.fixture
def router(replicas: LlamaReplicas) -> Iterator[Router]:
    """A router that knows nothing yet, before replicas that are all up and empty."""
    replicas.restart_dead()
    replicas.clear()
    with Router(named_endpoints(replicas.urls), seed=0) as made:
        yield made


@pytest.fixture
def http(router: Router) -> Iterator[httpx.Client]:
    """Plain HTTP through the router."""
    with router.client() as client:
        yield client


@pytest.fixture
def direct() -> Iterator[httpx.Client]:
    """Plain HTTP without the router, to see what a replica itself answers."""
    with direct_client() as client:
        yield client
