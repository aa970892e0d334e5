"""Griffe extensions: what docstrings say in reStructuredText, as Markdown; how structs are made.

``:class:`Endpoint``` becomes a link, if the reference has that name; other roles become code. The
two colons before an indented block become one. Griffe knows the arguments of a dataclass, and not
those of a ``msgspec.Struct``.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import griffe

__all__ = ["Roles", "Structs"]

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


class Structs(griffe.Extension):
    """Gives structs the signature that they have: one argument for each field."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give it to all structs of a package."""
        _sign(pkg)


def _sign(item: griffe.Object) -> None:
    if isinstance(item, griffe.Class) and _is_struct(item) and "__init__" not in item.members:
        keyword_only = "kw_only" in item.keywords
        kinds = griffe.ParameterKind
        kind = kinds.keyword_only if keyword_only else kinds.positional_or_keyword
        fields = [
            griffe.Parameter(name, annotation=field.annotation, kind=kind, default=_default(field))
            for name, field in item.members.items()
            if isinstance(field, griffe.Attribute) and field.annotation is not None
        ]
        receiver = griffe.Parameter("self", kind=kinds.positional_or_keyword)
        made = griffe.Function("__init__", parameters=griffe.Parameters(receiver, *fields))
        item.set_member("__init__", made)
    for member in item.members.values():
        if isinstance(member, griffe.Object):
            _sign(member)


def _is_struct(item: griffe.Class) -> bool:
    bases = [str(base) for base in item.bases]
    return any(base in ("msgspec.Struct", "_Event") for base in bases)


def _default(field: griffe.Attribute) -> str | None:
    given = field.value
    return None if given is None else str(given).replace("field(default_factory=dict)", "{}")


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
