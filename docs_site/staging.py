"""Brings what the site shows into one folder, and makes links follow.

docs/ links to what lies beside it in a checkout: the changelog, the examples, a module. Each of
these is a page of the site, too; a link to anything that is not is an error.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from os.path import relpath
from pathlib import Path
from typing import Final

from docs_site.commands import commands_page
from docs_site.notebooks import notebook_page

__all__ = ["DOCS", "ROOT", "BrokenLinkError", "page_of", "pages", "stage"]

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = ROOT / "examples"
NOTEBOOK: Final = EXAMPLES / "routing_without_network.ipynb"

_BESIDE: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples": "examples.md",
    "examples/routing_without_network.ipynb": "notebook.md",
    "prefixroute": "reference/index.md",
    "prefixroute/testing": "reference/testing.md",
    "prefixroute/simulator": "reference/simulator.md",
}
"""The page of a file or folder of the checkout outside of docs/; of a folder, for all in it."""

_WHOLE: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Files outside of docs/ that are pages as they are."""

_FENCE: Final = re.compile(r"^(```.*?^```[^\n]*$)", re.S | re.M)
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_LANGUAGES: Final[Mapping[str, str]] = {".py": "python", ".yaml": "yaml"}


class BrokenLinkError(Exception):
    """A page links to something that has no page."""


def page_of(path: Path) -> str | None:
    """Return the page, or the asset, that shows a file or folder of the checkout."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix() if path.is_file() else None
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
    for part in (inside, *inside.parents):
        if (page := _BESIDE.get(part.as_posix())) is not None:
            return page if path.exists() else None
    return None


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every page, links as the site has them."""
    for path in sorted(DOCS.rglob("*.md")):
        yield path.relative_to(DOCS).as_posix(), _linked(path, path.read_text(encoding="utf-8"))
    for name in _WHOLE:
        yield _BESIDE[name], _linked(ROOT / name, (ROOT / name).read_text(encoding="utf-8"))
    yield "examples.md", _linked(EXAMPLES / "README.md", _examples())
    yield "notebook.md", _linked(NOTEBOOK, notebook_page(NOTEBOOK))
    yield "reference/commands.md", commands_page()


def stage(folder: Path) -> None:
    """Write all pages and assets into a folder, in place of what it has.

    Raises:
        BrokenLinkError: Something is linked that has no page: names it and the page.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in [*DOCS.glob("*.png"), *DOCS.glob("*.svg"), Path(__file__).with_name("extra.css")]:
        shutil.copy(path, folder / path.name)


def _examples() -> str:
    """Return the examples' README with the source of each below."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\| `(\w+)\.py` \|", r"| [`\1.py`](#\1py) |", text)
    text = text.replace(f"| `{NOTEBOOK.name}` |", f"| [`{NOTEBOOK.name}`]({NOTEBOOK.name}) |")
    parts = [text.rstrip()]
    for path in sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("kubernetes/*")]):
        if path.suffix in _LANGUAGES:
            code = path.read_text(encoding="utf-8").rstrip()
            name = path.relative_to(EXAMPLES).as_posix()
            parts.append(f"## {name}\n\n```{_LANGUAGES[path.suffix]}\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def _linked(source: Path, text: str) -> str:
    """Return a page's text with its links as the site has them; code stays as it is."""
    of_folder = source.parent if source.is_relative_to(DOCS) else DOCS

    def follow(match: re.Match[str]) -> str:
        page = page_of((source.parent / match[1]).resolve())
        if page is None:
            where = source.relative_to(ROOT)
            raise BrokenLinkError(
                f"{where} links to {match[1]}, which has no page in the site: link to a page of "
                "docs/, name the file without a link, or give it one in docs_site/staging.py"
            )
        return Path(relpath(DOCS / page, of_folder)).as_posix()

    parts = _FENCE.split(text)
    return "".join(part if at % 2 else _LINK.sub(follow, part) for at, part in enumerate(parts))
