"""What a source says, and what every source is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from prefixroute.core.checks import refusal, suggestion
from prefixroute.core.endpoint import Endpoint
from prefixroute.errors import ConfigurationError, SourceUnavailable

if TYPE_CHECKING:
    import ssl

__all__ = [
    "SETTINGS",
    "EndpointSettings",
    "Listing",
    "Reader",
    "Source",
    "check_address",
    "check_settings",
    "url_of",
]

_TRIAL_HOST: Final = "endpoint.invalid"
_PORTS: Final = 65535


class EndpointSettings(TypedDict, total=False):
    """What :class:`Endpoint` takes besides its URL and id: the same for all that a source finds."""

    weight: float
    models: Collection[str] | None
    tier: int
    max_in_flight: int | None
    api_key: str | Callable[[], str] | None
    auth_header: str | None
    headers: Mapping[str, str]
    prepare: Callable[..., object] | None
    ssl_context: ssl.SSLContext | None


SETTINGS: Final = tuple(EndpointSettings.__annotations__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Whom a source names, at one moment; those it no longer names are drained.

    Args:
        endpoints: May be given requests. Their order is irrelevant; no id or URL comes twice.
        resting: Get no new requests for now, but keep their place: pods that are not ready.
        again_in_s: When to ask again, seconds; 0: at once, for a source that waits by itself;
            ``None``: after the interval of the :class:`Discovery`.
        note: If nobody is named: why, in a few words.
    """

    endpoints: tuple[Endpoint, ...]
    resting: tuple[Endpoint, ...] = ()
    again_in_s: float | None = None
    note: str = ""


class Reader(ABC):
    """Reads one source again and again, in one thread; remembers what helps it to do so."""

    backs_off = True
    """Whether a source that fails is asked ever less often; not where asking costs nobody."""

    @abstractmethod
    def read(self) -> Listing:
        """Return whom the source names; may block.

        Raises:
            SourceUnavailable: It cannot say.
        """

    def interrupt(self) -> None:  # noqa: B027 - most cannot
        """From another thread: end a ``read`` that waits, if that is possible."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Let go of everything; in the thread that reads."""


class Source(ABC):
    """Where endpoints are listed: a frozen value, the same in every process."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> Reader:
        """Return what reads it; does no I/O yet."""

    def endpoints(self) -> list[Endpoint]:
        """Return those that may be given requests now: a router's first list.

        Raises:
            SourceUnavailable: The source cannot be read, or names nobody.
        """
        reader = self.open()
        try:
            listing = reader.read()
        finally:
            reader.close()
        if not listing.endpoints:
            why = f": {listing.note}" if listing.note else ""
            raise SourceUnavailable(f"{self!r} names no endpoint that may be used now{why}")
        return list(listing.endpoints)


def url_of(scheme: str, host: str, port: int | None, path: str) -> str:
    """Return the URL of an address or a name; an IPv6 address gets its brackets."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}{'' if port is None else f':{port}'}{path}"


def check_address(owner: str, *, scheme: object, port: object, path: object) -> None:
    """Refuse what no URL can be made of.

    Raises:
        ConfigurationError: With the value, the rule and the remedy.
    """
    if scheme not in ("http", "https"):
        raise refusal(owner, "scheme", scheme, "'http' or 'https'")
    if port is not None and (type(port) is not int or not 0 < port <= _PORTS):
        raise refusal(owner, "port", port, f"an int, 1 to {_PORTS}, or None")
    if not isinstance(path, str) or not path.startswith("/"):
        raise refusal(owner, "path", path, "a path such as '/v1'")


def check_settings(owner: str, settings: object, *, scheme: str = "http") -> None:
    """Refuse settings that no endpoint can have.

    Raises:
        ConfigurationError: Names the setting and the rule; a key or a header's value never shows.
    """
    if not isinstance(settings, Mapping):
        shown = type(settings).__name__
        raise ConfigurationError(
            f"{owner}(settings=...) was given a {shown}; it must be a mapping such as "
            "{'api_key': key}"
        )
    for name in settings:
        if name not in SETTINGS:
            raise ConfigurationError(
                f"{owner}(settings=...) has {name!r}, which no endpoint has; "
                f"{suggestion(name, SETTINGS)}"
            )
    Endpoint(f"{scheme}://{_TRIAL_HOST}", **settings)
