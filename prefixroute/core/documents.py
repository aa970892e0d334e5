"""Files of settings: TOML, JSON or YAML by suffix, refused without showing what they hold."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from prefixroute.core.checks import need, refusal

__all__ = ["MalformedDocument", "check_document_path", "parse_document"]

_Parse: TypeAlias = Callable[[str], Any]


class MalformedDocument(Exception):  # noqa: N818 - a state of the file
    """The text is none of its format; says where, and nothing of what is there."""


def check_document_path(owner: str, path: object) -> None:
    """Refuse a path whose suffix tells no format that can be read here.

    Raises:
        ConfigurationError: Another suffix, or the extra that its format needs is missing.
    """
    if not isinstance(path, str | Path) or _suffix(path) not in _FORMATS:
        rule = f"a path that ends with one of {', '.join(_FORMATS)}"
        raise refusal(owner, "path", path, rule)
    if _FORMATS[_suffix(path)][1] is _yaml:
        need(f"{owner}({str(path)!r})", "yaml", "PyYAML", "yaml")


def parse_document(path: Path | str, text: bytes) -> object:
    """Return what a file's text says: mappings, lists and scalars.

    Args:
        path: Its suffix tells the format; one that :func:`check_document_path` has let pass.
        text: What the file holds.

    Raises:
        MalformedDocument: It is not UTF-8, or not of its format; says where.
    """
    name, parse = _FORMATS[_suffix(path)]
    try:
        return parse(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise MalformedDocument(f"byte {error.start} is not UTF-8") from None
    except MalformedDocument as error:
        raise MalformedDocument(f"not {name}, {error}") from None


def _suffix(path: Path | str) -> str:
    return Path(path).suffix.lower()


# What these libraries say of a malformed text may quote it, keys and all: only the place is taken.


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(error))
        raise MalformedDocument(place[1] if place else "in some place") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise MalformedDocument(f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise MalformedDocument("nested too deeply") from None


def _yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - an extra

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (
            "in some place" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        )
        raise MalformedDocument(place) from None
    except (RecursionError, ValueError):  # a date that is none
        raise MalformedDocument("in some place") from None


_FORMATS: Final[dict[str, tuple[str, _Parse]]] = {
    ".toml": ("TOML", _toml),
    ".json": ("JSON", _json),
    ".yaml": ("YAML", _yaml),
    ".yml": ("YAML", _yaml),
}
