"""The Python blocks of README and docs run as they are, but for what needs a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if BLOCK.search(path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, in one namespace, as a reader would paste them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": page}
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + match[1], str(ROOT / page), "exec")
        exec(code, namespace)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
