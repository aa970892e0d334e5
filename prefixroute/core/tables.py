"""Endpoints as settings write them: a URL, or a table of what ``Endpoint`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from prefixroute.core.checks import suggestion
from prefixroute.core.endpoint import Endpoint
from prefixroute.errors import ConfigurationError

__all__ = ["ENDPOINT_KEYS", "check_keys", "from_environment", "read_endpoint"]

ENDPOINT_KEYS: Final = (
    "url", "id", "weight", "models", "tier", "max_in_flight", "api_key", "api_key_env",
    "auth_header", "headers",
)  # fmt: skip
"""What a table may say of an endpoint: all that is data. ``api_key_env`` is the name of the
environment variable that has the key."""

_DRAINING: Final = "draining"


def read_endpoint(
    item: object,
    where: str,
    settings: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    may_drain: bool = True,
) -> tuple[Endpoint, bool]:
    """Return the endpoint that a URL or a table describes, and whether it is ``draining``.

    Args:
        item: The URL or the table.
        where: Its place, which begins every message.
        settings: What holds where the table says nothing; may have what is no data.
        environ: The environment variables.
        may_drain: Whether tables may say ``draining``.

    Raises:
        ConfigurationError: Names the key, the rule and the nearest valid key; shows no value of a
            key or a header.
    """
    given = {"url": item} if isinstance(item, str) else item
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{where} is of type {type(item).__name__}; it must be a URL or a table with a url"
        )
    check_keys(given, where, (*ENDPOINT_KEYS, *((_DRAINING,) if may_drain else ())))
    rest: dict[str, Any] = {**settings, **given}
    draining = rest.pop(_DRAINING, False)
    if type(draining) is not bool:
        raise ConfigurationError(f"{where}.draining={draining!r} must be true or false")
    url = rest.pop("url", None)
    if not isinstance(url, str):
        kind = "missing" if url is None else f"of type {type(url).__name__}"
        raise ConfigurationError(f"{where}.url is {kind}; it must be one like 'http://gpu-0:8000'")
    if rest.get("ssl_context") is not None and not url.lower().startswith("https:"):
        del rest["ssl_context"]  # it is for those that have TLS
    _take_key(rest, given, where, environ)
    try:
        return Endpoint(url, **rest), draining
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def check_keys(given: Mapping[Any, object], where: str, valid: tuple[str, ...]) -> None:
    """Refuse a table with a key that means nothing there.

    Raises:
        ConfigurationError: Names the key, and the one that may be meant.
    """
    for key in given:
        if key not in valid:
            raise ConfigurationError(f"{where} has no key {key!r}; {suggestion(key, valid)}")


def from_environment(name: object, where: str, environ: Mapping[str, str]) -> str:
    """Return the value of the environment variable that a setting names.

    Raises:
        ConfigurationError: It names none, or one that is not set; shows no variable's value.
    """
    if not isinstance(name, str) or not name:
        kind = f"of type {type(name).__name__}" if not isinstance(name, str) else "empty"
        raise ConfigurationError(
            f"{where} is {kind}; it must be the name of an environment variable, like 'GPU_KEY'"
        )
    if not environ.get(name):
        raise ConfigurationError(
            f"{where}={name!r} must name an environment variable that is set; "
            f"set {name}, or leave {where.rpartition('.')[2]} out"
        )
    return environ[name]


def _take_key(
    rest: dict[str, Any], given: Mapping[str, Any], where: str, environ: Mapping[str, str]
) -> None:
    """Put the key that ``api_key_env`` names in its place; a table's own goes before a default."""
    if "api_key" in given:
        if "api_key_env" in given:
            raise ConfigurationError(
                f"{where} has both api_key and api_key_env; leave out api_key: a file is no place "
                "for a secret"
            )
        rest.pop("api_key_env", None)
    if "api_key_env" in rest:
        rest["api_key"] = from_environment(rest.pop("api_key_env"), f"{where}.api_key_env", environ)
