"""A notebook of examples/ as a page, with what its cells put out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["notebook_page"]


def notebook_page(path: Path) -> str:
    """Return a notebook's cells, and their stored output, as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part.strip() for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:  # without script, and nothing to load: see core/pages.py
            lines = "".join(data["text/html"]).splitlines()
            yield "\n".join(line for line in lines if line.strip())
        else:
            text = "".join(output.get("text", data.get("text/plain", "")))
            yield f"```text\n{text.rstrip()}\n```"
