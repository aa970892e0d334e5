"""What the replicas of every real engine have in common: a process on a port, and its log."""

from __future__ import annotations

import atexit
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Generic, Self, TypeVar

MODEL_NAME: Final = "smollm2"

# It dies with the thread that started it (prctl 1 is PR_SET_PDEATHSIG), and its group with it, so
# that a killed test run leaves nothing behind. Not a preexec_fn: those may deadlock after a fork.
_GUARD = """
import ctypes, os, signal, subprocess, sys
def end(*_): os.killpg(0, signal.SIGKILL)
signal.signal(signal.SIGTERM, end)
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]): subprocess.call(sys.argv[2:])
end()
"""


class EngineError(Exception):
    """A replica didn't come up or didn't do what it was told; the end of its log is included."""


class Replica(ABC):
    """One server on a loopback port of its own.

    Args:
        folder: where its log goes.
    """

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._log = folder / f"{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The server's command line; raises EngineError where the engine isn't installed."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The server's environment."""

    @abstractmethod
    def clear(self) -> None:
        """Empties the cache. No request may be running."""

    def start(self) -> None:
        """Starts the process, with an empty cache. It lives no longer than the calling thread."""
        if self.alive:
            raise EngineError(f"{self.url} runs already: kill it first")
        command = self.command()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _GUARD, str(os.getpid()), *command],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own: Ctrl-C is for the tests to handle
            )

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns when the model is loaded; raises EngineError if that takes too long."""
        self._wait_for(200, "ready", timeout_s)

    def wait_loading(self, timeout_s: float = 60.0) -> None:
        """Returns when it says that its model is loading; raises EngineError as wait_ready."""
        self._wait_for(503, "loading", timeout_s)

    def _wait_for(self, status: int, state: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.alive:
                raise EngineError(f"{self.url} ended while it was starting:\n{self.log_tail()}")
            try:
                if self.ask("GET", "/health")[0] == status:
                    return
            except OSError:
                pass  # not listening yet
            time.sleep(0.05)
        raise EngineError(f"{self.url} wasn't {state} after {timeout_s} s:\n{self.log_tail()}")

    def kill(self) -> None:
        """Ends the process at once, as a crash would; does nothing if it has ended."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # it and all of its group are gone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while self._listens():  # the server is the guard's child: it ends a moment later
            time.sleep(0.005)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def log_tail(self, lines: int = 25) -> str:
        """The end of what the server wrote, over all its starts."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """The status and the body of what the server answers; raises OSError if it doesn't."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body=b"{}" if method == "POST" else None)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


AnyReplica_co = TypeVar("AnyReplica_co", bound=Replica, covariant=True)


class Replicas(Generic[AnyReplica_co]):
    """Several replicas, up from entering the `with` block until it is left, however that happens.

    Also a test run that is killed leaves none behind. Enter it in a thread that outlives it.

    Args:
        count: how many replicas.
        make: makes one, given the folder for its log.
        timeout_s: for all of them to load the model.
    """

    block_tokens: ClassVar[int] = 1
    """What is found cached is a multiple of this."""

    def __init__(
        self, count: int, make: Callable[[Path], AnyReplica_co], *, timeout_s: float = 60.0
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="replicas-")
        self._timeout_s = timeout_s
        folder = Path(self._folder.name)
        self.replicas: Sequence[AnyReplica_co] = tuple(make(folder) for _ in range(count))

    @property
    def urls(self) -> tuple[str, ...]:
        """The replicas' base URLs; they stay the same when one is killed or restarted."""
        return tuple(replica.url for replica in self.replicas)

    def kill(self, index: int) -> None:
        """Ends one replica as a crash would: its port then refuses connections."""
        self.replicas[index].kill()

    def restart(self, index: int) -> None:
        """Starts one replica again on the same port, with an empty cache, and waits for it."""
        self.replicas[index].kill()
        self.replicas[index].start()
        self.replicas[index].wait_ready(self._timeout_s)

    def restart_dead(self) -> None:
        """Starts those again that were killed, with empty caches, and waits for them."""
        dead = [replica for replica in self.replicas if not replica.alive]
        for replica in dead:
            replica.start()
        for replica in dead:
            replica.wait_ready(self._timeout_s)

    def clear(self) -> None:
        """Empties all caches in milliseconds. No request may be running."""
        for replica in self.replicas:
            replica.clear()

    def __enter__(self) -> Self:
        atexit.register(self._stop)
        try:
            for replica in self.replicas:
                replica.start()
            for replica in self.replicas:
                replica.wait_ready(self._timeout_s)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        for replica in self.replicas:
            replica.kill()
        self._folder.cleanup()


def _free_port() -> int:
    """A loopback port that nothing listens on, outside of the range of outgoing connections.

    The kernel could give a port from that range to a client's socket while the replica is down.
    """
    for port in _candidates():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EngineError("no free port was found in 100 tries between 10000 and 32000")


def _candidates() -> Iterator[int]:
    chooser = random.SystemRandom()  # two test runs at once mustn't follow the same seed
    for _ in range(100):
        yield chooser.randrange(10_000, 32_000)
