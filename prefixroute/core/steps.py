"""What an exchange asks of its driver, what it is told, and how it ends."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from prefixroute.core.decision import Decision
from prefixroute.core.lease import Lease
from prefixroute.core.waiters import Waiter

__all__ = [
    "Answer",
    "Failed",
    "Failure",
    "Keep",
    "Outcome",
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


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request to ``lease.endpoint``."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Keep(Generic[R]):
    """Read a refusal's short body and give its connection back; answer with what has it.

    It may still become the answer of the call, but must hold nothing while others are tried.
    """

    refusal: Responded[R]


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WaitForCapacity:
    """Wait until ``waiter`` has been given a lease, or for ``seconds``."""

    waiter: Waiter
    seconds: float


@dataclass(frozen=True, slots=True)
class Responded(Generic[R]):
    """The endpoint answered.

    ``retry_after_s`` is what its headers ask for, seconds; ``None``: nothing.
    """

    response: R
    status: int
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt ended without a response."""

    error: Exception
    failure: Failure


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
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


Step: TypeAlias = Send | Keep[R] | Wait | WaitForCapacity
Outcome: TypeAlias = Responded[R] | Failed | None
Script: TypeAlias = Generator[Step[R], Outcome[R], Answer[R]]
