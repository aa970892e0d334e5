"""The FastAPI service, under uvicorn, while visitors come and go."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO

import httpx
import pytest

from prefixroute.testing import EngineModel, FakeCluster
from tests.examples.support import EXAMPLES, environment_of

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(180)]  # a busy machine

VISITORS, TURNS = 8, 3


class Service:
    """A running service, and what it has logged so far."""

    def __init__(self, log: IO[str]) -> None:
        self._log = log
        self.lines: list[str] = []
        found = self.wait_for(r"running on (http://127\.0\.0\.1:\d+)")
        self.http = httpx.Client(base_url=found[1], timeout=30)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read the log up to a line that has this."""
        for line in self._log:
            self.lines.append(line)
            if (found := re.search(pattern, line)) is not None:
                return found
        raise AssertionError("".join(self.lines))

    def read_to_the_end(self) -> str:
        self.lines += self._log.readlines()
        return "".join(self.lines)


@contextmanager
def running(cluster: FakeCluster) -> Iterator[tuple[Service, subprocess.Popen[str]]]:
    command = [sys.executable, "-W", "error", "-m", "uvicorn", "--port", "0", "--no-access-log"]
    with subprocess.Popen(
        [*command, "fastapi_service:app"],
        cwd=EXAMPLES,
        env=environment_of(cluster),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            service = Service(process.stderr)
            with service.http:
                yield service, process
        finally:
            process.kill()


def visit(service: Service, number: int) -> list[dict[str, str]]:
    """Have a chat; return it."""
    chat: list[dict[str, str]] = []
    for turn in range(TURNS):
        chat.append({"role": "user", "content": f"Visitor {number}, question {turn}? " * 60})
        reply = service.http.post("/chat", json=chat).raise_for_status()
        assert reply.text
        chat.append({"role": "assistant", "content": reply.text})
    return chat


def test_chats_side_by_side_stay_at_one_endpoint_each(cluster: FakeCluster) -> None:
    with running(cluster) as (service, process):
        with ThreadPoolExecutor(VISITORS) as pool:
            chats = list(pool.map(lambda number: visit(service, number), range(VISITORS)))
        for number in range(VISITORS):
            mark = f"Visitor {number},".encode()
            assert len(at := [r.replica for r in cluster.requests if mark in r.body]) == TURNS
            assert len(set(at)) == 1, f"visitor {number} was sent to {at}"
        assert len({request.replica for request in cluster.requests}) > 1
        assert len({chat[1]["content"] for chat in chats}) == VISITORS
        routing = service.http.get("/routing").json()
        assert (routing["requests"], routing["in_flight"]) == (VISITORS * TURNS, 0)
        process.send_signal(signal.SIGTERM)
        log = service.read_to_the_end()
    assert "Closing <Router 4 endpoints, 0 in flight>" in log
    assert "Application shutdown complete" in log
    assert "Traceback" not in log


def test_shutdown_waits_for_the_answer_that_is_being_streamed(cluster: FakeCluster) -> None:
    with running(cluster) as (service, process):
        chat = [{"role": "user", "content": "How old is the house?"}]
        with service.http.stream("POST", "/chat", json=chat) as reply:
            pieces = reply.iter_text()
            text = next(pieces)
            process.send_signal(signal.SIGTERM)
            service.wait_for("Shutting down")
            text += "".join(pieces)
        log = service.read_to_the_end()
    assert len(text.split()) == 16  # all that the simulated replica had to say
    assert "Closing <Router 4 endpoints, 0 in flight>" in log
    assert "Traceback" not in log


def test_a_visitor_who_leaves_ends_the_generation() -> None:
    slow = EngineModel(decode_s_per_token=2.0, output_tokens=32)  # takes longer than this waits
    cluster = FakeCluster(2, model=slow)
    with cluster.serve(), running(cluster) as (service, _):
        chat = [{"role": "user", "content": "How old is the house?"}]
        with service.http.stream("POST", "/chat", json=chat) as reply:
            pieces = reply.iter_text()
            assert next(pieces)
            assert service.http.get("/routing").json()["in_flight"] == 1
        deadline = time.monotonic() + 20.0
        while service.http.get("/routing").json()["in_flight"] or running_at(cluster):
            assert time.monotonic() < deadline, "the generation goes on, for nobody"
            time.sleep(0.05)


def running_at(cluster: FakeCluster) -> int:
    return sum(replica.running for replica in cluster.stats())
