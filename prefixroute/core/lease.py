"""A lease: one request's place at an endpoint, from the decision to the end of its reply."""

from __future__ import annotations

import errno
from collections import deque
from types import TracebackType
from typing import Final, Protocol, Self

from prefixroute.core.decision import Decision
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load import Loan

__all__ = ["Lease", "Lender"]

_NETWORK_ERRORS: Final = frozenset(
    {
        "TransportError",  # httpx and httpx2
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ConnectionError",  # Python and requests
        "Timeout",  # requests
        "ChunkedEncodingError",
        "IncompleteRead",  # http.client
        "APIConnectionError",  # the SDKs, around any of these
        "gaierror",  # Python
        "SSLError",
    }
)
"""Classes of network failures; by name, for none of these libraries is imported here."""

_OWN_ERRORS: Final = frozenset({"PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"})
"""Subclasses of these that say nothing about the endpoint."""

_HANGS: Final = frozenset(
    {"ReadTimeout", "WriteTimeout", "ServerTimeoutError", "APITimeoutError"}  # aiohttp, the SDKs
)
"""Somebody was there, and did not answer in time."""

_UNREACHABLE: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN}
)


class Lender(Protocol):
    """Who keeps count of leases: the router, as a lease sees it."""

    dropped: deque[Loan]

    def first_token(self, loan: Loan, cached_tokens: int | None) -> None:
        """Serve :meth:`Lease.first_token`."""
        ...

    def usage(self, loan: Loan, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Serve :meth:`Lease.usage`."""
        ...

    def failed(
        self,
        loan: Loan,
        status: int | None,
        retry_after_s: float | None,
        digest: int | None,
        *,
        silent: bool,
    ) -> None:
        """Serve :meth:`Lease.failed`."""
        ...

    def pin(self, loan: Loan, response_id: str) -> None:
        """Serve :meth:`Lease.answered`."""
        ...

    def heard_load(self, loan: Loan, header: str | None) -> None:
        """Serve :meth:`Lease.heard_load`."""
        ...

    def release(self, loan: Loan, *, neutral: bool = False) -> None:
        """Serve :meth:`Lease.release` and :meth:`Lease.abandon`."""
        ...


class Lease:
    """Counts a request as in flight at ``endpoint`` until it is released, exactly once.

    Use it as a context manager, or call :meth:`release` in the end. A lease that is dropped is
    released when it is collected. All methods may be called from any thread, and repeated.
    """

    __slots__ = ("__weakref__", "_core", "_loan", "decision")

    def __init__(self, core: Lender, loan: Loan, decision: Decision) -> None:
        self._core, self._loan, self.decision = core, loan, decision

    def __repr__(self) -> str:
        state = "released" if self._loan.released else "open"
        return f"<Lease {self.decision.endpoint.id}, {state}>"

    @property
    def endpoint(self) -> Endpoint:
        """Where the request goes."""
        return self.decision.endpoint

    def first_token(self, cached_tokens: int | None = None) -> None:
        """Note that the first token of a streamed reply has come.

        Args:
            cached_tokens: Prompt tokens that the reply reports as cached; ``None``: not known
                (yet; see :meth:`usage`).
        """
        self._core.first_token(self._loan, cached_tokens)

    def usage(self, *, prompt_tokens: int | None = None, cached_tokens: int | None = None) -> None:
        """Note the reply's own count of its prompt's tokens; ``None``: not reported."""
        self._core.usage(self._loan, prompt_tokens, cached_tokens)

    def failed(
        self,
        error: BaseException | None = None,
        status: int | None = None,
        *,
        retry_after_s: float | None = None,
        digest: int | None = None,
    ) -> None:
        """Note that the endpoint failed the request; :meth:`release` is still to be called.

        A 429 or 503 leaves the endpoint alone for a while, other 5xx and errors count towards its
        ejection, other 4xx and 501 say nothing about it.

        Args:
            error: What the HTTP library raised.
            status: What the endpoint answered.
            retry_after_s: What its Retry-After said, seconds.
            digest: Of the request; a request that fails everywhere counts once over all endpoints.
        """
        if error is None and status is None:
            raise ValueError("failed() needs the error or the status that the endpoint gave")
        silent = status is None and not _is_hang(error)
        self._core.failed(self._loan, status, retry_after_s, digest, silent=silent)

    def answered(self, response_id: str) -> None:
        """Remember who gave this response, for requests whose ``previous_response_id`` it is."""
        self._core.pin(self._loan, response_id)

    def heard_load(self, header: str | None) -> None:
        """Note what the reply's header ``endpoint-load-metrics`` says of the engine's load.

        Args:
            header: Its value, in ORCA's TEXT or JSON format; what cannot be read is ignored, and so
                is ``None``.
        """
        self._core.heard_load(self._loan, header)

    def abandon(self) -> None:
        """Release, saying nothing about the endpoint: the caller left before it answered."""
        self._core.release(self._loan, neutral=True)

    def release(self) -> None:
        """End the lease; if nothing failed, the endpoint is known to be well."""
        self._core.release(self._loan)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.release()
            return
        if is_transport_error(error):
            self.failed(error)
        self.abandon()

    def __del__(self) -> None:
        # Never takes the lock: a collection can run while this very thread holds it.
        if not self._loan.released:
            self._core.dropped.append(self._loan)


def _is_hang(error: BaseException | None) -> bool:
    return not _HANGS.isdisjoint(cls.__name__ for cls in type(error).__mro__)


def is_transport_error(error: BaseException) -> bool:
    """Return whether an error came from the network rather than from the caller's own code.

    Statuses that a library raises, files that are missing, a caller's own deadline (a bare
    ``TimeoutError``, where a socket's has a text) did not.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if not names.isdisjoint(_OWN_ERRORS):
        return False
    if "URLError" in names:  # urllib, whose HTTPError is one too
        return "HTTPError" not in names
    if isinstance(error, TimeoutError) and error.args:
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return not names.isdisjoint(_NETWORK_ERRORS)
