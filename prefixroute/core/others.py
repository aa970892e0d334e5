"""What other routers have at an endpoint, where they say so themselves."""

from __future__ import annotations

import msgspec

__all__ = ["Others", "OthersLoad", "OwnLoad"]


class OwnLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a router has at one endpoint, for other routers to know.

    Args:
        requests: In flight.
        tokens: Uncached prompt tokens sent and not computed yet, as far as this router can tell.
        ejected: Own requests failed there, so that it is ejected.
        draining: It is sent no new requests.
    """

    requests: int
    tokens: float
    ejected: bool
    draining: bool


class OthersLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What all other routers have at one endpoint, as they say.

    Args:
        requests: In flight.
        tokens: Uncached prompt tokens sent and not computed yet.
    """

    requests: int = 0
    tokens: float = 0.0


class Others(msgspec.Struct, frozen=True, kw_only=True):
    """The same, as an endpoint's accounting keeps it.

    Args:
        requests: As they said.
        tokens: As they said.
        at: When they said it, seconds.
        until: After which it is not to be believed any more, seconds.
    """

    requests: int
    tokens: float
    at: float
    until: float

    def fresh(self, now: float) -> bool:
        """Return whether it may still be believed."""
        return now <= self.until

    def tokens_left(self, rate: float, now: float) -> float:
        """Return the tokens that are not computed yet at ``rate`` tokens/s, if none were added."""
        return max(0.0, self.tokens - rate * max(0.0, now - self.at))
