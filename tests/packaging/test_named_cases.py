"""Public faults of this kind of software are numbered; each number has a test that is named so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.checkout
def test_every_numbered_fault_has_a_test() -> None:
    named: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        found = re.findall(r"^ *(?:async )?def test_case_(\d+)_", path.read_text("utf-8"), re.M)
        assert all(len(number) == 2 for number in found), f"two digits, please: {path}"
        named.update(map(int, found))
    assert named == set(range(1, 55))
