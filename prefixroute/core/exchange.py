"""One call's script: which endpoint next, when to wait, when to stop. A generator without I/O.

A driver runs it::

    exchange = Exchange(core, prompt, failover, digest=...)
    script = exchange.run()
    step = next(script)            # Send, Race, Keep, Wait or WaitForCapacity
    step = script.send(outcome)    # Responded or Failed for a Send, Raced for a Race,
                                   # Responded for a Keep, or None
    StopIteration.value            # an Answer

and calls :meth:`Exchange.stop` if it is cancelled, or raises, on the way. The sync and the async
driver in ``transports`` are a few lines each; whatever is decided is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from prefixroute.core.decision import Reason
from prefixroute.core.failover import Failover, Rounds
from prefixroute.core.keys import key_of
from prefixroute.core.lease import Lease
from prefixroute.core.prompt import Prompt
from prefixroute.core.steps import (
    Answer,
    Failed,
    Failure,
    Keep,
    Outcome,
    Race,
    Raced,
    Responded,
    Script,
    Send,
    Step,
    Wait,
    WaitForCapacity,
)
from prefixroute.core.tried import Tried
from prefixroute.core.waiters import Waiter
from prefixroute.errors import KeyUnavailable, Saturated

if TYPE_CHECKING:
    from prefixroute.core.router import RouterCore

__all__ = ["Exchange"]

R = TypeVar("R")

_Ended: TypeAlias = tuple[Lease, Responded[R] | Failed]

_SERVER_ERROR: Final = 500
_CLIENT_ERROR: Final = 400
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_ASKED_AGAIN: Final = frozenset({408, 409, 429})
"""Statuses below 500 after which the SDKs call again."""
_FAIR_SHARE: Final = 0.5
"""Of the deadline: an attempt that was cut to less says nothing about its endpoint."""


class Exchange(Generic[R]):
    """Runs one call.

    Args:
        core: The router.
        prompt: What is to be placed.
        failover: When to try again.
        digest: Returns a digest of the request, to count the 500s of one request once; ``None``:
            the request cannot be told from others.
        identity: Returns a digest of the request that tells it from all others, by which the
            caller's own retry finds who has failed it; ``None``: it has none.
        retry: It is such a retry: the call gets one attempt, elsewhere if there is an elsewhere.
        once: The call gets one attempt: its body can be sent only once.
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
        identity: Callable[[], int | None] = lambda: None,
        retry: bool = False,
        once: bool = False,
        resendable: bool = True,
        began: float | None = None,
    ) -> None:
        self._core, self._prompt, self._failover = core, prompt, failover
        self._digest, self._identity, self._retry = digest, identity, retry
        self._once, self._resendable = once or retry, resendable
        self._began = began
        self._tried: Tried[R] = Tried()
        self._going_on = False  # another endpoint is to be tried in this round
        started = core.now()
        self._rounds = Rounds(failover, started, once=self._once)
        self._until = None if failover.deadline_s is None else started + failover.deadline_s
        self._open: dict[Lease, Send] = {}
        self._waiter: Waiter | None = None

    def run(self) -> Script[R]:
        """Yield steps until the call is answered.

        Raises:
            Exception: The HTTP library's own error when no endpoint answered; its cause, an
                ``AttemptsFailed``, lists the attempts.
            KeyUnavailable: The function that gives an endpoint's key gave none.
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
            elif not self._tried:
                return Answer(None, None)
            if not (yield from self._next_round()):
                return self._tried.end(waited=self._rounds.count > 0)

    def stop(self) -> None:
        """Let go of whatever the call holds: its driver was cancelled, or raised.

        Takes the router's lock, so a finalizer must not call it: what a collected call held is
        released with the lease itself.
        """
        waiter, self._waiter = self._waiter, None
        granted = self._core.unqueue(waiter) if waiter is not None else None
        if granted is not None:
            granted.abandon()
        while self._open:
            self._open.popitem()[0].abandon()

    def _left_s(self) -> float | None:
        """Return what the deadline leaves, seconds; ``None``: there is none."""
        return None if self._until is None else max(0.0, self._until - self._core.now())

    # -- where to ----------------------------------------------------------------

    def _lease(self) -> Generator[Step[R], Outcome[R], Lease | None]:
        tried = frozenset(self._tried.ids)
        try:
            avoid = self._core.failed_lately(self._identity() if self._retry else None)
            return self._core.lease(self._prompt, exclude=tried, avoid=avoid, began=self._began)
        except Saturated:
            self._waiter = self._core.queue(self._prompt, exclude=tried)
            if self._waiter is None:  # nobody is left to wait for
                return None
        patience_s, left_s = self._failover.queue_timeout_s, self._left_s()
        yield WaitForCapacity(
            self._waiter, patience_s if left_s is None else min(patience_s, left_s)
        )
        lease = self._core.unqueue(self._waiter)
        self._waiter = None
        if lease is not None and self._left_s() == 0.0:
            lease.abandon()
            return None
        return lease

    def _may_go_on(self) -> bool:
        most = min(self._failover.max_attempts, len(self._core.endpoints))
        possible = not self._once and len(self._tried.ids) < most and self._left_s() != 0.0
        return possible and self._core.may_retry()

    def _next_round(self) -> Generator[Step[R], Outcome[R], bool]:
        """Wait as the user's strategies say and start over; ``False``: they say stop."""
        if self._left_s() == 0.0 or not (self._rounds.may_follow and self._core.may_retry()):
            return False
        last = self._tried.refusal
        asked_s = None if last is None else last.retry_after_s
        now, left_s = self._core.now(), self._left_s()
        wait_s = self._rounds.next_in_s(now, self._tried.error, asked_s, left_s)
        if wait_s is None:
            return False
        yield Wait(wait_s)
        self._tried.ids.clear()
        return True

    # -- one attempt, or two of which one is late -------------------------------------

    def _attempt(self, lease: Lease) -> Generator[Step[R], Outcome[R], Answer[R] | None]:
        """Send; return the answer, or ``None`` to try elsewhere."""
        ended = yield from self._send(lease)
        again = len(ended) == 1 and self._resendable and _is_stale(ended[0][1])
        if again:
            ended = yield from self._send(lease)  # the peer had closed an idle connection
        self._tried.ids.add(lease.endpoint.id)
        for loser in self._open.keys() - {one for one, _ in ended}:
            del self._open[loser]
            loser.abandon()
        for beaten, outcome in ended[:-1]:
            yield from self._beaten(beaten, outcome)
        last, outcome = ended[-1]
        outcome = yield from self._with_new_key(last, outcome)
        if isinstance(outcome, Responded):
            return (yield from self._responded(last, outcome))
        self._failed(last, outcome, stale=_is_stale(outcome) and not again)
        return None

    def _send(self, lease: Lease) -> Generator[Step[R], Outcome[R], Sequence[_Ended[R]]]:
        """Send once, and elsewhere too if the answer is late; return which attempts ended how."""
        first, after_s = self._sending(lease), self._failover.hedge_after_s
        if after_s is None or self._once:
            outcome = yield first
        else:
            outcome = yield Race(first, after_s, self._second, self._answers)
        if isinstance(outcome, Raced):
            return outcome.ended
        if outcome is None:
            raise TypeError("a Send needs an outcome")
        return ((lease, outcome),)

    def _sending(self, lease: Lease) -> Send:
        try:
            key = key_of(lease.endpoint)
        except BaseException:
            lease.abandon()
            raise
        self._open[lease] = send = Send(lease, self._left_s(), key)
        return send

    def _with_new_key(
        self, lease: Lease, outcome: Responded[R] | Failed
    ) -> Generator[Step[R], Outcome[R], Responded[R] | Failed]:
        """Send once more if the key was refused and the function that gave it gives another."""
        if not isinstance(outcome, Responded) or outcome.status != _UNAUTHORIZED:
            return outcome
        renewable = self._resendable and callable(lease.endpoint.api_key)
        if not renewable or self._left_s() == 0.0:
            return outcome
        try:
            key = key_of(lease.endpoint)
        except KeyUnavailable:
            yield Keep(outcome, self._left_s())
            raise
        if key == self._open[lease].key:
            return outcome
        self._tried.note(lease.endpoint.id, _UNAUTHORIZED)
        yield Keep(outcome, self._left_s())
        self._open[lease] = send = Send(lease, self._left_s(), key)
        again = yield send
        if not isinstance(again, Responded | Failed):
            raise TypeError("a Send needs an outcome")
        return again

    def _second(self) -> Send | None:
        """Return the attempt that a late answer calls for; ``None``: there is nobody to ask."""
        self._tried.ids.update(lease.endpoint.id for lease in self._open)
        if not self._may_go_on():
            return None
        try:
            lease = self._core.lease(self._prompt, exclude=frozenset(self._tried.ids))
        except Saturated:
            return None
        if lease.decision.reason is Reason.PANIC:
            lease.abandon()  # one that is late is better than one that is ejected
            return None
        try:
            send = self._sending(lease)
        except KeyUnavailable:
            return None  # the first attempt may still be answered
        self._tried.ids.add(lease.endpoint.id)
        return send

    def _answers(self, outcome: Responded[R] | Failed) -> bool:
        return isinstance(outcome, Responded) and not self._is_refusal(outcome.status)

    # -- what came of it ---------------------------------------------------------------

    def _is_missing(self, status: int) -> bool:
        """Return whether another endpoint may have what this one has not: the pinned response."""
        return status == _NOT_FOUND and self._prompt.pin is not None

    def _is_refusal(self, status: int) -> bool:
        return self._is_missing(status) or status in self._failover.statuses

    def _count(self, lease: Lease, outcome: Responded[R]) -> None:
        """Tell the lease what its endpoint answered."""
        status = outcome.status
        if status >= _SERVER_ERROR or status in _ASKED_AGAIN:
            self._core.note_failed(self._identity(), lease.endpoint.id)
        failed = status >= _SERVER_ERROR or status in self._failover.statuses
        if failed and not self._is_missing(status):
            digest = self._digest() if status == _SERVER_ERROR else None
            lease.failed(status=status, retry_after_s=outcome.retry_after_s, digest=digest)
        elif status < _CLIENT_ERROR and not self._prompt.stream:  # whose error may be to come
            self._core.note_served(self._digest)

    def _responded(
        self, lease: Lease, outcome: Responded[R]
    ) -> Generator[Step[R], Outcome[R], Answer[R] | None]:
        self._count(lease, outcome)
        elsewhere = self._is_refusal(outcome.status)
        if elsewhere:
            self._going_on = self._may_go_on()
            may_wait = outcome.status != _NOT_FOUND and self._rounds.may_follow
            elsewhere = self._going_on or may_wait
        if not elsewhere:
            del self._open[lease]  # released when the response ends
            return Answer(outcome.response, lease, lease.decision, waited=self._rounds.count > 0)
        yield from self._keep(lease, outcome)
        return None

    def _beaten(
        self, lease: Lease, outcome: Responded[R] | Failed
    ) -> Generator[Step[R], Outcome[R], None]:
        """Note what ended, without an answer, before the other attempt of a race did."""
        if isinstance(outcome, Responded):
            self._count(lease, outcome)
            yield from self._keep(lease, outcome)
        else:
            self._note(lease, outcome, stale=_is_stale(outcome))

    def _keep(self, lease: Lease, outcome: Responded[R]) -> Generator[Step[R], Outcome[R], None]:
        """Keep a refusal: it is the answer if nobody gives a better one."""
        self._tried.note(lease.endpoint.id, outcome.status)
        kept = yield Keep(outcome, self._left_s())
        if isinstance(kept, Responded):
            self._tried.keep(kept, lease.decision)
        del self._open[lease]
        lease.release()

    def _failed(self, lease: Lease, outcome: Failed, *, stale: bool) -> None:
        """Note a failure; raise what must not be tried elsewhere."""
        self._note(lease, outcome, stale=stale)
        if outcome.failure is Failure.NOT_OURS:
            raise outcome.error
        if outcome.failure is not Failure.NOT_CONNECTED and not self._failover.replay_sent:
            raise self._tried.told_by(outcome.error)
        self._going_on = self._may_go_on()

    def _note(self, lease: Lease, outcome: Failed, *, stale: bool) -> None:
        """End the lease of an attempt that failed."""
        given_s, deadline_s = self._open.pop(lease).within_s, self._failover.deadline_s
        neutral = stale or outcome.failure is Failure.NOT_OURS
        if outcome.cut and given_s is not None and deadline_s is not None:
            neutral = neutral or given_s < _FAIR_SHARE * deadline_s
        if outcome.failure is not Failure.NOT_OURS:
            self._tried.note(lease.endpoint.id, outcome.error)
            if not stale:
                self._core.note_failed(self._identity(), lease.endpoint.id)
        if neutral:
            lease.abandon()
        else:
            lease.failed(outcome.error)
            lease.release()


def _is_stale(outcome: Responded[R] | Failed) -> bool:
    return isinstance(outcome, Failed) and outcome.failure is Failure.STALE
