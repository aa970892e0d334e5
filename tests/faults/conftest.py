"""One server for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.flavours import Flavour
from tests.faults.cases import FLAVOURS
from tests.faults.server import FaultServer


@pytest.fixture(params=FLAVOURS, ids=lambda f: f"{f.library}-{f.mode}")
def flavour(request: pytest.FixtureRequest) -> Flavour:
    made: Flavour = request.param
    return made


@pytest.fixture(scope="session")
def shared_server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture
def server(shared_server: FaultServer) -> Iterator[FaultServer]:
    """The server; nobody may be connected to it when the test has ended."""
    shared_server.begin()
    yield shared_server
    shared_server.wait_until_left()
