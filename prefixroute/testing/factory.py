"""ClusterFactory: simulated engines for one test, and their end with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from prefixroute.testing.cluster import FakeCluster
from prefixroute.testing.model import EngineModel

__all__ = ["ClusterFactory"]


class ClusterFactory:
    """Makes clusters in which nothing sleeps, and closes what it serves when it is left.

    The pytest fixture `prefixroute_cluster` is one.
    """

    def __init__(self) -> None:
        """Serve nothing yet."""
        self._served = ExitStack()

    def __call__(
        self,
        n: int | None = None,
        *,
        model: EngineModel | Sequence[EngineModel] | None = None,
        time_scale: float = 0.0,
        seed: int = 0,
    ) -> FakeCluster:
        """Return a new cluster, for its mock transports.

        Args:
            n: How many engines; 4, or as many as there are models.
            model: What they are like: one for all, or one for each.
            time_scale: Real seconds that a simulated second takes; 0: nothing sleeps.
            seed: Another seed gives other answers and ids.

        Raises:
            ValueError: As `FakeCluster`.
        """
        return FakeCluster(n, model=model, time_scale=time_scale, seed=seed)

    def serve(
        self,
        n: int | None = None,
        *,
        model: EngineModel | Sequence[EngineModel] | None = None,
        time_scale: float = 0.0,
        seed: int = 0,
    ) -> tuple[FakeCluster, list[str]]:
        """Return a new cluster that listens on loopback ports, and its URLs.

        Args:
            n: As above.
            model: As above.
            time_scale: As above.
            seed: As above.

        Raises:
            ValueError: As `FakeCluster`.
        """
        cluster = self(n, model=model, time_scale=time_scale, seed=seed)
        return cluster, self._served.enter_context(cluster.serve())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._served.close()
