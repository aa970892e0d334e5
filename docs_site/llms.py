"""llms.txt: an index of the pages for programs that read; see https://llmstxt.org."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

__all__ = ["Nav", "all_text", "entries", "index_text"]

Nav: TypeAlias = Sequence[Mapping[str, Any]]
"""The navigation as in zensical.toml: a title with a page, or with more of the same."""

_NOT_PROSE: Final = re.compile(r"```.*?^```|<!--.*?-->|^(?:#|\||:::|!\[).*?$", re.S | re.M)
_MARKS: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_LONGEST: Final = 180
"""Characters up to which further sentences are taken."""


def entries(nav: Nav, section: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the section, title and page of each entry, in order."""
    for entry in nav:
        for title, what in entry.items():
            if isinstance(what, str):
                yield section, title, what
            else:
                yield from entries(what, title)


def index_text(name: str, description: str, nav: Nav, pages: Mapping[str, str]) -> str:
    """Return the index: a line for each page, with what it begins with.

    Args:
        name: Of the site.
        description: Of the site, one sentence.
        nav: Its navigation.
        pages: Their text, by name.
    """
    lines = [f"# {name}", "", f"> {description}"]
    before = ""
    for section, title, page in entries(nav):
        if section != before:
            lines += ["", f"## {section}"]
            before = section
        lines += [""] if lines[-1].startswith(("#", ">")) else []
        lines.append(f"- [{title}]({_readable(page)}): {_beginning(pages[page])}")
    return "\n".join(lines) + "\n"


def all_text(nav: Nav, pages: Mapping[str, str]) -> str:
    """Return all pages one after the other, but for the reference, which is only HTML."""
    chosen = [page for _, _, page in entries(nav) if _readable(page) == page]
    return "\n\n".join(pages[page].strip() for page in chosen) + "\n"


def _readable(page: str) -> str:
    """Return what a program is to read: reference pages are made of docstrings in HTML alone."""
    made = page.startswith("reference/") and page != "reference/commands.md"
    return page.removesuffix(".md") + ".html" if made else page


def _beginning(text: str) -> str:
    """Return the first sentences of a page, without marks of Markdown."""
    prose = _NOT_PROSE.sub("", text).strip()
    paragraph = _MARKS.sub(r"\1", " ".join(prose.split("\n\n")[0].split()))
    first, *more = re.split(r"(?<=[.?!]) ", paragraph)
    for sentence in more:
        if len(first) + len(sentence) > _LONGEST:
            break
        first += f" {sentence}"
    return first.rstrip(":")
