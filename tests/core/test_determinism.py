"""Every process that is told the same places the same: clients agree without talking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .placements import placed

HERE = Path(__file__).parent
GOLDEN: dict[str, Any] = json.loads((HERE / "golden_placements.json").read_text())


def test_golden_placements() -> None:
    """A change here moves every user's keys: it needs a new ``PLACEMENT_VERSION``."""
    assert placed(0, "mapping") == GOLDEN


@pytest.mark.parametrize("kind", ["mapping", "bytes"])
@pytest.mark.parametrize("shuffle", [1, 2, 3])
def test_the_order_of_the_list_and_the_kind_of_body_are_irrelevant(shuffle: int, kind: str) -> None:
    assert placed(shuffle, kind) == GOLDEN


@pytest.mark.parametrize(
    ("hash_seed", "shuffle", "kind"),
    [("0", 0, "mapping"), ("1", 1, "bytes"), ("random", 2, "mapping"), ("4294967295", 3, "bytes")],
)
def test_case_20_processes_with_other_hash_seeds_place_alike(
    hash_seed: str, shuffle: int, kind: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.core.placements", str(shuffle), kind],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=HERE.parent.parent,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert json.loads(ran.stdout) == GOLDEN


def test_the_golden_placements_use_everybody() -> None:
    for name in ("Nested", "Fixed"):
        assert len(set(GOLDEN[name]["fresh"])) >= 5
