"""From the caller's request to the one that is sent to an endpoint, and the way back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load_header import ASK, ASKED_FORMAT
from prefixroute.core.urls import UrlParts, split_url
from prefixroute.transports.library import Library

__all__ = ["PLACEHOLDER_HOST", "attempt_request", "caller_location"]

PLACEHOLDER_HOST: Final = "prefixroute.invalid"
"""A host reserved never to exist (RFC 2606): fails at once where the transport was forgotten."""

_KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
_HOST: Final = b"host"
_ASK: Final = (ASK.encode(), ASKED_FORMAT.encode())


@lru_cache(maxsize=1024)
def _parts(url: str) -> UrlParts:
    return split_url(url)


@lru_cache(maxsize=4096)
def _target(library: Library, url: str, raw_path: str) -> Any:
    parts = _parts(url)
    return library.module.URL(f"{parts.scheme}://{parts.netloc}{parts.target(raw_path)}")


def attempt_request(
    library: Library, request: Any, endpoint: Endpoint, key: str | None, *, ask_load: bool = False
) -> Any:
    """Return a new request for an endpoint; the caller's own is not touched.

    The body and every header are passed on as they are, but for URL, Host and, where the endpoint
    has its own, the key.

    Args:
        library: Of the request.
        request: The caller's.
        endpoint: Whom it is for.
        key: The endpoint's own; ``None``: the caller's is passed on.
        ask_load: Ask the engine for its load, unless the caller does already.
    """
    url = _target(library, endpoint.url, request.url.raw_path.decode("ascii"))
    made = library.module.Request(
        request.method,
        url,
        headers=_headers(request.headers.raw, url, endpoint, key, ask_load=ask_load),
        stream=request.stream,
        extensions=dict(request.extensions),  # httpx before 0.28 would share the caller's
    )
    timeouts = request.extensions.get("timeout")
    if isinstance(timeouts, dict):
        made.extensions["timeout"] = dict(timeouts)  # its own: see ``Limit`` and ``Refusal``
    if endpoint.prepare is not None:
        if isinstance(request.stream, library.module.ByteStream):
            made.read()  # a signature may cover the body
        endpoint.prepare(made)
    return made


def _headers(
    given: list[tuple[bytes, bytes]],
    url: Any,
    endpoint: Endpoint,
    key: str | None,
    *,
    ask_load: bool,
) -> list[tuple[bytes, bytes]]:
    dropped = {_HOST}
    own = [(name.encode("latin-1"), value.encode()) for name, value in endpoint.headers.items()]
    dropped.update(name.lower() for name, _ in own)
    if key is not None:
        own.append(_key_header(endpoint, key, given))
        dropped.add(own[-1][0].lower())
    if not dropped.isdisjoint(_KEY_HEADERS) or key is not None:
        dropped |= _KEY_HEADERS  # whichever way it authorises, the caller's key is not for it
    kept = [pair for pair in given if pair[0].lower() not in dropped]
    if ask_load and all(name.lower() != _ASK[0] for name, _ in [*kept, *own]):
        own.append(_ASK)
    return [(b"Host", url.netloc), *kept, *own]


def _key_header(
    endpoint: Endpoint, key: str, given: list[tuple[bytes, bytes]]
) -> tuple[bytes, bytes]:
    if endpoint.auth_header is not None:
        name = endpoint.auth_header.encode("latin-1")
    else:  # the one that the caller used
        used = (name for name, _ in given if name.lower() in _KEY_HEADERS)
        name = next(used, b"Authorization")
    bearer = name.lower() == b"authorization" and " " not in key
    return name, (f"Bearer {key}" if bearer else key).encode()


def caller_location(location: str, sent: Any, endpoint: Endpoint, asked: Any) -> str | None:
    """Return a redirect's target as the caller may follow it; ``None``: it must not be.

    A redirect to the endpoint itself is turned into one to the placeholder, so that it is routed
    again; one to anywhere else would carry keys and prompts to a stranger.

    Args:
        location: The header.
        sent: The URL that was redirected.
        endpoint: Who answered.
        asked: The URL that the caller asked for.
    """
    try:
        target = sent.join(location)
    except Exception:  # noqa: BLE001 - whatever the library cannot read
        return None
    if (target.scheme, target.host, target.port) != (sent.scheme, sent.host, sent.port):
        return None
    parts = _parts(endpoint.url)
    path = target.raw_path.decode("ascii")
    if path.startswith(f"{parts.path}/"):
        path = "/v1" + path[len(parts.path) :]
    elif path.startswith(f"{parts.root}/"):
        path = path[len(parts.root) :]
    else:
        return None  # outside of what routing can name
    return str(asked.copy_with(raw_path=path.encode("ascii")))
