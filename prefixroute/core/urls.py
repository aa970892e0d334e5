"""The URL of an endpoint: its one spelling, what a message may show of it, the paths below it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from prefixroute.core.hashing import digest64, utf8
from prefixroute.errors import ConfigurationError

__all__ = ["UrlParts", "normalise_url", "shown_url", "split_url"]

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_SECRET: Final = re.compile(
    r"(?i)((?:^|[&;])[^=&;]*(?:key|token|secret|sig|pass|pwd|auth|cred|code)[^=&;]*=)([^&;]+)"
)
"""A parameter of a query whose name says that its value is nobody's business."""


class UrlParts(msgspec.Struct, frozen=True, kw_only=True):
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
    def shown(self) -> str:
        """The normalised URL with digests for what its query may hold in secrets."""
        query = f"?{_SECRET.sub(_digest, self.query)}" if self.query else ""
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


def _digest(match: re.Match[str]) -> str:
    return f"{match[1]}{digest64(utf8(match[2])) >> 32:08x}"


def split_url(url: str) -> UrlParts:
    """Take an endpoint's URL apart and normalise it.

    Raises:
        ConfigurationError: No scheme or host, another scheme than http(s), or a bad port.
    """

    def refuse(rule: str) -> ConfigurationError:
        shown = ascii(str(url).rpartition("@")[2].partition("?")[0])  # nothing secret in a message
        return ConfigurationError(
            f"endpoint URL {shown}: {rule}; write it like 'http://gpu-0:8000/v1'"
        )

    if not str(url).strip().isprintable():  # lone surrogates are not
        raise refuse("it has characters that no URL has")
    if "://" not in str(url):
        raise refuse("it needs a scheme, http:// or https://")
    try:
        parts = urlsplit(str(url).strip())
        host, port, scheme = parts.hostname, parts.port, parts.scheme.lower()
    except ValueError:
        raise refuse("its host or port is malformed") from None
    if scheme not in _DEFAULT_PORTS:
        raise refuse("its scheme must be http or https")
    if not host or any(c.isspace() for c in str(url).strip()):
        raise refuse("it needs a host, and no spaces")
    if port == 0:
        raise refuse("port 0 is no server's")
    if parts.fragment:
        raise refuse("a fragment (#...) is never sent to a server")
    userinfo = parts.netloc.rpartition("@")[0] or None
    return UrlParts(
        scheme=scheme,
        host=_one_spelling(host.lower()),
        port=None if port == _DEFAULT_PORTS[scheme] else port,
        path=parts.path.rstrip("/") or "/v1",
        query=parts.query,
        userinfo=userinfo,
    )


def _one_spelling(host: str) -> str:
    """Return an IPv6 address in its shortest form; other hosts as they are."""
    if ":" not in host:
        return host
    try:
        return ip_address(host).compressed
    except ValueError:
        return host


def shown_url(text: object) -> str:
    """Return what a message may show of a URL that somebody wrote: no password, no key."""
    try:
        return split_url(str(text)).shown
    except ConfigurationError:
        return str(text).rpartition("@")[2].partition("?")[0]


def normalise_url(url: str) -> str:
    """Return the one spelling of an endpoint's URL that ids and comparisons use.

    Raises:
        ConfigurationError: As :func:`split_url`.
    """
    return split_url(url).url
