"""Prompts are the same in every process, on every machine and in every version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.golden import FILE, compute

ROOT = Path(__file__).parents[2]


def test_case_20_prompts_are_what_they_were() -> None:
    golden = json.loads(FILE.read_text())
    computed = compute()
    assert list(computed) == list(golden)
    for name, vector in computed.items():
        assert vector == golden[name], name


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_case_20_pythons_hash_seed_is_irrelevant(seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.golden"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert json.loads(done.stdout) == json.loads(FILE.read_text())


def test_equal_prompts_of_different_shapes() -> None:
    golden = json.loads(FILE.read_text())
    chains = {name: vector["chain"] for name, vector in golden.items()}
    assert chains["generate"] == chains["generate of inputs"] == chains["text"]
    assert chains["generate of token ids"] == chains["token ids"]
    assert chains["chat of a session"] == chains["chat of a session by header"]
    assert chains["embeddings"] == chains["no messages"] == []
    assert len({json.dumps(chain) for chain in chains.values()}) == len(chains) - 5
