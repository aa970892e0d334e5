"""Real replicas: what they remember, and that they come and go as told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engines.chat import Message, Reply, direct_client, http_chat
from tests.engines.llama import EngineError, LlamaReplicas
from tests.engines.texts import system_prompts

pytestmark = pytest.mark.engine

SLOTS = 3
PROMPTS = system_prompts(random.Random(0), SLOTS + 1)


@pytest.fixture(scope="module")
def running() -> Iterator[LlamaReplicas]:
    with LlamaReplicas(2, slots=SLOTS) as replicas:
        yield replicas


@pytest.fixture
def replicas(running: LlamaReplicas) -> LlamaReplicas:
    running.clear()
    return running


def ask(url: str, system: str) -> Reply:
    messages: list[Message] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "Hello!"},
    ]
    with direct_client() as client:
        return http_chat(client, url, messages)


def test_a_replica_remembers_as_many_prompts_as_it_has_slots(replicas: LlamaReplicas) -> None:
    url = replicas.urls[0]
    first = [ask(url, system) for system in PROMPTS[:SLOTS]]
    again = [ask(url, system) for system in PROMPTS[:SLOTS]]
    assert all(reply.cached_tokens < 10 for reply in first)
    assert all(reply.cached_tokens == reply.prompt_tokens - 1 for reply in again)
    ask(url, PROMPTS[SLOTS])  # takes the place of the one used longest ago
    assert ask(url, PROMPTS[1]).cached_tokens > 100
    assert ask(url, PROMPTS[0]).cached_tokens < 10


def test_replicas_share_nothing(replicas: LlamaReplicas) -> None:
    ask(replicas.urls[0], PROMPTS[0])
    assert ask(replicas.urls[1], PROMPTS[0]).cached_tokens == 0


def test_clear_empties_every_slot(replicas: LlamaReplicas) -> None:
    for system in PROMPTS[:SLOTS]:
        ask(replicas.urls[0], system)
    replicas.clear()
    assert all(ask(replicas.urls[0], system).cached_tokens < 10 for system in PROMPTS[:SLOTS])


def test_killed_and_restarted(replicas: LlamaReplicas) -> None:
    url = replicas.urls[1]
    ask(url, PROMPTS[0])
    replicas.kill(1)
    with pytest.raises(httpx.ConnectError):
        ask(url, PROMPTS[0])
    replicas.restart(1)
    assert replicas.urls[1] == url
    assert ask(url, PROMPTS[0]).cached_tokens == 0


def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    replicas = LlamaReplicas(2, extra=["--no-such-option"])
    with pytest.raises(EngineError, match="invalid argument: --no-such-option"), replicas:
        pytest.fail("it started")
    assert not any(replica.alive for replica in replicas.replicas)


SCRIPT = """
import time
from tests.engines.llama import LlamaReplicas
with LlamaReplicas(1) as replicas:
    print(replicas.replicas[0].port, flush=True)
    time.sleep(60)
"""


def test_a_killed_test_run_leaves_nothing() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    ) as run:
        assert run.stdout is not None
        url = f"http://127.0.0.1:{int(run.stdout.readline())}/health"
        assert httpx.get(url, trust_env=False).status_code == 200
        run.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            return
        time.sleep(0.05)
    pytest.fail("the replica outlived the process that started it")
