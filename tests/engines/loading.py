"""A replica that goes on loading its model until it is told to finish."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.engines.llama import EngineError


class LoadingGate:
    """Keeps a llama-server at "Loading model" for as long as a test wants.

    The server listens while it loads, and answers everything with 503. The last thing that it loads
    is a cache for speculative decoding: here a named pipe, whose reader waits until somebody opens
    it for writing. It is then found to be empty, which changes no reply.

    Args:
        folder: where the pipe goes.
    """

    def __init__(self, folder: Path) -> None:
        self._pipe = folder / "lookup-cache"
        os.mkfifo(self._pipe)

    @property
    def options(self) -> Sequence[str]:
        """What the server is to be started with."""
        return ("--spec-type", "ngram-cache", "--lookup-cache-static", str(self._pipe))

    def open(self, timeout_s: float = 60.0) -> None:
        """Lets the server finish; raises EngineError if it doesn't come to the gate."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                os.close(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads yet
                    raise
                time.sleep(0.02)
            else:
                return
        raise EngineError(f"no server read {self._pipe} within {timeout_s} s")
