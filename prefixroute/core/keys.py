"""The key that an attempt carries: what the endpoint has of its own, or what a function gives."""

from __future__ import annotations

from prefixroute.core.endpoint import Endpoint, is_sendable
from prefixroute.errors import KeyUnavailable

__all__ = ["key_of"]


def key_of(endpoint: Endpoint) -> str | None:
    """Return an endpoint's own key as it is now; ``None``: it has none, the caller's is used.

    Raises:
        KeyUnavailable: Its function raised, or gave what no header can carry.
    """
    key = endpoint.api_key
    if not callable(key):
        return None if key is None else key.strip()
    try:
        given: object = key()
    except Exception as error:
        raise _unavailable(endpoint, f"raised {type(error).__name__}") from error
    if not isinstance(given, str):
        raise _unavailable(endpoint, f"returned a value of type {type(given).__name__}")
    text = given.strip()  # one that was read from a file ends with its line
    if not text:
        raise _unavailable(endpoint, "returned an empty text")
    if not is_sendable(text):
        raise _unavailable(endpoint, "returned a text with control characters")
    return text


def _unavailable(endpoint: Endpoint, what: str) -> KeyUnavailable:
    return KeyUnavailable(
        f"endpoint {endpoint.id!r}: its api_key function {what}; it must return the key as a str"
    )
