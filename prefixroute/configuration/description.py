"""What settings there are: taken from the values that they end in, so that there is one list.

The keys of ``[health]`` are the fields of ``HealthPolicy``, their meaning is its docstring, and so
on; what is no data (functions, TLS contexts) is left out.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.failover import Failover
from prefixroute.core.fixed import Fixed, LeastLoaded, Random_, RoundRobin
from prefixroute.core.health import HealthPolicy
from prefixroute.core.nested import Nested

__all__ = ["PLACEMENTS", "PLACES", "SECTIONS", "TOP", "Key", "document_type", "keys_of", "schema"]

SECTIONS: Final[Mapping[str, type]] = {"failover": Failover, "health": HealthPolicy}
"""Tables, and what each becomes."""

PLACEMENTS: Final[Mapping[str, type]] = {
    "fixed": Fixed,
    "least_loaded": LeastLoaded,
    "nested": Nested,
    "random": Random_,
    "round_robin": RoundRobin,
}
"""Kinds of ``placement``."""

PLACES: Final[Mapping[str, str]] = {
    "placement": "How prompts are placed; default: nested.",
    "holdout_placement": "How those of the holdout are; default: round_robin.",
    "shadow": "A placement that decides for every request and influences none.",
}
"""Keys that are a placement."""

_UNKNOWN_HERE: Final = {"RetryCallState": object, "ssl": SimpleNamespace(SSLContext=object)}
"""Names that the annotations of what is no data need, so that nothing has to be loaded for them."""

_API_KEY_ENV: Final = "The environment variable that has its own key."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting.

    Args:
        name: Its key.
        type: What it may be.
        default: What holds if it is not given.
        text: What it means.
    """

    name: str
    type: Any
    default: object
    text: str


TOP: Final = (
    Key(
        name="ask_load",
        type=bool,
        default=False,
        text="Ask engines for their load with every request (a header that vLLM answers).",
    ),
    Key(
        name="holdout",
        type=float | None,
        default=None,
        text="Share of the conversations that a baseline places, above 0 and below 1.",
    ),
    Key(
        name="inject_usage",
        type=bool,
        default=False,
        text="Ask engines for the usage of streams whose callers did not.",
    ),
    Key(
        name="peers",
        type=int | None,
        default=None,
        text="Routers in front of these endpoints, this one included, if that is known.",
    ),
    Key(
        name="remember_bodies",
        type=int,
        default=0,
        text="Bytes of request bodies that may be remembered, to prime endpoints that join.",
    ),
    Key(
        name="seed",
        type=int | None,
        default=None,
        text="Of the ring; all processes must have the same.",
    ),
)
"""Settings that are in no table."""


def keys_of(cls: type) -> dict[str, Key]:
    """Return the settings that a value's fields are, without those that are no data."""
    hints = get_type_hints(cls, localns=_UNKNOWN_HERE)
    texts = _arguments(cls)
    keys: dict[str, Key] = {}
    for part in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        type_ = _data(hints[part.name])
        if type_ is not None:
            text = texts.get(part.name, "")
            keys[part.name] = Key(name=part.name, type=type_, default=_default(part), text=text)
    if cls is Endpoint:
        keys["api_key"] = dataclasses.replace(
            keys["api_key"], text="Its own key, which replaces the caller's; better: api_key_env."
        )
        keys["api_key_env"] = Key(
            name="api_key_env", type=str | None, default=None, text=_API_KEY_ENV
        )
    return keys


def document_type() -> type[msgspec.Struct]:
    """Return the type of a whole file, for ``msgspec``."""
    endpoint = _struct("EndpointTable", keys_of(Endpoint))
    defaults = {k: v for k, v in keys_of(Endpoint).items() if k not in ("url", "id")}
    kinds = tuple(PLACEMENTS)
    placement: Any = Literal[kinds]
    for kind, cls in PLACEMENTS.items():
        placement |= _struct(cls.__name__.strip("_"), keys_of(cls), kind)
    sections = {
        "endpoints": Key(
            name="endpoints",
            type=list[Union[str, endpoint]],  # type: ignore[valid-type]  # noqa: UP007 - at run time
            default=dataclasses.MISSING,
            text="URLs, and tables with a url.",
        ),
        "endpoint_defaults": Key(
            name="endpoint_defaults",
            type=_struct("EndpointDefaults", defaults),
            default={},
            text="What holds for every endpoint that does not say otherwise.",
        ),
        **{
            name: Key(name=name, type=placement | msgspec.UnsetType, default={}, text=text)
            for name, text in PLACES.items()
        },
        **{name: _section(name, cls) for name, cls in SECTIONS.items()},
        **{key.name: key for key in TOP},
    }  # fmt: skip
    made: type[msgspec.Struct] = _struct("Prefixroute", sections)
    return made


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a file, for editors."""
    made = msgspec.json.schema(document_type())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "prefixroute",
        "description": "Settings of a prefixroute Router.",
        **made,
    }


def _section(name: str, cls: type) -> Key:
    text = (inspect.getdoc(cls) or "").partition("\n")[0]
    return Key(name=name, type=_struct(cls.__name__, keys_of(cls)), default={}, text=text)


def _struct(name: str, keys: Mapping[str, Key], kind: str | None = None) -> Any:
    annotated: Any = Annotated  # of types that are known at run time only
    fields: list[Any] = []
    for key in keys.values():
        type_ = annotated[key.type, msgspec.Meta(description=key.text)]
        if key.default is dataclasses.MISSING:
            fields.append((key.name, type_))
        elif key.default == {}:
            fields.append((key.name, type_ | msgspec.UnsetType, msgspec.UNSET))
        else:
            fields.append((key.name, type_, key.default))
    tag: dict[str, Any] = {} if kind is None else {"tag": kind, "tag_field": "kind"}
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, **tag)


def _data(hint: Any) -> Any:
    """Return a type without its functions and objects; ``None``: nothing is left of it."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kept = [part for part in get_args(hint) if part is not object and not _is_function(part)]
    if all(part is NoneType for part in kept):
        return None
    return Union[tuple(kept)]  # noqa: UP007 - of parts that are known at run time only


def _is_function(hint: Any) -> bool:
    return get_origin(hint) is Callable


def _default(part: dataclasses.Field[Any]) -> object:
    if part.default_factory is not dataclasses.MISSING:
        return part.default_factory()
    return tuple(sorted(part.default)) if isinstance(part.default, frozenset) else part.default


def _arguments(cls: type) -> dict[str, str]:
    """Return what a docstring says of each argument; nothing under ``python -OO``."""
    block = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(cls) or "", re.S | re.M)
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", block[1] if block else "", re.S | re.M)
    return {name: re.sub(r":\w+:`(\w+)`|`", r"\1", " ".join(text.split())) for name, text in found}
