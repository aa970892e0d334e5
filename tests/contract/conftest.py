"""Runs every test of this folder in each of the six ways to send."""

from __future__ import annotations

import gc
from typing import get_args

import pytest

from tests.contract.flavours import Flavour, Library, Mode

FLAVOURS = [Flavour(library, mode) for library in get_args(Library) for mode in get_args(Mode)]


@pytest.fixture(params=FLAVOURS, ids=lambda f: f"{f.library}-{f.mode}")
def flavour(request: pytest.FixtureRequest) -> Flavour:
    made: Flavour = request.param
    return made


@pytest.fixture(
    params=[flavour for flavour in FLAVOURS if not flavour.is_sync],
    ids=lambda f: f"{f.library}-{f.mode}",
)
def async_flavour(request: pytest.FixtureRequest) -> Flavour:
    made: Flavour = request.param
    return made


@pytest.fixture(scope="session", autouse=True)
def _collections_are_quick() -> None:
    """Leave the imported modules out of the collections that follow: there are hundreds."""
    gc.collect()
    gc.freeze()
