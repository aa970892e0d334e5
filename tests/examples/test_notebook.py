"""Notebooks run, and put out what is stored in them and what their text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.examples.notebooks import NOTEBOOKS, executed, stored

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(300)]

ROUTING = next(path for path in NOTEBOOKS if path.name == "routing_without_network.ipynb")
DECISIONS_PER_S = re.compile(r"<td>[\d,]+</td></tr>")


def outputs(notebook: Any) -> list[Any]:
    """What the cells have put out, but for what is measured in real time."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.output_type in ("stream", "execute_result")
            assert output.get("name") != "stderr", output.text
            text = output.text if output.output_type == "stream" else output.data["text/html"]
            shown.append(DECISIONS_PER_S.sub("</tr>", text))
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_puts_out_what_it_stores(path: Path) -> None:
    notebook = stored(path)
    nbformat.validate(notebook)
    now = executed(path, timeout_s=120)
    nbformat.validate(now)
    fresh = "run `python -m tests.examples.notebooks`, and read whether its text is still true"
    assert outputs(now) == outputs(notebook), fresh


ROW = re.compile(
    r'<th scope="row"><span class="key"></span>([\w-]+)</th>'
    r'<td>.*?"figure">([\d.]+)%</span></td>(.*?)</tr>'
)


def figures(html: str) -> dict[tuple[str, int], dict[str, float]]:
    """The figures of a simulation's table, by rule and number of routers."""
    found = {}
    for part in html.split('<th scope="rowgroup">')[1:]:
        routers = int(part.split(" ", 1)[0])
        for rule, rate, cells in ROW.findall(part):
            _, mean, _, _, _, requests, *_ = re.findall(r"<td>(.*?)</td>", cells)
            found[rule, routers] = {
                "hit rate": float(rate) / 100,
                "TTFT mean, s": float(mean),
                "requests, max/mean": float(requests),
            }
    return found


def test_the_text_says_what_the_tables_show() -> None:
    tables = [text for text in outputs(stored(ROUTING)) if "the bound</th>" in text]
    even, chats = (figures(table) for table in tables)
    bound = r"the bound</th><td>([\d.]+)%"
    pooled = [float(re.findall(bound, table)[0]) / 100 for table in tables]

    def hit(rule: str, routers: int) -> float:
        return at[rule, routers]["hit rate"]

    at = even
    assert hit("prefix-tree", 1) == pooled[0]
    assert hit("prefix-tree", 32) < hit("random", 32) + 0.05
    assert hit("first-block", 1) < 0.7 < hit("first-block", 32) == pooled[0]
    assert min(hit("nested", 1), hit("nested", 32)) > pooled[0] - 0.05
    at = chats
    assert hit("first-block", 1) < hit("random", 1) + 0.05
    assert chats["first-block", 32]["TTFT mean, s"] > 1.0
    assert chats["prefix-tree", 1]["TTFT mean, s"] > 1.0
    assert min(hit("nested", 1), hit("nested", 32)) > pooled[1] - 0.05
    for routers in (1, 32):
        uneven = chats["nested", routers]["requests, max/mean"]
        assert uneven > chats["random", routers]["requests, max/mean"]
