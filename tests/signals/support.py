"""What the tests of signals share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from prefixroute.testing.replica import Replica

__all__ = ["CHAT", "port_of", "until"]

CHAT: Final[dict[str, Any]] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hello there. " * 30}],
}


def until(holds: Callable[[], object], *, within_s: float = 40.0) -> None:
    """Wait for something to hold that will."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


def port_of(replica: Replica) -> int:
    """Return the port that a served replica listens on."""
    port = httpx.URL(str(replica.served_url)).port
    assert port is not None
    return port
