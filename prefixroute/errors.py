"""The exceptions that prefixroute raises itself.

Failures of the network stay what the HTTP library calls them, so that an application's own
handling goes on working; these are for what only prefixroute can know::

    PrefixrouteError
    ├── AttemptsFailed                       the cause of an error after several attempts
    ├── ConfigurationError (ValueError)      a value that cannot work, found at construction
    ├── UnknownEndpointError (KeyError)      no endpoint has this id or URL
    ├── UnsupportedClientError (TypeError)   a client that ``Router.wrap`` cannot copy
    ├── KeyUnavailable                       an ``api_key`` function gave no key
    ├── TokenizerUnavailable                 a tokenizer cannot count now: never reaches a caller
    ├── SourceUnavailable                    a source of endpoints cannot be read now
    ├── Saturated                            every eligible endpoint is at its ``max_in_flight``
    └── RouterClosedError (RuntimeError)     the router was closed before this call
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "AttemptsFailed",
    "ConfigurationError",
    "KeyUnavailable",
    "PrefixrouteError",
    "RouterClosedError",
    "Saturated",
    "SourceUnavailable",
    "TokenizerUnavailable",
    "UnknownEndpointError",
    "UnsupportedClientError",
]


class PrefixrouteError(Exception):
    """The root of every exception that prefixroute raises itself."""


class AttemptsFailed(PrefixrouteError):  # noqa: N818 - a list, read as the cause of an error
    """The cause of the error that a call ends with when several endpoints failed it.

    Attributes:
        attempts: For each attempt the endpoint's id and the error, or the status it answered.
    """

    def __init__(self, attempts: Iterable[tuple[str, Exception | int]]) -> None:
        self.attempts = tuple(attempts)
        shown = (
            f"{endpoint_id}: {f'status {what}' if isinstance(what, int) else type(what).__name__}"
            for endpoint_id, what in self.attempts
        )
        super().__init__("every attempt failed: " + "; ".join(shown))


class ConfigurationError(PrefixrouteError, ValueError):
    """A configuration value that cannot work: names the value, the rule and the remedy."""


class KeyUnavailable(PrefixrouteError):  # noqa: N818 - a state, which passes or stays
    """The function that was given as an endpoint's ``api_key`` gave no key; its error is the cause.

    It ends the call: another endpoint would hide that the keys cannot be had.
    """


class UnknownEndpointError(PrefixrouteError, KeyError):
    """A method was given an id or URL that no endpoint of the router has."""

    def __str__(self) -> str:
        """Return the message itself; ``KeyError`` would show its repr."""
        return str(self.args[0]) if self.args else ""


class UnsupportedClientError(PrefixrouteError, TypeError):
    """``Router.wrap`` was given a client that it cannot copy; the message names what works."""


class TokenizerUnavailable(PrefixrouteError):  # noqa: N818 - a state, which passes or stays
    """A tokenizer cannot count now. Tokenizers raise it; a router then counts bytes.

    The message goes into the log, once: it names the cause and the remedy, and no prompt.
    """


class Saturated(PrefixrouteError):  # noqa: N818 - a state that a caller handles, not a fault
    """Every eligible endpoint holds as many requests as its ``max_in_flight`` allows.

    Attributes:
        retry_after_s: A hint when to try again, seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceUnavailable(PrefixrouteError):  # noqa: N818 - a state, which passes or stays
    """A source of endpoints (a file, DNS, Kubernetes) cannot be read now.

    A ``Discovery`` keeps the last good list then. The message names the cause and shows no secret.
    """


class RouterClosedError(PrefixrouteError, RuntimeError):
    """The router was closed; its connection pools are gone."""
