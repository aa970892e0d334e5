"""``prefixroute check`` on real engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prefixroute.cli.app import app
from tests.engines.llama import LlamaReplica
from tests.engines.replica import Replica
from tests.engines.vllm import VllmReplica


def told(replica: Replica, ready_s: float = 60.0) -> dict[str, Any]:
    """What ``prefixroute check`` tells of a replica, which is stopped then."""
    replica.start()
    try:
        replica.wait_ready(ready_s)
        result = CliRunner().invoke(app, ["check", replica.url, "--json"])
    finally:
        replica.kill()
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["endpoints"]
    assert isinstance(found, dict)
    return found


@pytest.mark.engine
@pytest.mark.parametrize("caching", [True, False])
def test_a_real_llama_server_is_told_what_it_is(tmp_path: Path, *, caching: bool) -> None:
    extra = () if caching else ("--no-cache-prompt",)
    replica = LlamaReplica(tmp_path, slots=1, slot_tokens=512, extra=extra)
    found = told(replica)
    assert found["engine"] == "llama.cpp"
    assert found["version"]
    assert found["models"] == ["smollm2"]
    assert found["reports_cached_tokens"] is True
    assert found["reports_load"] is True
    assert found["prefix_caching"] is caching
    assert 200 < found["prompt_tokens"] < 512  # the prompt was halved until it fitted
    if caching:
        assert found["cached_tokens"] == found["prompt_tokens"] - 1
        assert found["ttft_warm_s"] < found["ttft_cold_s"]
        assert found["advice"] == []
    else:
        assert found["advice"] == ["prefixes are not cached: start it without --no-cache-prompt"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("on", [True, False])
def test_a_real_vllm_is_told_what_it_is(tmp_path: Path, *, on: bool) -> None:
    extra = () if on else ("--no-enable-prefix-caching",)
    replica = VllmReplica(tmp_path, reports=on, extra=extra)
    found = told(replica, ready_s=300.0)
    assert found["engine"] == "vLLM"
    assert found["version"]
    assert found["models"] == ["smollm2"]
    assert found["reports_load"] is True
    assert found["prefix_caching"] is on
    assert found["reports_cached_tokens"] is on
    if on:
        assert found["cached_tokens"] > 0.9 * found["prompt_tokens"]
        assert found["ttft_warm_s"] < found["ttft_cold_s"]
        assert found["advice"] == []
    else:
        assert found["advice"] == [
            "prefixes are not cached: start it with --enable-prefix-caching",
            "its replies do not tell cached tokens: start it with --enable-prompt-tokens-details",
        ]
