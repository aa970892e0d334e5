"""``Lending``: what the holders of leases tell the router, and what it counts of that."""

from __future__ import annotations

import logging

from prefixroute.core.ledger import Ledger
from prefixroute.core.load import Loan
from prefixroute.core.load_header import note_header, read_load_header
from prefixroute.core.logs import log
from prefixroute.core.stats import Stats
from prefixroute.core.warming import Warming

__all__ = ["Lending"]


class Lending(Warming):
    """Serves the leases that are held: it is their :class:`~prefixroute.core.lease.Lender`."""

    @property
    def _is_watched(self) -> bool:
        return bool(self._observers) or log.isEnabledFor(logging.DEBUG)

    # A generator that is dropped ends in a finalizer, which may run inside the lock: what it says
    # is then lost, and its lease released by whoever takes the lock next.

    def first_token(self, loan: Loan, cached_tokens: int | None) -> None:
        """Serve :meth:`Lease.first_token`."""
        if self.in_lock:
            return
        with self._locked() as (ledger, now):
            ledger.first_token(loan, cached_tokens, now)
            if loan.trial is not None and self._trials is not None:
                self._trials.first_token(loan.trial, now)

    def usage(self, loan: Loan, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Serve :meth:`Lease.usage`."""
        if self.in_lock:
            return
        with self._locked() as (ledger, _):
            ledger.usage(loan, prompt_tokens, cached_tokens)

    def pin(self, loan: Loan, response_id: str) -> None:
        """Serve :meth:`Lease.answered`."""
        if self.in_lock:
            return
        with self._locked() as (ledger, _):
            ledger.pin(loan, response_id)

    def heard_load(self, loan: Loan, header: str | None) -> None:
        """Serve :meth:`Lease.heard_load`."""
        load = read_load_header(header)
        if load is None or self.in_lock:
            return
        with self._locked() as (ledger, now):
            if loan.state.member and loan.epoch == ledger.epoch:
                note_header(loan.state, load, ledger.queues, now)

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
        if self.in_lock:
            return
        with self._locked() as (ledger, now):
            ledger.failed(loan, status, retry_after_s, digest, now, silent=silent)

    def release(self, loan: Loan, *, neutral: bool = False) -> None:
        """Serve :meth:`Lease.release` and :meth:`Lease.abandon`."""
        if loan.released:
            return
        if self.in_lock:
            self.dropped.append(loan)
            return
        with self._locked() as (ledger, now):
            self._end(ledger, loan, now, neutral=neutral)

    def _end(self, ledger: Ledger, loan: Loan, now: float, *, neutral: bool) -> None:
        trial, trials = loan.trial, self._trials
        ledger.release(loan, now, neutral=neutral)
        if trial is not None and trials is not None and loan.epoch == ledger.epoch:
            trials.ended(ledger, loan, trial, now, told=self._is_watched)

    def stats(self) -> Stats:
        """Return what was counted so far."""
        with self._locked() as (ledger, now):
            stats = ledger.stats(now)
            return stats if self._trials is None else self._trials.added_to(stats)
