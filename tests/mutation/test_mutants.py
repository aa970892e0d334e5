"""The mutants are what they say they are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import __main__ as main
from tests.mutation.__main__ import accepted
from tests.mutation.mutants import mutants_of
from tests.mutation.running import CORE

SOURCE = '''
"""A module."""
__all__ = ["f"]
LIMIT: int = 3

def f(a: int = 1) -> bool:
    """Say."""
    g.count += a
    return not a < LIMIT
'''


def test_each_mutant_is_one_change(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(SOURCE)
    assert {(mutant.name, mutant.at_import) for mutant in mutants_of(path)} == {
        ("m.py (module): LIMIT: int = 3  ->  LIMIT: int = 4", True),
        ("m.py (module): LIMIT: int = 3  ->  LIMIT: int = 2", True),
        ("m.py (module): def f(a: int=1) -> bool:  ->  def f(a: int=2) -> bool:", True),
        ("m.py (module): def f(a: int=1) -> bool:  ->  def f(a: int=0) -> bool:", True),
        ("m.py f: g.count += a  ->  pass", False),
        ("m.py f: return not a < LIMIT  ->  return a < LIMIT", False),
        ("m.py f: return not a < LIMIT  ->  return not a <= LIMIT", False),
    }


def test_each_accepted_mutant_has_a_reason() -> None:
    assert all(accepted().values())


@pytest.mark.checkout
def test_what_is_accepted_is_there() -> None:
    for name in accepted():
        where, _, statement = name.partition("  ->  ")[0].partition(": ")
        module = ast.parse((CORE / where.partition(" ")[0]).read_text("utf-8"))
        assert statement in ast.unparse(module), name


def test_an_entry_accepts_one_mutant_or_those_of_a_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.py"
    path.write_text(SOURCE)
    listed = {"m.py (module): LIMIT: int = 3": "", "m.py f: g.count += a  ->  pass": ""}
    monkeypatch.setattr(main, "accepted", lambda: listed)
    survive = [mutant.name for mutant in mutants_of(path) if main.may_survive(mutant)]
    assert sorted(survive) == [
        "m.py (module): LIMIT: int = 3  ->  LIMIT: int = 2",
        "m.py (module): LIMIT: int = 3  ->  LIMIT: int = 4",
        "m.py f: g.count += a  ->  pass",
    ]
