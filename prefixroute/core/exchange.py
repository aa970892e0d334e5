"""One call's script: which endpoint next, when to wait, when to stop. A generator without I/O.

A driver runs it::

    exchange = Exchange(core, prompt, failover, digest=...)
    script = exchange.run()
    step = next(script)            # Send, Keep, Wait or WaitForCapacity
    step = script.send(outcome)    # Responded or Failed for a Send, Responded for a Keep, or None
    StopIteration.value            # an Answer

and calls :meth:`Exchange.stop` if it is cancelled, or raises, on the way. The sync and the async
driver in ``transports`` are a few lines each; whatever is decided is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prefixroute.core.decision import Decision
from prefixroute.core.failover import Failover, Rounds
from prefixroute.core.lease import Lease
from prefixroute.core.prompt import Prompt
from prefixroute.core.steps import (
    Answer,
    Failed,
    Failure,
    Keep,
    Outcome,
    Responded,
    Script,
    Send,
    Step,
    Wait,
    WaitForCapacity,
)
from prefixroute.core.waiters import Waiter
from prefixroute.errors import AttemptsFailed, Saturated

if TYPE_CHECKING:
    from prefixroute.core.router import RouterCore

__all__ = ["Exchange"]

R = TypeVar("R")

_SERVER_ERROR: Final = 500
_NOT_FOUND: Final = 404


class Exchange(Generic[R]):
    """Runs one call.

    Args:
        core: The router.
        prompt: What is to be placed.
        failover: When to try again.
        digest: Returns a digest of the request, to count the 500s of one request once; ``None``:
            the request cannot be told from others.
        once: The call gets one attempt: its body can be sent only once, or its caller tries again
            itself.
        resendable: The body can be sent again over another connection.
        began: When the prompt began to be read, by the router's clock; ``None``: not known.
    """

    def __init__(
        self,
        core: RouterCore,
        prompt: Prompt,
        failover: Failover,
        *,
        digest: Callable[[], int | None],
        once: bool = False,
        resendable: bool = True,
        began: float | None = None,
    ) -> None:
        self._core, self._prompt, self._failover = core, prompt, failover
        self._digest, self._once, self._resendable = digest, once, resendable
        self._began = began
        self._tried: set[str] = set()  # in this round
        self._going_on = False  # another endpoint is to be tried in this round
        self._attempts: list[tuple[str, Exception | int]] = []
        self._last: Responded[R] | None = None  # refusal that is kept
        self._decision: Decision | None = None  # of that one
        self._last_error: Exception | None = None
        self._rounds = Rounds(failover, core.now(), once=once)
        self._open: Lease | None = None
        self._waiter: Waiter | None = None

    def run(self) -> Script[R]:
        """Yield steps until the call is answered.

        Raises:
            Exception: The HTTP library's own error when no endpoint answered; its cause, an
                ``AttemptsFailed``, lists the attempts.
        """
        self._core.count_call()
        while True:
            lease = yield from self._lease()
            if lease is not None:
                answer = yield from self._attempt(lease)
                if answer is not None:
                    return answer
                if self._going_on:
                    continue
            elif not self._attempts:
                return Answer(None, None)
            if not (yield from self._next_round()):
                return self._give_up()

    def stop(self) -> None:
        """Let go of whatever the call holds: its driver was cancelled, or raised.

        Takes the router's lock, so a finalizer must not call it: what a collected call held is
        released with the lease itself.
        """
        waiter, self._waiter = self._waiter, None
        lease, self._open = self._open, None
        if waiter is not None:
            lease = self._core.unqueue(waiter)
        if lease is not None:
            lease.abandon()

    # -- where to ----------------------------------------------------------------

    def _lease(self) -> Generator[Step[R], Outcome[R], Lease | None]:
        tried = frozenset(self._tried)
        try:
            self._open = self._core.lease(self._prompt, exclude=tried, began=self._began)
        except Saturated:
            self._waiter = self._core.queue(self._prompt, exclude=tried)
            if self._waiter is None:  # nobody is left to wait for
                return None
            yield WaitForCapacity(self._waiter, self._failover.queue_timeout_s)
            self._open = self._core.unqueue(self._waiter)
            self._waiter = None
        return self._open

    def _may_go_on(self) -> bool:
        most = min(self._failover.max_attempts, len(self._core.endpoints))
        return not self._once and len(self._tried) < most and self._core.may_retry()

    def _next_round(self) -> Generator[Step[R], Outcome[R], bool]:
        """Wait as the user's strategies say and start over; ``False``: they say stop."""
        if not (self._rounds.may_follow and self._core.may_retry()):
            return False
        last = self._last
        asked_s = None if last is None else last.retry_after_s
        wait_s = self._rounds.next_in_s(self._core.now(), self._last_error, asked_s)
        if wait_s is None:
            return False
        yield Wait(wait_s)
        self._tried.clear()
        return True

    # -- one attempt ---------------------------------------------------------------

    def _attempt(self, lease: Lease) -> Generator[Step[R], Outcome[R], Answer[R] | None]:
        """Send once; return the answer, or ``None`` to try elsewhere."""
        outcome = yield Send(lease)
        stale = isinstance(outcome, Failed) and outcome.failure is Failure.STALE
        if stale and self._resendable:
            outcome = yield Send(lease)  # the peer had closed an idle connection: not its fault
            stale = False
        self._tried.add(lease.endpoint.id)
        if isinstance(outcome, Responded):
            return (yield from self._responded(lease, outcome))
        if outcome is not None:
            self._failed(lease, outcome, stale=stale)
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
        if elsewhere:
            self._going_on = self._may_go_on()
            elsewhere = self._going_on or (status != _NOT_FOUND and self._rounds.may_follow)
        if not elsewhere:
            self._open = None  # released when the response ends
            return Answer(outcome.response, lease, lease.decision, waited=self._rounds.count > 0)
        self._attempts.append((lease.endpoint.id, status))
        kept = yield Keep(outcome)
        if isinstance(kept, Responded):
            self._last, self._decision = kept, lease.decision
        self._open = None
        lease.release()
        return None

    def _failed(self, lease: Lease, outcome: Failed, *, stale: bool) -> None:
        """Note a failure; raise what must not be tried elsewhere."""
        error, failure = outcome.error, outcome.failure
        if failure is Failure.NOT_OURS:
            self._open = None
            lease.abandon()
            raise error
        self._attempts.append((lease.endpoint.id, error))
        self._last_error = error
        self._open = None
        if stale:
            lease.abandon()
        else:
            lease.failed(error)
            lease.release()
        if failure is not Failure.NOT_CONNECTED and not self._failover.replay_sent:
            raise self._with_attempts(error)
        self._going_on = self._may_go_on()

    # -- the end -------------------------------------------------------------------

    def _give_up(self) -> Answer[R]:
        if self._last is not None:
            waited = self._rounds.count > 0
            return Answer(self._last.response, None, self._decision, waited=waited)
        if self._last_error is None:
            raise AttemptsFailed(self._attempts)
        raise self._with_attempts(self._last_error)

    def _with_attempts(self, error: Exception) -> Exception:
        """Return an error whose cause lists the attempts, and whose cause was its own."""
        attempts, cause = AttemptsFailed(self._attempts), error.__cause__
        attempts.__cause__ = None if isinstance(cause, AttemptsFailed) else cause
        error.__cause__ = attempts
        return error
