"""Settings in environment variables: ``PREFIXROUTE_SEED``, ``PREFIXROUTE_HEALTH__FAILURES``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from types import NoneType
from typing import Any, Final, get_args, get_origin

import msgspec

from prefixroute.configuration.description import PLACEMENTS, PLACES, SECTIONS, TOP, Key, keys_of
from prefixroute.configuration.reading import Configuration, load, made_of
from prefixroute.core.checks import suggestion
from prefixroute.core.endpoint import Endpoint
from prefixroute.errors import ConfigurationError

__all__ = ["read_environment", "variables"]

_FILE: Final = "CONFIG"
_KUBERNETES: Final = re.compile(r"SERVICE_(HOST|PORT(_.*)?)|PORT(_.*)?")
"""What Kubernetes sets in every pod for a service that is called prefixroute."""


def read_environment(
    environ: Mapping[str, str] | None = None, *, prefix: str = "PREFIXROUTE_"
) -> Configuration:
    """Return what the environment says.

    ``PREFIXROUTE_ENDPOINTS`` has URLs, separated by commas or blanks; any other setting is its key
    in capitals, ``__`` between table and key. ``PREFIXROUTE_CONFIG`` names a file, whose settings
    the other variables override. An empty variable is one that is not set.

    Args:
        environ: The variables; ``None``: the process's own.
        prefix: Begins their names.

    Raises:
        ConfigurationError: A variable that is none of these, or a value that cannot work.
    """
    environ = os.environ if environ is None else environ
    known = {prefix + name: key for name, key in variables().items()}
    data: dict[str, Any] = {}
    source = "environment"
    if path := environ.get(prefix + _FILE):
        data, source = load(path), f"environment and {path}"
    for name, text in environ.items():
        key = name.removeprefix(prefix)
        if key in (name, _FILE) or not text or _KUBERNETES.fullmatch(key):
            continue
        if name not in known:
            raise ConfigurationError(f"environment: {name} is no setting; {_near(name, known)}")
        _put(data, key.lower().split("__"), _value(name, known[name], text))
    return made_of(data, source, environ)


def variables() -> dict[str, Key]:
    """Return the variables, without their prefix, and the setting that each is."""
    urls = Key(name="endpoints", type=list[str], default=(), text="URLs, separated by commas.")
    found = {"ENDPOINTS": urls, **{key.name.upper(): key for key in TOP}}
    for name, text in PLACES.items():
        found[name.upper()] = Key(name=name, type=str, default=None, text=text)
    for table, key in _in_tables():
        if get_origin(key.type) is not Mapping:
            found[f"{table}__{key.name}".upper()] = key
    return found


def _in_tables() -> Iterator[tuple[str, Key]]:
    for cls in PLACEMENTS.values():
        for name in PLACES:
            yield from ((name, key) for key in keys_of(cls).values())
    for table, cls in SECTIONS.items():
        yield from ((table, key) for key in keys_of(cls).values())
    for key in keys_of(Endpoint).values():
        if key.name not in ("url", "id"):
            yield "endpoint_defaults", key


def _put(data: dict[str, Any], path: list[str], value: object) -> None:
    if path[0] in PLACES and len(path) == 1:
        path = [path[0], "kind"]
    table: dict[str, Any] = data
    for part in path[:-1]:
        inner: object = table.get(part, {})
        if isinstance(inner, str):  # a placement that is only named
            inner = {"kind": inner}
        if not isinstance(inner, Mapping):
            kind = type(inner).__name__
            raise ConfigurationError(f"{part} is of type {kind}; it must be a table")
        changed: dict[str, Any] = {**inner}
        table[part] = changed
        table = changed
    table[path[-1]] = value


def _value(name: str, key: Key, text: str) -> object:
    """Return a variable's text as what its setting may be."""
    if any(get_origin(part) in (list, Collection) for part in (key.type, *get_args(key.type))):
        items: object = [item for item in re.split(r"[,\s]+", text) if item]
    else:
        items = text.strip()
    if str in (key.type, *get_args(key.type)):
        return items  # as it is, and never in a message: it may be a key
    try:
        return msgspec.convert(items, key.type, strict=False)
    except msgspec.ValidationError:
        kinds = [
            part.__name__ for part in get_args(key.type) or (key.type,) if part is not NoneType
        ]
        rule = f"of type {' or '.join(kinds)}"
        raise ConfigurationError(f"environment: {name}={text!r} must be {rule}") from None


def _near(name: str, known: Collection[str]) -> str:
    """Return the end of a message: the nearest name, and those of its table."""
    table = name.rpartition("__")[0]
    inside = [one for one in known if table and one.startswith(f"{table}__")]
    return suggestion(name, inside or [one for one in known if "__" not in one])
