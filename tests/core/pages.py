"""Reads what is shown in notebooks."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["Page"]

_VOID = {"br", "meta"}


class Page(HTMLParser):
    """Reads a page, and fails where a tag is not closed in its place."""

    def __init__(self, html: object) -> None:
        super().__init__()
        assert isinstance(html, str)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += f" {data}"
