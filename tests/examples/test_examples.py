"""Every example runs as its reader would run it, against simulated replicas on sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefixroute.testing import FakeCluster

pytestmark = pytest.mark.checkout

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(
    path.name
    for path in EXAMPLES.glob("*.py")
    if path.name not in ("fastapi_service.py", "simulated_replicas.py")
)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    simulated = FakeCluster(4, time_scale=0.1)
    with simulated.serve():
        yield simulated


def run(name: str, cluster: FakeCluster, *extra: str) -> str:
    urls = ",".join(str(replica.served_url) for replica in cluster.replicas)
    done = subprocess.run(
        [sys.executable, "-W", "error", *extra, str(EXAMPLES / name)],
        env={**os.environ, "ENDPOINTS": urls},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name: str, cluster: FakeCluster) -> None:
    assert run(name, cluster)
    assert cluster.requests


def test_quickstart_keeps_a_chat_at_one_endpoint(cluster: FakeCluster) -> None:
    run("quickstart.py", cluster)
    assert len({request.replica for request in cluster.requests}) == 1


def test_agent_keeps_its_session_at_one_endpoint(cluster: FakeCluster) -> None:
    run("agent_with_tools.py", cluster)
    assert len({request.replica for request in cluster.requests}) == 1


def test_processes_agree(cluster: FakeCluster) -> None:
    lines = run("evaluation_processes.py", cluster).splitlines()
    assert len(lines) == 3  # one endpoint for each of the three tasks
    assert all(line.endswith(" 16") for line in lines)


def test_simulated_replicas_says_how_to_reach_them() -> None:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "simulated_replicas.py")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("export ENDPOINTS=http://127.0.0.1:")
        finally:
            process.terminate()
