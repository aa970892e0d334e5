"""What an exchange asks of its driver, what it is told, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

import msgspec

from prefixroute.core.decision import Decision
from prefixroute.core.lease import Lease
from prefixroute.core.waiters import Waiter

__all__ = [
    "Answer",
    "Failed",
    "Failure",
    "Keep",
    "Outcome",
    "Race",
    "Raced",
    "Responded",
    "Script",
    "Send",
    "Step",
    "Wait",
    "WaitForCapacity",
]

R = TypeVar("R")


class Failure(Enum):
    """How an attempt ended without a response."""

    NOT_CONNECTED = "not_connected"
    """Nothing was sent."""
    STALE = "stale"
    """The peer had closed an idle connection before it saw the request."""
    SENT = "sent"
    """The request may have reached the endpoint."""
    NOT_OURS = "not_ours"
    """It says nothing about the endpoint."""


class Send(msgspec.Struct, frozen=True):
    """Send the request to ``lease.endpoint``.

    ``within_s`` is the longest until the headers of the answer, seconds; ``None``: what the
    caller's own timeouts say. ``key`` is the endpoint's own; ``None``: the caller's is for it.
    """

    lease: Lease
    within_s: float | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return f"Send({self.lease!r}, within_s={self.within_s!r})"


class Race(msgspec.Struct, Generic[R], frozen=True):
    """Send as ``first`` says and, if nothing has come after ``after_s``, elsewhere too.

    The first answer wins; who has not answered by then is cancelled, and holds nothing.

    Attributes:
        first: The attempt to begin with.
        after_s: How long it runs alone, seconds.
        second: Called once, when it is late; returns the other attempt, or ``None``: there is
            nobody to ask.
        answers: Tells whether an outcome ends the race. What does not (a failure, a refusal) ends
            it only if nobody else is running.
    """

    first: Send
    after_s: float
    second: Callable[[], Send | None]
    answers: Callable[[Responded[R] | Failed], bool]


class Keep(msgspec.Struct, Generic[R], frozen=True):
    """Read a refusal's short body and give its connection back; answer with what has it.

    It may still become the answer of the call, but must hold nothing while others are tried.
    ``within_s`` is the longest that this may take, seconds; ``None``: as the driver likes.
    """

    refusal: Responded[R]
    within_s: float | None = None


class Wait(msgspec.Struct, frozen=True):
    """Sleep."""

    seconds: float


class WaitForCapacity(msgspec.Struct, frozen=True):
    """Wait until ``waiter`` has been given a lease, or for ``seconds``."""

    waiter: Waiter
    seconds: float


class Responded(msgspec.Struct, Generic[R], frozen=True):
    """The endpoint answered.

    ``retry_after_s`` is what its headers ask for, seconds; ``None``: nothing.
    """

    response: R
    status: int
    retry_after_s: float | None = None


class Failed(msgspec.Struct, frozen=True):
    """The attempt ended without a response.

    ``cut``: by its :attr:`Send.within_s`, rather than by what the caller's timeouts allow.
    """

    error: Exception
    failure: Failure
    cut: bool = False


class Raced(msgspec.Struct, Generic[R], frozen=True):
    """The attempts of a race that ended by themselves, in that order; the others were cancelled."""

    ended: tuple[tuple[Lease, Responded[R] | Failed], ...]


class Answer(msgspec.Struct, Generic[R], frozen=True):
    """How the call ends: with a response, or refused because everybody is full.

    ``lease`` is still to be released when the response ends; ``None``: it is already.
    ``decision`` is the one that led to the response.
    ``waited``: own waits between rounds have been spent, so that a caller should not add its own.
    """

    response: R | None
    lease: Lease | None
    decision: Decision | None = None
    retry_after_s: float = 1.0
    waited: bool = False


Step: TypeAlias = Send | Race[R] | Keep[R] | Wait | WaitForCapacity
Outcome: TypeAlias = Responded[R] | Failed | Raced[R] | None
Script: TypeAlias = Generator[Step[R], Outcome[R], Answer[R]]
