"""Runs one scenario in the environment it is in: `python -m tests.sdk.scenario openai [RESULT]`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.sdk.check import outcomes
from tests.sdk.support import COLUMNS, Column

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Run a scenario and write its result: versions, and what is wrong in each column.

    Args:
        arguments: The module in ``tests.sdk.scenarios``, and the file to write; without one the
            result is printed.
    """
    name, *files = arguments
    module: Any = importlib.import_module(f"tests.sdk.scenarios.{name}")
    if hasattr(module, "CASES"):
        distributions, columns = module.CASES.distributions, outcomes(module.CASES)
    else:
        distributions, columns = module.DISTRIBUTIONS, _outcomes_of_tests(module.__file__)
    result = {"versions": {one: version(one) for one in distributions}, "columns": columns}
    if files:
        Path(files[0]).write_text(json.dumps(result), encoding="utf-8")
    else:
        print(json.dumps(result, indent=2).replace("\\n", "\n"))


def _outcomes_of_tests(file: str) -> dict[Column, str | None]:
    """Run a file of tests, each named after its column."""
    import pytest  # only where a library for tests is the one to be tested

    wrong: dict[Column, list[str]] = {}

    class Results:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            name = report.location[2]
            column = next(one for one in COLUMNS if name.startswith(f"test_{one}"))
            if report.failed:
                wrong.setdefault(column, []).append(f"{name}: {report.longreprtext}")
            elif report.when == "call":
                wrong.setdefault(column, [])

    alone = ["-c", os.devnull, "--rootdir", str(Path(file).parent), "--noconftest"]
    quietly = ["-p", "no:cacheprovider", "-p", "no:terminal", "--import-mode=importlib"]
    status = pytest.main([*alone, *quietly, file], plugins=[Results()])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not wrong:
        raise RuntimeError(f"pytest ended with {status!r} on {file}: run it there to see why")
    return {column: "\n".join(wrong[column]) if column in wrong else None for column in COLUMNS}


if __name__ == "__main__":
    main(sys.argv[1:])
