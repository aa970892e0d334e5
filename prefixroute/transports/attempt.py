"""From the caller's request to the one that is sent to an endpoint."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from prefixroute.core.endpoint import Endpoint, UrlParts, split_url
from prefixroute.transports.library import Library

__all__ = ["PLACEHOLDER_HOST", "attempt_request", "caller_location"]

PLACEHOLDER_HOST: Final = "prefixroute.invalid"
"""A host reserved never to exist (RFC 2606): fails at once where the transport was forgotten."""

_KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
_HOST: Final = b"host"


@lru_cache(maxsize=4096)
def _parts(url: str) -> UrlParts:
    return split_url(url)


@lru_cache(maxsize=4096)
def _target(library: Library, url: str, raw_path: str) -> Any:
    parts = _parts(url)
    return library.module.URL(f"{parts.scheme}://{parts.netloc}{parts.target(raw_path)}")


def attempt_request(library: Library, request: Any, endpoint: Endpoint) -> Any:
    """Return a new request for an endpoint; the caller's own is not touched.

    The body and every header are passed on as they are, but for URL, Host and, where the endpoint
    has its own, the key.
    """
    raw_path = request.url.raw_path.decode("ascii")
    url = _target(library, endpoint.url, raw_path)
    headers = [pair for pair in request.headers.raw if pair[0].lower() != _HOST]
    if endpoint.api_key is not None or _own_key(endpoint):
        used = [name for name, _ in headers if name.lower() in _KEY_HEADERS]
        headers = [pair for pair in headers if pair[0].lower() not in _KEY_HEADERS]
        if endpoint.api_key is not None:
            headers.append(_key_header(endpoint, used))
    if endpoint.headers:
        own = {name.lower().encode("latin-1") for name in endpoint.headers}
        headers = [pair for pair in headers if pair[0].lower() not in own]
        headers += [(k.encode("latin-1"), v.encode()) for k, v in endpoint.headers.items()]
    made = library.module.Request(
        request.method,
        url,
        headers=[(b"Host", _parts(endpoint.url).netloc.encode("ascii")), *headers],
        stream=request.stream,
        extensions=dict(request.extensions),
    )
    if endpoint.prepare is not None:
        endpoint.prepare(made)
    return made


def _own_key(endpoint: Endpoint) -> bool:
    """Whether the endpoint's own headers carry a key, so that the caller's must not be sent."""
    return any(
        name.lower().encode("latin-1", "replace") in _KEY_HEADERS for name in endpoint.headers
    )


def _key_header(endpoint: Endpoint, used: list[bytes]) -> tuple[bytes, bytes]:
    key = endpoint.api_key() if callable(endpoint.api_key) else endpoint.api_key
    name = (endpoint.auth_header or "").encode("latin-1") or (used[0] if used else b"Authorization")
    bearer = name.lower() == b"authorization" and " " not in str(key)
    return name, (f"Bearer {key}" if bearer else str(key)).encode()


def caller_location(location: str, endpoint: Endpoint) -> str | None:
    """Return a redirect's target as the caller may follow it; ``None``: to another origin.

    A redirect to the endpoint itself is turned into one to the placeholder, so that it is routed
    again; one to anywhere else would carry keys and prompts to a stranger.
    """
    if "://" not in location and not location.startswith("//"):
        return location
    parts = _parts(endpoint.url)
    scheme, _, rest = location.partition("://")
    netloc, slash, path = rest.partition("/")
    if scheme.lower() != parts.scheme or netloc.lower() not in _spellings(parts):
        return None
    path = slash + path
    if parts.path and path.startswith(parts.path + "/"):
        path = "/v1" + path[len(parts.path) :]
    return f"https://{PLACEHOLDER_HOST}{path or '/'}"


def _spellings(parts: UrlParts) -> set[str]:
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    bare = parts.netloc if parts.port is None else parts.netloc.rpartition(":")[0]
    return {parts.netloc, f"{bare}:{port}"}
