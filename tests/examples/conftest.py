"""Simulated replicas for examples to talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefixroute.testing import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    simulated = FakeCluster(4, time_scale=0.1)
    with simulated.serve():
        yield simulated
