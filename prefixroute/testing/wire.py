"""What goes over the wire of a simulated engine: a request, and what is done about it."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field

__all__ = [
    "Action",
    "Data",
    "Drop",
    "Head",
    "Hold",
    "ReceivedRequest",
    "RequestError",
    "Script",
    "Wait",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request as it arrived at a simulated engine.

    Attributes:
        replica: Index of the replica that received it.
        method: GET, POST and so on.
        target: Path and query, as sent.
        headers: Names and values in the order sent.
        body: The bytes of the body.
        at_s: When it arrived, simulated seconds.
        reused_connection: Its connection has carried a request before.
    """

    replica: int
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    at_s: float = 0.0
    reused_connection: bool = False

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of a name in any case, or None."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    def json(self) -> object:
        """The body, decoded.

        Raises:
            ValueError: It isn't JSON.
        """
        decoded: object = json.loads(self.body)
        return decoded


class RequestError(Exception):
    """A request that is answered with an error, for what is in it."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        """Make one.

        Args:
            status: The HTTP status.
            message: For people.
            param: The field that is wrong, if it is one.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Head:
    """Send the status and headers at a simulated time; without a length the body is chunked."""

    at_s: float
    status: int
    headers: tuple[tuple[str, str], ...]

    @property
    def has_length(self) -> bool:
        """Whether the headers say how long the body is."""
        return any(name == "content-length" for name, _ in self.headers)


@dataclass(frozen=True, slots=True)
class Data:
    """Send bytes of the body at a simulated time."""

    at_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Close or reset the connection at a simulated time, whatever was sent so far."""

    at_s: float
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until a simulated time."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing for now; ask again a little later."""


Action = Head | Data | Drop | Wait | Hold
"""One step of answering a request."""

Script = Generator[Action, None, None]
"""All steps of answering a request. Closing it early cancels the request."""
