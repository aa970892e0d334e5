"""Tests on engines find them installed: the first run fetches and builds them."""

from __future__ import annotations

import pytest

from tests.engines import setup


@pytest.fixture(scope="session", autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    if any(item.get_closest_marker("engine") for item in request.session.items):
        setup.install()
