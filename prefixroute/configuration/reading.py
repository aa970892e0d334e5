"""From what a file says to what a ``Router`` takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from prefixroute.configuration.description import PLACEMENTS, PLACES, SECTIONS, TOP, keys_of
from prefixroute.core.checks import refusal, suggestion
from prefixroute.core.documents import MalformedDocument, check_document_path, parse_document
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.failover import Failover
from prefixroute.core.health import HealthPolicy
from prefixroute.core.membership import check_endpoints
from prefixroute.core.placement import Placement
from prefixroute.core.tables import ENDPOINT_KEYS, check_keys, read_endpoint
from prefixroute.errors import ConfigurationError

__all__ = ["Configuration", "load", "made_of", "read_file"]

_KEYS: Final = (
    "endpoints", "endpoint_defaults", *PLACES, *SECTIONS, *(key.name for key in TOP),
)  # fmt: skip
_DEFAULTS: Final = tuple(key for key in ENDPOINT_KEYS if key not in ("url", "id"))

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a router takes and is data; each argument is as :class:`Router` has it.

    Args:
        endpoints: At least one.
        placement: ``None``: the default.
        failover: ``None``: the default.
        health: ``None``: the default.
        inject_usage: Whether streams that ask for no usage are made to.
        ask_load: Whether requests ask engines for their load.
        peers: ``None``: not known.
        seed: ``None``: the default.
        holdout: ``None``: none.
        holdout_placement: ``None``: the default.
        shadow: ``None``: none.
        remember_bodies: Bytes; 0: none.
        source: Where it is from, which begins messages.
    """

    endpoints: tuple[Endpoint, ...]
    placement: Placement | None = None
    failover: Failover | None = None
    health: HealthPolicy | None = None
    inject_usage: bool = False
    ask_load: bool = False
    peers: int | None = None
    seed: int | None = None
    holdout: float | None = None
    holdout_placement: Placement | None = None
    shadow: Placement | None = None
    remember_bodies: int = 0
    source: str = field(default="configuration", compare=False)

    def arguments(self) -> dict[str, Any]:
        """Return it as the arguments of ``Router``."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "source"}

    def make(self, router: Callable[..., R], **more: object) -> R:
        """Return a router of a class, with further arguments of it.

        Raises:
            ConfigurationError: What cannot work; names the source, too.
        """
        try:
            return router(**self.arguments(), **more)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.source}: {error}") from None


def read_file(path: Path | str, environ: Mapping[str, str] | None = None) -> Configuration:
    """Return what a file of TOML, JSON or YAML says, by its suffix.

    Args:
        path: The file; YAML needs the extra ``yaml``.
        environ: Has the variables that ``api_key_env`` names; ``None``: the process's own.

    Raises:
        ConfigurationError: The file cannot be read, or something in it cannot work: names file,
            key, value, rule and the nearest valid key, and shows no value of a key or a header.
    """
    data = load(path)
    return made_of(data, str(path), os.environ if environ is None else environ)


def load(path: Path | str) -> dict[str, Any]:
    """Return the table that a file is.

    Raises:
        ConfigurationError: It cannot be read, or is something else.
    """
    check_document_path("Router.from_file", path)
    try:
        data = parse_document(path, Path(path).read_bytes())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigurationError(f"{path}: {why}") from None
    except MalformedDocument as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigurationError(
            f"{path}: is of type {type(data).__name__}; it must be a table with endpoints"
        )
    return data


def made_of(data: Mapping[str, Any], source: str, environ: Mapping[str, str]) -> Configuration:
    """Return what settings come to.

    Args:
        data: The keys of a file.
        source: Where they are from, which begins every message.
        environ: Has the variables that ``api_key_env`` names.

    Raises:
        ConfigurationError: As :func:`read_file`.
    """
    try:
        check_keys(data, "the file" if source != "environment" else source, _KEYS)
        defaults = _table(data, "endpoint_defaults")
        check_keys(defaults, "endpoint_defaults", _DEFAULTS)
        return Configuration(
            endpoints=_endpoints(data.get("endpoints"), defaults, environ),
            **{name: _placement(name, data.get(name)) for name in PLACES},  # type: ignore[arg-type]
            **{name: _section(data, name, cls) for name, cls in SECTIONS.items()},  # type: ignore[arg-type]
            **_top(data),
            source=source,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def _endpoints(
    items: object, defaults: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    if items is None or items == []:
        raise ConfigurationError(
            "there are no endpoints; say endpoints = ['http://gpu-0:8000/v1'], or [[endpoints]] "
            "with a url"
        )
    if not isinstance(items, list):
        raise ConfigurationError(
            f"endpoints is of type {type(items).__name__}; "
            "it must be a list of URLs or tables with a url"
        )
    made = [
        read_endpoint(item, f"endpoints[{at}]", defaults, environ=environ, may_drain=False)[0]
        for at, item in enumerate(items)
    ]
    return tuple(check_endpoints(made))


def _placement(name: str, given: object) -> Placement | None:
    if given is None:
        return None
    table = {"kind": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise ConfigurationError(
            f"{name} is of type {type(given).__name__}; it must be a kind or a table with one"
        )
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in PLACEMENTS:
        said = "has no kind" if kind is None else f"has the kind {kind!r}, which is none"
        raise ConfigurationError(f"{name} {said}; {suggestion(kind, PLACEMENTS)}")
    cls = PLACEMENTS[kind]
    check_keys(table, name, ("kind", *keys_of(cls)))
    made: Placement = _made(cls, name, {k: v for k, v in table.items() if k != "kind"})
    return made


def _section(data: Mapping[str, Any], name: str, cls: type) -> object:
    table = _table(data, name)
    check_keys(table, name, tuple(keys_of(cls)))
    return _made(cls, name, table) if table else None


def _made(cls: type, where: str, table: Mapping[str, Any]) -> Any:
    try:
        return cls(**table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{name} is of type {type(table).__name__}; it must be a table")
    return table


def _top(data: Mapping[str, Any]) -> dict[str, Any]:
    given = {key.name: data[key.name] for key in TOP if data.get(key.name) is not None}
    for key in TOP:  # the rest is checked by the router itself
        if key.type is bool and type(given.get(key.name, False)) is not bool:
            raise refusal("Router", key.name, given[key.name], "true or false")
    return given
