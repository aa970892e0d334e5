"""Who failed a request lately, so that a caller who asks again is not sent back to them."""

from __future__ import annotations

from typing import Final

from prefixroute.core.bounded import BoundedDict

__all__ = ["FailedCalls"]

_KEPT_S: Final = 90.0
"""A caller's retry comes within this: the SDKs wait for a minute at most."""

_REQUESTS: Final = 1024
"""Requests that are remembered: what fails within that time, in an outage that is not over."""


class FailedCalls:
    """Remembers, for a while and by its digest, which endpoints failed a request.

    Nothing of the request is kept but the digest. Two callers who send the same request share what
    is known of it: an endpoint that just failed it for one is a poor choice for the other's retry.
    """

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: BoundedDict[int, tuple[float, frozenset[str]]] = BoundedDict(_REQUESTS)

    def note(self, request: int, endpoint_id: str, now: float) -> None:
        """Remember that an endpoint failed a request.

        Args:
            request: Its digest.
            endpoint_id: Who failed it.
            now: Seconds.
        """
        self._failed.put(request, (now, self.of(request, now) | {endpoint_id}))

    def of(self, request: int, now: float) -> frozenset[str]:
        """Return the ids of those that failed a request lately.

        Args:
            request: Its digest.
            now: Seconds.
        """
        last, failed = self._failed.peek(request) or (now, frozenset())
        return failed if now - last <= _KEPT_S else frozenset()
