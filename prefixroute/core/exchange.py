"""One call's script: which endpoint next, when to wait, when to stop. A generator without I/O.

A driver runs it::

    step = next(script)            # Send, Discard, Wait or WaitForCapacity
    step = script.send(outcome)    # Responded or Failed for a Send; None for the others
    StopIteration.value            # an Answer

The sync and the async driver in ``transports`` are a few lines each; whatever is decided is
decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from prefixroute.core.decision import Decision
from prefixroute.core.failover import Failover
from prefixroute.core.lease import Lease
from prefixroute.core.prompt import Prompt
from prefixroute.core.waiters import Waiter
from prefixroute.errors import AttemptsFailed, Saturated

if TYPE_CHECKING:
    from prefixroute.core.router import RouterCore

__all__ = [
    "Answer",
    "Discard",
    "Exchange",
    "Failed",
    "Failure",
    "Responded",
    "Send",
    "Step",
    "Wait",
    "WaitForCapacity",
]

R = TypeVar("R")

_SERVER_ERROR: Final = 500
_NOT_FOUND: Final = 404
_LONGEST_WAIT_S: Final = 60.0
"""Between rounds, whatever a Retry-After says; the strategies may wait longer."""


class Failure(Enum):
    """How an attempt ended without a response."""

    NOT_CONNECTED = "not_connected"
    STALE = "stale"
    SENT = "sent"
    NOT_OURS = "not_ours"


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request to ``lease.endpoint``."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Discard(Generic[R]):
    """Close a response that nobody will read."""

    response: R


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
    """The endpoint answered; its body is not read yet.

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


Step: TypeAlias = Send | Discard[R] | Wait | WaitForCapacity
Outcome: TypeAlias = Responded[R] | Failed | None
Script: TypeAlias = Generator[Step[R], Outcome[R], Answer[R]]


class Exchange(Generic[R]):
    """Runs one call.

    Args:
        core: The router.
        prompt: What is to be placed.
        failover: When to try again.
        max_attempts: The most distinct endpoints; 1 for a body that can be sent only once.
        digest: Returns a digest of the request, to count the 500s of one request once.
    """

    def __init__(
        self,
        core: RouterCore,
        prompt: Prompt,
        failover: Failover,
        *,
        max_attempts: int,
        digest: Callable[[], int],
    ) -> None:
        self._core, self._prompt, self._failover = core, prompt, failover
        self._max_attempts, self._digest = max_attempts, digest
        self._round: set[str] = set()  # tried in this round
        self._errors: list[tuple[str, Exception | int]] = []
        self._last: Responded[R] | None = None
        self._decision: Decision | None = None  # of that response
        self._last_error: Exception | None = None
        self._rounds = 0
        self._started = core.now()
        self._open: Lease | None = None

    def run(self) -> Script[R]:
        """Yield steps until the call is answered.

        Raises:
            Exception: The HTTP library's own error when no endpoint answered; its cause, an
                ``AttemptsFailed``, lists the attempts if there were several.
        """
        self._core.count_call()
        try:
            while True:
                lease = yield from self._lease()
                if lease is None:
                    if not self._errors:
                        return Answer(None, None)
                else:
                    answer = yield from self._attempt(lease)
                    if answer is not None:
                        return answer
                    if self._may_go_on():
                        continue
                if not (yield from self._next_round()):
                    return self._give_up()
        finally:
            if self._open is not None:  # the driver was cancelled, or raised
                self._open.abandon()

    def _lease(self) -> Generator[Step[R], Outcome[R], Lease | None]:
        try:
            self._open = self._core.lease(self._prompt, exclude=frozenset(self._round))
        except Saturated:
            if self._errors:
                return None
            self._open = yield from self._queue()
        return self._open

    def _queue(self) -> Generator[Step[R], Outcome[R], Lease | None]:
        """Wait in order for an endpoint that may take one more request."""
        waiter = self._core.queue(self._prompt)
        try:
            yield WaitForCapacity(waiter, self._failover.queue_timeout_s)
        except BaseException:
            lease = self._core.unqueue(waiter)
            if lease is not None:
                lease.abandon()
            raise
        return self._core.unqueue(waiter)

    def _attempt(self, lease: Lease) -> Generator[Step[R], Outcome[R], Answer[R] | None]:
        """Send once; return the answer, or ``None`` to go on elsewhere."""
        endpoint_id = lease.endpoint.id
        outcome = yield Send(lease)
        if isinstance(outcome, Failed) and outcome.failure is Failure.STALE:
            outcome = yield Send(lease)  # the peer had closed an idle connection: not its fault
        self._round.add(endpoint_id)
        if isinstance(outcome, Responded):
            return (yield from self._responded(lease, outcome))
        if outcome is not None:
            self._failed(lease, outcome)
            self._errors.append((endpoint_id, outcome.error))
            self._last_error = outcome.error
        return None

    def _responded(
        self, lease: Lease, outcome: Responded[R]
    ) -> Generator[Step[R], Outcome[R], Answer[R] | None]:
        status = outcome.status
        elsewhere = status in self._failover.statuses
        if status == _NOT_FOUND and self._prompt.pin is not None:
            elsewhere = True  # another process may have asked another endpoint for that response
        elif status >= _SERVER_ERROR or elsewhere:
            digest = self._digest() if status == _SERVER_ERROR else None
            lease.failed(status=status, retry_after_s=outcome.retry_after_s, digest=digest)
        if not elsewhere:
            self._open = None  # released when the response ends
            yield from self._discard()
            return Answer(outcome.response, lease, lease.decision, waited=self._rounds > 0)
        yield from self._discard()
        self._last, self._decision = outcome, lease.decision
        self._errors.append((lease.endpoint.id, status))
        self._close(lease)
        return None

    def _failed(self, lease: Lease, outcome: Failed) -> None:
        """Note a failure; raise what must not be tried elsewhere."""
        match outcome.failure:
            case Failure.NOT_OURS:
                self._open = None
                lease.abandon()
                raise outcome.error
            case Failure.NOT_CONNECTED:
                lease.failed(outcome.error)
                self._close(lease)
            case Failure.SENT | Failure.STALE:
                lease.failed(outcome.error)
                self._close(lease)
                if not self._failover.replay_sent:
                    raise outcome.error

    def _close(self, lease: Lease) -> None:
        self._open = None
        lease.release()

    def _discard(self) -> Generator[Step[R], Outcome[R], None]:
        if self._last is not None:
            response, self._last = self._last.response, None
            yield Discard(response)

    def _may_go_on(self) -> bool:
        return len(self._round) < self._max_attempts and self._core.may_retry()

    def _next_round(self) -> Generator[Step[R], Outcome[R], bool]:
        """Wait as the user's strategies say and start over; ``False``: they say stop."""
        failover = self._failover
        if failover.stop is None or self._max_attempts == 1 or not self._errors:
            return False
        from tenacity import RetryCallState  # noqa: PLC0415 - only who waits pays for it

        self._rounds += 1
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = self._rounds
        state.start_time, state.outcome_timestamp = self._started, self._core.now()
        if failover.stop(state):
            return False
        seconds = failover.wait(state) if failover.wait is not None else 0.0
        if self._last is not None and self._last.retry_after_s is not None:
            seconds = max(seconds, min(_LONGEST_WAIT_S, self._last.retry_after_s))
        state.upcoming_sleep = seconds
        yield Wait(seconds)
        self._round.clear()
        return self._core.may_retry()

    def _give_up(self) -> Answer[R]:
        if self._last is not None:
            return Answer(self._last.response, None, self._decision, waited=self._rounds > 0)
        failed = AttemptsFailed(self._errors)
        if self._last_error is None:
            raise failed
        if len(self._errors) > 1:
            raise self._last_error from failed
        raise self._last_error
