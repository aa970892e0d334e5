"""What a router routes to: an ``Endpoint``."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from prefixroute.core.checks import check_number
from prefixroute.core.urls import shown_url, split_url
from prefixroute.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

__all__ = ["Endpoint", "is_sendable"]

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_MAX_WEIGHT: Final = 1e15
"""Bytes of memory may serve as weights; sums over all endpoints stay exact enough."""


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """One place that requests can go to: the OpenAI-style base URL of an engine.

    Args:
        url: What you would give an SDK as ``base_url``, such as ``http://gpu-0:8000/v1``. It is
            normalised: scheme and host in lower case, no default port, no trailing slash; a bare
            host gets ``/v1``; ``user:password@`` becomes an ``Authorization`` header.
        id: The name that its place on the ring is computed from, and that logs and metrics show.
            Default: the normalised URL, with a digest in place of a key in its query.
        weight: Share of the traffic relative to the others; 0 gives it none.
        models: The models that it serves; ``None``: all.
        tier: Endpoints of a higher tier are used only while none of a lower one can be.
        max_in_flight: The most requests that this router keeps open there; ``None``: no limit.
        api_key: Its own key, which replaces the caller's, or a function that returns it. That is
            called for every attempt, in the thread or on the event loop that sends, so it must
            return at once. When its key is refused with 401 it is called again, and another key is
            tried once. If it raises, the call ends with a :class:`KeyUnavailable`.
        auth_header: The header that carries the key. Default: the one that the caller used.
        headers: Sent with every request there.
        prepare: Called with the HTTP library's request just before it is sent, to sign it, say.
        ssl_context: TLS settings of its own: whom it is trusted by, the client certificate that it
            is shown. Default: those of the client or transport that sends. A context cannot be
            pickled: ``dataclasses.replace(endpoint, ssl_context=...)`` adds it in each process.

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
    ssl_context: ssl.SSLContext | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Normalise and check every field."""
        parts = split_url(self.url)
        put = object.__setattr__  # the dataclass is frozen for everybody else
        put(self, "url", parts.url)
        if self.id in (None, ""):
            put(self, "id", parts.shown)
        put(self, "headers", self._checked_headers())
        put(self, "weight", self._checked_weight())
        if self.models is not None:
            put(self, "models", self._checked_models())
        self._check()
        if parts.userinfo and self.api_key is None and not self._authorises():
            token = base64.b64encode(unquote(parts.userinfo).encode()).decode()
            put(self, "headers", {**self.headers, "Authorization": f"Basic {token}"})

    def without_secrets(self) -> Endpoint:
        """Return it without key, headers, signing and TLS, and with its URL as it may be shown."""
        bare = replace(
            self,
            url=shown_url(self.url),
            api_key=None,
            headers={},
            prepare=None,
            ssl_context=None,
        )
        return self if bare == self else bare

    def __repr__(self) -> str:
        """Return it without anything secret: keys, headers and the URL's query."""
        given = [repr(shown_url(self.url))]
        for part in fields(self)[1:]:
            value = getattr(self, part.name)
            if part.repr and value != part.default and value != shown_url(self.url):
                given.append(f"{part.name}={value!r}")
        return f"Endpoint({', '.join(given)})"

    def _authorises(self) -> bool:
        return any(name.lower() == "authorization" for name in self.headers)

    def _checked_headers(self) -> dict[str, str]:
        # Values may be secrets: they never show in a message.
        rule = "a mapping of header names to values, both str without control characters"
        if not isinstance(self.headers, Mapping):
            raise self._refuse("headers", type(self.headers).__name__, rule)
        for name, value in self.headers.items():
            if not (_is_name(name) and _is_header_text(value)):
                raise self._refuse(f"headers[{name!r}]", type(value).__name__, rule)
        return {name: value.strip() for name, value in self.headers.items()}

    def _checked_weight(self) -> float:
        try:
            return check_number("Endpoint", "weight", self.weight, at_most=_MAX_WEIGHT)
        except ConfigurationError as error:
            url = shown_url(self.url)
            raise ConfigurationError(f"{error} (endpoint {url!r}); 0 drains it") from None

    def _checked_models(self) -> frozenset[str]:
        rule = "a collection of model names, not empty, or None for all models"
        if isinstance(self.models, str | bytes) or not isinstance(self.models, Iterable):
            raise self._refuse("models", self.models, rule)
        models = list(self.models)
        if not models or not all(_is_name(model) for model in models):
            raise self._refuse("models", models, rule)
        return frozenset(models)

    def _check(self) -> None:
        if not isinstance(self.id, str):
            raise self._refuse("id", self.id, "a str")
        if type(self.tier) is not int or self.tier < 0:
            raise self._refuse("tier", self.tier, "an int, 0 or greater")
        if self.max_in_flight is not None and (
            type(self.max_in_flight) is not int or self.max_in_flight < 1
        ):
            raise self._refuse("max_in_flight", self.max_in_flight, "an int, 1 or greater, or None")
        key, header = self.api_key, self.auth_header
        if isinstance(key, str) and not key.strip(" \t"):
            key = ""
        if key is not None and not callable(key) and not _is_name(key):
            kind = type(key).__name__ if key != "" else ""  # it never shows in a message
            raise self._refuse("api_key", kind, "a str, a function that returns one, or None")
        if _is_coroutine_function(key):
            rule = "a function that returns the key at once: let a task of yours keep it fresh"
            raise self._refuse("api_key", "async", rule)
        if header is not None and not _is_name(header):
            raise self._refuse("auth_header", header, "the name of a header, or None")
        if not (self.prepare is None or callable(self.prepare)):
            raise self._refuse("prepare", self.prepare, "a function of the request, or None")
        self._check_tls()

    def _check_tls(self) -> None:
        context = self.ssl_context
        if context is None:
            return
        if not callable(getattr(context, "wrap_bio", None)):  # nothing here loads ssl
            raise self._refuse("ssl_context", type(context).__name__, "an ssl.SSLContext, or None")
        if not self.url.startswith("https:"):
            raise self._refuse("ssl_context", "given", "left out, or the URL be https://")

    def _refuse(self, name: str, value: object, rule: str) -> ConfigurationError:
        url = shown_url(self.url)
        return ConfigurationError(f"Endpoint({url!r}): {name}={value!r} must be {rule}")


def is_sendable(value: str) -> bool:
    """Return whether a header can carry a text: the libraries show one that cannot in an error."""
    return _CONTROL.search(value) is None


def _is_coroutine_function(value: object) -> bool:
    """Return whether calling a value gives an awaitable, as far as can be seen."""
    call = getattr(type(value), "__call__", None)  # noqa: B004 - an object's method, if it has one
    return inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(call)


def _is_header_text(value: object) -> bool:
    return isinstance(value, str) and is_sendable(value)


def _is_name(value: object) -> bool:
    return _is_header_text(value) and value != ""
