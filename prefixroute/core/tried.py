"""What a call has tried so far, and how it ends if nobody answers."""

from __future__ import annotations

from typing import Generic, TypeVar

from prefixroute.core.decision import Decision
from prefixroute.core.steps import Answer, Responded
from prefixroute.errors import AttemptsFailed

__all__ = ["Tried"]

R = TypeVar("R")


class Tried(Generic[R]):
    """The attempts of one call.

    Attributes:
        ids: Of the endpoints that were tried in this round.
        refusal: The last refusal; it is the answer if nobody gives a better one.
        error: The last error of an attempt.
    """

    __slots__ = ("_attempts", "_decision", "error", "ids", "refusal")

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.refusal: Responded[R] | None = None
        self.error: Exception | None = None
        self._decision: Decision | None = None  # that led to the refusal
        self._attempts: list[tuple[str, Exception | int]] = []

    def __bool__(self) -> bool:
        return bool(self._attempts)

    def note(self, endpoint_id: str, ended: Exception | int) -> None:
        """Note an attempt: its error, or the status of its refusal."""
        self._attempts.append((endpoint_id, ended))
        if isinstance(ended, Exception):
            self.error = ended

    def keep(self, refusal: Responded[R], decision: Decision) -> None:
        """Keep a refusal, in memory, with the decision that led to it."""
        self.refusal, self._decision = refusal, decision

    def end(self, *, waited: bool) -> Answer[R]:
        """Return the last refusal as the answer.

        Args:
            waited: Own waits between rounds have been spent.

        Raises:
            Exception: The last error; there was no refusal.
        """
        if self.refusal is not None:
            return Answer(self.refusal.response, None, self._decision, waited=waited)
        if self.error is None:
            raise AttemptsFailed(self._attempts)
        raise self.told_by(self.error)

    def told_by(self, error: Exception) -> Exception:
        """Return an error whose cause lists the attempts, and whose cause was its own."""
        attempts, cause = AttemptsFailed(self._attempts), error.__cause__
        attempts.__cause__ = None if isinstance(cause, AttemptsFailed) else cause
        error.__cause__ = attempts
        return error
