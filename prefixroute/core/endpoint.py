"""What a router routes to: an ``Endpoint``, its URL and the paths below it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from prefixroute.errors import ConfigurationError

__all__ = ["Endpoint", "UrlParts", "normalise_url", "split_url"]

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlParts:
    """An endpoint's URL, taken apart once."""

    scheme: str
    host: str
    port: int | None
    path: str
    query: str
    userinfo: str | None

    @property
    def netloc(self) -> str:
        """The host, in brackets if it is an IPv6 address, with the port unless it is default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The normalised URL, without user and password."""
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.netloc}{self.path}{query}"

    @property
    def root(self) -> str:
        """The path without its trailing ``/v1``: where what is not below ``/v1`` goes."""
        return self.path[:-3] if self.path.endswith("/v1") else self.path

    def target(self, raw_path: str) -> str:
        """Return the path and query to ask this endpoint for, for one that a client asked for.

        ``/v1/X`` (and ``/v1/v1/X``) goes below the URL, anything else below :attr:`root`.
        """
        path, mark, query = raw_path.partition("?")
        if path == "/v1" or path.startswith("/v1/"):
            path = path[3:]
            if path == "/v1" or path.startswith("/v1/"):
                path = path[3:]
            path = self.path + path
        else:
            path = self.root + path
        if self.query:
            query, mark = (f"{self.query}&{query}" if query else self.query), "?"
        return f"{path or '/'}{mark}{query}"


def split_url(url: str) -> UrlParts:
    """Take an endpoint's URL apart and normalise it.

    Raises:
        ConfigurationError: No scheme or host, another scheme than http(s), or a bad port.
    """

    def refuse(rule: str) -> ConfigurationError:
        shown = url.rpartition("@")[2] if isinstance(url, str) else repr(url)
        return ConfigurationError(
            f"endpoint URL {shown!r}: {rule}; write it like 'http://gpu-0:8000/v1'"
        )

    if not isinstance(url, str) or "://" not in url:
        raise refuse("it needs a scheme, http:// or https://")
    try:
        parts = urlsplit(url.strip())
        host, port, scheme = parts.hostname, parts.port, parts.scheme.lower()
    except ValueError:
        raise refuse("its host or port is malformed") from None
    if scheme not in _DEFAULT_PORTS:
        raise refuse("its scheme must be http or https")
    if not host or any(c.isspace() for c in url.strip()):
        raise refuse("it needs a host, and no spaces")
    if parts.fragment:
        raise refuse("a fragment (#...) is never sent to a server")
    userinfo = parts.netloc.rpartition("@")[0] or None
    return UrlParts(
        scheme=scheme,
        host=host.lower(),
        port=None if port == _DEFAULT_PORTS[scheme] else port,
        path=parts.path.rstrip("/") or "/v1",
        query=parts.query,
        userinfo=userinfo,
    )


def normalise_url(url: str) -> str:
    """Return the one spelling of an endpoint's URL that ids and comparisons use.

    Raises:
        ConfigurationError: As :func:`split_url`.
    """
    return split_url(url).url


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place that requests can go to: the OpenAI-style base URL of an engine.

    Args:
        url: What you would give an SDK as ``base_url``, such as ``http://gpu-0:8000/v1``. It is
            normalised: scheme and host in lower case, no default port, no trailing slash; a bare
            host gets ``/v1``; ``user:password@`` becomes an ``Authorization`` header.
        id: The name that its place on the ring is computed from. Default: the normalised URL.
        weight: Share of the traffic relative to the others; 0 gives it none.
        models: The models that it serves; ``None``: all.
        tier: Endpoints of a higher tier are used only while none of a lower one can be.
        max_in_flight: The most requests that this router keeps open there; ``None``: no limit.
        api_key: Its own key, or a function that returns it. It replaces the caller's.
        auth_header: The header that carries the key. Default: the one that the caller used.
        headers: Sent with every request there.
        prepare: Called with the HTTP library's request just before it is sent, to sign it, say.

    Raises:
        ConfigurationError: A value that cannot work; the message names value, rule and remedy.
    """

    url: str
    id: str = field(default="", kw_only=True)
    weight: float = field(default=1.0, kw_only=True)
    models: Collection[str] | None = field(default=None, kw_only=True)
    tier: int = field(default=0, kw_only=True)
    max_in_flight: int | None = field(default=None, kw_only=True)
    api_key: str | Callable[[], str] | None = field(default=None, kw_only=True, repr=False)
    auth_header: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False, hash=False)
    prepare: Callable[..., object] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Normalise and check every field."""
        parts = split_url(self.url)
        headers = dict(self.headers)
        if parts.userinfo and self.api_key is None:
            token = base64.b64encode(unquote(parts.userinfo).encode()).decode()
            headers.setdefault("Authorization", f"Basic {token}")
        put = object.__setattr__  # the dataclass is frozen for everybody else
        put(self, "url", parts.url)
        put(self, "headers", headers)
        if self.id in (None, ""):
            put(self, "id", parts.url)
        if self.models is not None:
            if isinstance(self.models, str) or not all(isinstance(m, str) for m in self.models):
                raise self._refuse("models", self.models, "a collection of model names, or None")
            put(self, "models", frozenset(self.models))
        self._check()

    def _check(self) -> None:
        if not isinstance(self.id, str):
            raise self._refuse("id", self.id, "a str")
        if not _is_number(self.weight) or not math.isfinite(self.weight) or self.weight < 0:
            raise self._refuse("weight", self.weight, "a finite number, 0 or greater")
        if type(self.tier) is not int or self.tier < 0:
            raise self._refuse("tier", self.tier, "an int, 0 or greater")
        if self.max_in_flight is not None and (
            type(self.max_in_flight) is not int or self.max_in_flight < 1
        ):
            raise self._refuse("max_in_flight", self.max_in_flight, "an int, 1 or greater, or None")

    def _refuse(self, name: str, value: object, rule: str) -> ConfigurationError:
        return ConfigurationError(f"Endpoint({self.url!r}): {name}={value!r} must be {rule}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
