"""Runs notebooks: `python -m tests.examples.notebooks` stores what their cells put out now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

from tests.examples.support import EXAMPLES, ROOT

__all__ = ["NOTEBOOKS", "executed", "stored"]

NOTEBOOKS: Final = sorted(EXAMPLES.glob("*.ipynb"))


def stored(path: Path) -> Any:
    """The notebook as it is in its file."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def executed(path: Path, *, timeout_s: float) -> Any:
    """The notebook with what its cells put out, run from the start in a kernel of its own.

    Args:
        path: Its file, which stays as it is.
        timeout_s: The most that a cell takes, seconds.

    Raises:
        CellExecutionError: A cell raised.
    """
    notebook = stored(path)
    client = NotebookClient(
        notebook,
        timeout=timeout_s,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # print's pieces come as the clock has it
    )
    with patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
        client.execute(cwd=str(path.parent))
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text/html" in (data := output.get("data", {})):
                data.pop("text/plain", None)  # the same, at length
    notebook.metadata.language_info = {"name": "python"}  # without the version, which changes
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(executed(path, timeout_s=600), path)  # type: ignore[no-untyped-call]
