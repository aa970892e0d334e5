"""Four servers that answer at once and are not Python: nginx on loopback ports.

Each has a port that answers a chat with one JSON object and a port that answers it with an event
stream, because nginx sees no body where it answers by itself.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bodies import replied, replied_chunk
from benchmarks.peers.lines import PeerError, ended, environment_of, guarded, tail
from benchmarks.peers.timing import MODEL

__all__ = ["SERVERS", "Servers", "answer", "config", "free_ports", "servers", "wait_until"]

SERVERS: Final = 4
_CHUNKS: Final = 32
_START_S: Final = 30.0

_REPLY: Final = replied(MODEL)
_CHUNK: Final = replied_chunk(MODEL, " word")
_INFO: Final = {
    "model_path": MODEL,
    "served_model_name": MODEL,
    "model_id": MODEL,
    "is_generation": True,
    "max_model_len": 131072,
    "max_total_num_tokens": 1_000_000,
    "version": "0",
    "load": 0,
}
"""What gateways ask an engine about itself."""

_MODELS: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "-", "root": MODEL}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where the servers listen.

    Args:
        json: Roots of those that answer with JSON, without ``/v1``.
        sse: Roots of those that answer with events.
    """

    json: tuple[str, ...]
    sse: tuple[str, ...]


def config(json_ports: Sequence[int], sse_ports: Sequence[int]) -> str:
    """Return nginx's configuration; all files lie in the folder that it is started in."""
    event = f"data: {_dumps(_CHUNK)}\n\n"
    # A parameter has at most 4,096 bytes: the stream is one event, many times, from a variable.
    return f"""
daemon off;
master_process off;
pid nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 3600s;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  default_type application/json;
  server {{
    {_listen(json_ports)}
    location = /v1/chat/completions {{ return 200 {_quoted(_dumps(_REPLY))}; }}
    {_about()}
  }}
  server {{
    {_listen(sse_ports)}
    location = /v1/chat/completions {{
      default_type text/event-stream;
      set $event {_quoted(event)};
      return 200 "{"${event}" * _CHUNKS}data: [DONE]\n\n";
    }}
    {_about()}
  }}
}}
"""


def _listen(ports: Sequence[int]) -> str:
    return "\n    ".join(f"listen 127.0.0.1:{port};" for port in ports)


def _about() -> str:
    return f"""location = /v1/models {{ return 200 {_quoted(_dumps(_MODELS))}; }}
    location / {{ return 200 {_quoted(_dumps(_INFO))}; }}"""


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _quoted(text: str) -> str:
    if "'" in text or "\\" in text or "$" in text:
        raise ValueError(f"{text!r} cannot be quoted for nginx: it has a ', a \\ or a $")
    return f"'{text}'"


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Start nginx, and stop it at the end of the block.

    Raises:
        PeerError: nginx is not installed, or does not start.
    """
    if (program := shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")) is None and (
        program := shutil.which("nginx")
    ) is None:
        raise PeerError("nginx is not installed: apt-get install nginx (or its like)")
    json_ports, sse_ports = free_ports(SERVERS), free_ports(SERVERS)
    home = folder / "nginx"
    home.mkdir()
    (home / "nginx.conf").write_text(config(json_ports, sse_ports), encoding="utf-8")
    command = [program, "-e", "stderr", "-p", f"{home}/", "-c", "nginx.conf"]
    log = home / "log"
    with log.open("ab") as written:
        process = subprocess.Popen(guarded(command), env=environment_of({}), stderr=written)
    try:
        for port in (*json_ports, *sse_ports):
            wait_until(
                lambda port=port: answer(port, "GET", "/health")[0] == 200,  # type: ignore[misc]
                process,
                "nginx",
                log,
                _START_S,
            )
        yield Servers(
            json=tuple(f"http://127.0.0.1:{port}" for port in json_ports),
            sse=tuple(f"http://127.0.0.1:{port}" for port in sse_ports),
        )
    finally:
        ended(process)


def free_ports(count: int) -> list[int]:
    """Return so many loopback ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def answer(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return the status and the body of what is answered on a loopback port; 0: no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def wait_until(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    name: str,
    log: Path,
    limit_s: float,
) -> None:
    """Return once it is ready.

    Raises:
        PeerError: The process ended, or the time is over.
    """
    until = time.monotonic() + limit_s
    while not ready():
        if process.poll() is not None:
            raise PeerError(f"{name} ended with {process.returncode}: {tail(log)}")
        if time.monotonic() > until:
            raise PeerError(f"{name} is not ready after {limit_s:g} s: {tail(log)}")
        time.sleep(0.05)
