"""Examples of SDKs that the ``test`` extra lacks, in the environments of the SDK matrix."""

from __future__ import annotations

import pytest

from prefixroute.testing import FakeCluster
from tests.examples.support import run
from tests.sdk.environments import newest
from tests.sdk.matrix import ENTRIES

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.timeout(600),  # the first time the environment is made
]

SDK_EXAMPLES = {
    "langchain_chat.py": "langchain-openai",
    "litellm_completion.py": "litellm",
    "pydantic_ai_agent.py": "pydantic-ai",
}


def run_with_sdk(name: str, cluster: FakeCluster) -> str:
    python = newest(next(entry for entry in ENTRIES if entry.name == SDK_EXAMPLES[name]))
    # LiteLLM leaves an event loop of its own open at the end.
    ignored = "ResourceWarning" if name == "litellm_completion.py" else None
    return run(name, cluster, python=python, ignored=ignored, timeout_s=180.0)


def replicas(cluster: FakeCluster, mark: str) -> list[int]:
    """Where the requests went that contain this."""
    return [request.replica for request in cluster.requests if mark.encode() in request.body]


def test_langchain(cluster: FakeCluster) -> None:
    told = run_with_sdk("langchain_chat.py", cluster)
    asked, answered = cluster.requests[:2]
    assert asked.replica == answered.replica
    assert b"leaves at 14:40" not in asked.body
    assert b"leaves at 14:40" in answered.body  # the tool was called
    assert b'"stream":true' in answered.body
    assert len(cluster.requests) == 5
    assert told.count(" -> ") == 3


def test_pydantic_ai(cluster: FakeCluster) -> None:
    told = run_with_sdk("pydantic_ai_agent.py", cluster)
    for mark in ("The engine knocks.", "The brakes squeal.", "The heater is cold."):
        first, second = replicas(cluster, mark)
        assert first == second
    assert told.count("urgent=False") == 6


def test_litellm(cluster: FakeCluster) -> None:
    told = run_with_sdk("litellm_completion.py", cluster)
    first, second = replicas(cluster, "it sings at dusk")
    assert first == second
    assert b'"stream":true' in cluster.requests[1].body
    assert len(cluster.requests) == 5
    assert told.count(" -> ") == 3
