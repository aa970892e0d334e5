"""Replicas of a real llama.cpp server on this machine, started and stopped by tests.

Each replica is an exact cache of its last K prompts: it has K slots, and a prompt goes to the slot
whose content it extends best, or else replaces the one used longest ago. `python -m
tests.engines.setup` installs what is needed.
"""

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.engines import setup

MODEL_NAME = "smollm2"

# Dies with the thread that started it (prctl 1 is PR_SET_PDEATHSIG) and then becomes the server, so
# that a killed test run leaves nothing behind. Not a preexec_fn: those may deadlock after a fork.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EngineError(Exception):
    """A replica didn't come up or didn't do what it was told; the end of its log is included."""


class LlamaReplica:
    """One llama-server on a loopback port of its own.

    Args:
        folder: where its log goes.
        slots: how many prompts it remembers, and how many it computes at once.
        slot_tokens: the context of each slot; a longer prompt is answered with 400.
        threads: of computation.
        extra: further options of llama-server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        slots: int = 4,
        slot_tokens: int = 512,
        threads: int = 1,
        extra: Sequence[str] = (),
    ) -> None:
        self.port = _free_port()
        self.slots = slots
        self._log = folder / f"{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None
        flags = (
            f"--device none -a {MODEL_NAME} --host 127.0.0.1 --port {self.port} --metrics "
            f"--offline --no-ui -c {slots * slot_tokens} -np {slots} -t {threads} "
            "--cache-ram 0 -b 256 -ub 256"
        )
        erasable = ("--slot-save-path", str(folder))  # without it the server refuses to erase
        self._options = (*flags.split(), *erasable, *extra)

    @property
    def url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process, with an empty cache. It lives no longer than the calling thread."""
        if self.alive:
            raise EngineError(f"{self.url} runs already: kill it first")
        install = setup.installed()
        if install is None:
            raise EngineError("the engine isn't installed: run `python -m tests.engines.setup`")
        server = [str(install.server), "-m", str(install.model), *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _LAUNCHER, str(os.getpid()), *server],
                env=setup.environment(install.libraries),
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
                if self._status("GET", "/health") == status:
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

    def clear(self) -> None:
        """Empties the cache. No request may be running."""
        for slot in range(self.slots):
            status = self._status("POST", f"/slots/{slot}?action=erase")
            if status != 200:
                raise EngineError(f"{self.url} answered {status} to erasing:\n{self.log_tail()}")

    def log_tail(self, lines: int = 25) -> str:
        """The end of what the server wrote, over all its starts."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _status(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body=b"{}" if method == "POST" else None)
            return connection.getresponse().status
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


class LlamaReplicas:
    """Several replicas, up from entering the `with` block until it is left, however that happens.

    Also a test run that is killed leaves none behind. Enter it in a thread that outlives it.

    Args:
        count: how many replicas.
        slots, slot_tokens, threads, extra: see LlamaReplica.
        timeout_s: for all of them to load the model.
    """

    def __init__(
        self,
        count: int,
        *,
        slots: int = 4,
        slot_tokens: int = 512,
        threads: int = 1,
        extra: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llama-replicas-")
        self._timeout_s = timeout_s
        self.replicas: Sequence[LlamaReplica] = tuple(
            LlamaReplica(
                Path(self._folder.name),
                slots=slots,
                slot_tokens=slot_tokens,
                threads=threads,
                extra=extra,
            )
            for _ in range(count)
        )

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
