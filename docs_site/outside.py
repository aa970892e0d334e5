"""Finds what a page would load from elsewhere: a site for an air-gapped network must not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

__all__ = ["loaded_from_elsewhere"]

_SOURCES: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_LINKS_THAT_LOAD: Final = {
    "dns-prefetch", "icon", "modulepreload", "preconnect", "prefetch", "preload", "stylesheet",
}  # fmt: skip
_OF_STYLES: Final = re.compile(r"(?:url\(\s*|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)")


class _Finder(HTMLParser):
    """Collects addresses with a host that a browser fetches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Look at one element."""
        given = dict(attrs)
        if tag == "link" and not _LINKS_THAT_LOAD & set((given.get("rel") or "").split()):
            return
        address = given.get(_SOURCES.get(tag, "")) or ""
        if address.startswith(("http:", "https:", "//")):
            self.found.append(address)


def loaded_from_elsewhere(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each page or style sheet of a built site with an address that it would load."""
    for path in sorted(folder.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        finder = _Finder()
        finder.feed(text)
        for address in [*finder.found, *_OF_STYLES.findall(text)]:
            yield path, address
    for path in sorted(folder.rglob("*.css")):
        for address in _OF_STYLES.findall(path.read_text(encoding="utf-8")):
            yield path, address
