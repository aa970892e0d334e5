"""``prefixroute check`` on real engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixroute.cli.app import app
from tests.engines.llama import LlamaReplica

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("caching", [True, False])
def test_a_real_llama_server_is_told_what_it_is(tmp_path: Path, *, caching: bool) -> None:
    extra = () if caching else ("--no-cache-prompt",)
    replica = LlamaReplica(tmp_path, slots=1, slot_tokens=512, extra=extra)
    replica.start()
    try:
        replica.wait_ready()
        result = CliRunner().invoke(app, ["check", replica.url, "--json"])
    finally:
        replica.kill()
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["endpoints"]
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
