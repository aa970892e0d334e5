"""Other projects' gateways, each in an environment and a process of its own, before the servers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.cpu import cpu_ns, family
from benchmarks.peers.lines import ended, environment_of, guarded
from benchmarks.peers.servers import answer, free_ports, wait_until
from benchmarks.peers.timing import MODEL

__all__ = ["GATEWAYS", "Gateway", "Running", "running"]

_START_S: Final = 90.0
_ASK: Final = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}]}
).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway that a package has.

    Attributes:
        name: As its project calls it, as it stands in a sentence.
        package: On the Python package index.
        module: What starts it.
        options: Beside its address and the servers'.
    """

    name: str
    package: str
    module: str
    options: tuple[str, ...] = ("--policy", "cache_aware", "--log-level", "error")

    def command(
        self, python: Path, port: int, metrics_port: int, roots: Sequence[str]
    ) -> list[str]:
        """Return the command line that has it listen on a loopback port."""
        place = ["--host", "127.0.0.1", "--port", str(port)]
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        return [
            *(str(python), "-m", self.module, *place, *metrics, *self.options),
            *("--worker-urls", *roots),
        ]


GATEWAYS: Final = (
    Gateway(
        name="the SGLang gateway", package="sglang-router", module="sglang_router.launch_router"
    ),
    Gateway(name="the vLLM router", package="vllm-router", module="vllm_router.launch_router"),
    Gateway(name="SMG", package="smg", module="smg.launch_router"),
)
"""The engines' own, and SMG, which is for several engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A gateway that is up.

    Args:
        url: What a client takes as its base URL.
        pid: Of its process.
    """

    url: str
    pid: int

    def cpu_ns(self) -> int:
        """Return the CPU time that it and its children have used."""
        return cpu_ns(*family(self.pid))


@contextmanager
def running(gateway: Gateway, python: Path, roots: Sequence[str], log: Path) -> Iterator[Running]:
    """Start a gateway in front of these servers, and stop it at the end of the block.

    Raises:
        PeerError: It does not start, or does not get a chat through.
    """
    port, metrics_port = free_ports(2)
    command = gateway.command(python, port, metrics_port, roots)
    with log.open("ab") as written:
        process = subprocess.Popen(
            guarded(command),
            env=environment_of({}),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: _ready(port, len(roots)),
            process,
            gateway.name,
            log,
            _START_S,
        )
        yield Running(url=f"http://127.0.0.1:{port}/v1", pid=process.pid)
    finally:
        ended(process)


def _ready(port: int, servers: int) -> bool:
    """Whether it lists all servers as healthy, and gets a chat through."""
    _, listed = answer(port, "GET", "/workers")
    if listed.count(b'"is_healthy":true') < servers:
        return False
    return answer(port, "POST", "/v1/chat/completions", _ASK)[0] == 200
