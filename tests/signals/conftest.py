"""What the tests of signals are given."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a module look as if it were not installed."""
    find = importlib.util.find_spec

    def hide(module: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == module else find(name)
        )

    return hide
