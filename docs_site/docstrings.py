"""A Griffe extension: what docstrings say in reStructuredText, as Markdown.

``:class:`Endpoint``` becomes a link, if the reference has that name; other roles become code. The
two colons before an indented block become one.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import griffe

__all__ = ["Roles"]

_REFERENCE: Final = Path(__file__).parents[1] / "docs" / "reference"
_SHOWN: Final = re.compile(r"^::: (\S+)", re.M)
_ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([\w.]+)`")
_BLOCK: Final = re.compile(r"::$", re.M)


class Roles(griffe.Extension):
    """Rewrites docstrings when a package was read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite all docstrings of a package."""
        pages = [path.read_text(encoding="utf-8") for path in _REFERENCE.glob("*.md")]
        shown = {name for page in pages for name in _SHOWN.findall(page)}
        _rewrite(pkg, {name.rpartition(".")[2]: name for name in sorted(shown, reverse=True)})


def _rewrite(item: griffe.Object, links: Mapping[str, str]) -> None:
    def link(match: re.Match[str]) -> str:
        name = match[1]
        target = links.get(name.rpartition(".")[2])
        return f"`{name}`" if target is None else f"[`{name}`][{target}]"

    if item.docstring is not None:
        item.docstring.value = _ROLE.sub(link, _BLOCK.sub(":", item.docstring.value))
    for member in item.members.values():
        if isinstance(member, griffe.Object):  # no alias: what it is of is elsewhere
            _rewrite(member, links)
