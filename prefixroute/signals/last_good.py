"""Whether a source is to be believed: the last good list outlives its glitches."""

from __future__ import annotations

import math

from prefixroute.core.logs import log
from prefixroute.signals.sources.listing import Listing

__all__ = ["LastGood"]


class LastGood:
    """Decides on each listing and each failure; is told the time.

    A source that cannot be read changes nothing, however long. One that names too few endpoints is
    believed when it has done so for the grace time. One warning says that it starts, one line that
    it is over.

    Args:
        name: The source's, for the log.
        grace_s: The grace time, seconds.
        min_endpoints: Fewer than so many are too few.
    """

    def __init__(self, name: str, *, grace_s: float, min_endpoints: int) -> None:
        self._name, self._grace_s, self._min = name, grace_s, min_endpoints
        self._few_since: float | None = None
        self._told = False  # that too few are believed
        self.trouble: str | None = None
        """Why the last good list is kept, or was given up; ``None``: all is well."""
        self.misses = 0
        """Rounds in a row that failed."""

    def believes(self, listing: Listing, now: float) -> bool:
        """Return whether a listing is to be followed; else the last good one stays."""
        self.misses = 0
        count = sum(endpoint.weight > 0 for endpoint in listing.endpoints)
        if count >= self._min:
            self._few_since, self._told = None, False
            if self.trouble is not None:
                self.trouble = None
                log.info("%s is well again: %d endpoints", self._name, count)
            return True
        if self._few_since is None:
            self._few_since = now
        why = f"{count} endpoints, {self._min} are the least"
        if count == 0:
            why = f"no endpoint{f': {listing.note}' if listing.note else ''}"
        over = now >= self.doubts_until()
        self._in_trouble(f"names {why}")
        if over and not self._told:
            self._told = True
            log.warning("%s has long named %s; it is believed", self._name, why)
        return over

    def doubts_until(self) -> float:
        """Return when a listing of too few is to be believed; ``inf``: there is none."""
        return math.inf if self._few_since is None else self._few_since + self._grace_s

    def failed(self, error: Exception) -> None:
        """Note that the source could not be read."""
        self.misses += 1
        self._in_trouble(str(error) or type(error).__name__)

    def _in_trouble(self, why: str) -> None:
        started = self.trouble is None
        self.trouble = why
        if started:
            log.warning("%s: the last good list is kept: %s", self._name, why)
