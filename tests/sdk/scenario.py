"""Runs one scenario in the environment it is in: `python -m tests.sdk.scenario openai [RESULT]`."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

from tests.sdk.check import outcomes

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Run a scenario and write its result: versions, and what is wrong in each column.

    Args:
        arguments: The module in ``tests.sdk.scenarios``, and the file to write; without one the
            result is printed.
    """
    name, *files = arguments
    cases = importlib.import_module(f"tests.sdk.scenarios.{name}").CASES
    result = {
        "versions": {one: version(one) for one in cases.distributions},
        "columns": outcomes(cases),
    }
    text = json.dumps(result, indent=2)
    if files:
        Path(files[0]).write_text(text, encoding="utf-8")
    else:
        print(text.replace("\\n", "\n"))


if __name__ == "__main__":
    main(sys.argv[1:])
