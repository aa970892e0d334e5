"""httpx and httpx2: unrelated classes of the same names. Which one is it, and what is its own?"""

from __future__ import annotations

import errno
import importlib
from functools import cache, cached_property
from ssl import SSLContext
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

from prefixroute.core.steps import Failure
from prefixroute.errors import ConfigurationError

__all__ = ["Library", "LibraryName", "library_named", "library_of", "library_or_none"]

LibraryName: TypeAlias = Literal["httpx", "httpx2"]
_NAMES: Final = ("httpx", "httpx2")

_NOT_CONNECTED: Final = ("ConnectError", "ConnectTimeout", "ProxyError")
_SENT: Final = ("TimeoutException", "NetworkError", "RemoteProtocolError")
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL})
"""No descriptor, buffer or port is left."""
_DEEPEST: Final = 8
_BROKEN: Final = ("ReadError", "WriteError", "CloseError", "RemoteProtocolError")


class Library:
    """One of the two libraries.

    Args:
        module: The imported library.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module: Any = module
        self.name: str = module.__name__
        self._not_connected = tuple(getattr(module, name) for name in _NOT_CONNECTED)
        self._sent = tuple(getattr(module, name) for name in _SENT)
        self._broken = tuple(getattr(module, name) for name in _BROKEN)

    def make_transport(self, tls: SSLContext | None = None) -> Any:
        """Return a connection pool for a router's own use, with ``tls`` if that is given."""
        return self.module.HTTPTransport(verify=tls or self._tls, limits=self._limits())

    def make_async_transport(self, tls: SSLContext | None = None) -> Any:
        """Return an async connection pool; see :meth:`make_transport`."""
        return self.module.AsyncHTTPTransport(verify=tls or self._tls, limits=self._limits())

    @cached_property
    def _tls(self) -> Any:
        return self.module.create_ssl_context()  # which takes a while: once for all event loops

    def _limits(self) -> Any:
        # It serves all endpoints and all clients: what bounds requests is the router.
        return self.module.Limits(max_connections=None, max_keepalive_connections=256)

    def failure(self, error: Exception, *, stale: bool) -> Failure:
        """Return what an error of the inner transport means.

        Args:
            error: What was raised instead of a response.
            stale: The attempt used an idle connection and failed while or just after writing.
        """
        if isinstance(error, self.module.PoolTimeout):
            return Failure.NOT_OURS  # our own pool is full: that says nothing about the endpoint
        if isinstance(error, self._not_connected):
            return Failure.NOT_OURS if _is_exhausted(error) else Failure.NOT_CONNECTED
        if stale and isinstance(error, self._broken):
            return Failure.STALE
        if isinstance(error, OSError):  # of TLS, say: not all of them become the library's own
            return Failure.NOT_OURS if _is_exhausted(error) else Failure.SENT
        return Failure.SENT if isinstance(error, self._sent) else Failure.NOT_OURS

    def is_timeout(self, error: Exception) -> bool:
        """Return whether an error says that time was up."""
        return isinstance(error, self.module.TimeoutException)

    def is_request_error(self, error: Exception) -> bool:
        """Return whether an error carries the request that it is about."""
        return isinstance(error, self.module.RequestError)


def _is_exhausted(error: BaseException | None) -> bool:
    """Return whether this process is out of what a connection takes, whoever it would be to."""
    for _ in range(_DEEPEST):
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return True
        error = error.__cause__ or error.__context__
    return False


@cache
def library_named(name: str) -> Library:
    """Return the library of this name.

    Raises:
        ConfigurationError: Another name, or the library is not installed.
    """
    if name not in _NAMES:
        raise ConfigurationError(f"library={name!r} must be 'httpx' or 'httpx2'")
    try:
        return Library(importlib.import_module(name))
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"library={name!r} is not installed: pip install 'prefixroute[{name}]'"
        ) from None


def library_or_none(kind: type) -> Library | None:
    """Return the library that a class of request, transport or client belongs to, if to one."""
    hashable: Any = kind
    return _owner(hashable)


@cache
def _owner(kind: type) -> Library | None:
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0]
        if name in _NAMES:
            return library_named(name)
    return None


def library_of(kind: type) -> Library:
    """Return the library that a class of request, transport or client belongs to.

    Raises:
        ConfigurationError: It is of neither.
    """
    library = library_or_none(kind)
    if library is None:
        raise ConfigurationError(
            f"{kind.__module__}.{kind.__qualname__} is of neither httpx nor httpx2"
        )
    return library
