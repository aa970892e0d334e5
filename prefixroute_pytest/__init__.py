"""The pytest plugin of prefixroute: the fixture ``prefixroute_cluster``.

A package of its own: pytest imports it in every run of an environment that has prefixroute, and
importing that would slow down all those runs that make no use of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from prefixroute.testing import ClusterFactory

__all__ = ["prefixroute_cluster"]


@pytest.fixture
def prefixroute_cluster() -> Iterator[ClusterFactory]:
    """Make simulated engines: ``prefixroute_cluster(3)``, ``prefixroute_cluster.serve(3)``."""
    from prefixroute.testing import ClusterFactory  # noqa: PLC0415 - only for tests that use it

    with ClusterFactory() as factory:
        yield factory
