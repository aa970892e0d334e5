"""What every test gets: repeatable examples, and a check that no request stays counted."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from prefixroute.core import roster as roster_module
from prefixroute.core.roster import Roster

settings.register_profile(
    "ci",
    derandomize=True,  # a red build is red again when it is run again
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

os.environ.setdefault("MPLBACKEND", "agg")  # no window opens, whatever screen there is

_HELD = 32


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes too long, unless ``-m`` names it: ``pytest -m nightly``."""
    if "nightly" in config.option.markexpr:
        return
    left = [item for item in items if item.get_closest_marker("nightly")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of the collections that follow, which are many."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_stays_in_flight(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test that leaves requests counted on a router that it made."""
    held: deque[Roster] = deque(maxlen=_HELD)  # a test's local routers would be gone by then
    init = Roster.__init__

    def recorded(self: Roster, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        held.append(self)

    before = {id(router) for router in roster_module._rosters}
    monkeypatch.setattr(Roster, "__init__", recorded)
    yield
    if request.node.get_closest_marker("leaves_in_flight") is not None:
        return
    made = [*held, *(r for r in roster_module._rosters if id(r) not in before)]
    if any(router.stats().in_flight for router in made):
        gc.collect()  # which may release what was dropped
    left = [router for router in made if router.stats().in_flight]
    assert not left, f"requests are still counted: {left}"
