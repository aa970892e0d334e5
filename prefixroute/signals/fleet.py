"""One router among others: what it says in its turn, and what it makes of the answer. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.logs import log
from prefixroute.core.others import OthersLoad, OwnLoad
from prefixroute.core.traffic import Hot
from prefixroute.errors import UnknownEndpointError

__all__ = ["VOTES", "FleetStats", "Shared", "View", "differences"]

VOTES: Final = 0.1
"""Part of the routers, and two at least, that have to eject an endpoint before the others do."""

_MOST_OUT: Final = 0.5
"""A router that has ejected more of its endpoints has no vote: its own network is ill."""

_MOST_TOKENS: Final = 10**12
_SHOWN: Final = 5
_TOTALS: Final = msgspec.msgpack.Decoder(list[str])


class Shared(Protocol):
    """What is asked of a router."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints, in the order given."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal ones agree."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """What the fingerprint is made of."""
        ...

    @property
    def traffic_key(self) -> str:
        """Whose traffic can be compared."""
        ...

    def own_loads(self) -> Mapping[str, OwnLoad]:
        """Return what this router has at each endpoint."""
        ...

    def report_others(self, loads: Mapping[str, OthersLoad], *, for_s: float) -> None:
        """Take what the others have there."""
        ...

    def suspect(self, endpoint: Endpoint | str) -> bool:
        """Eject an endpoint for a while that others found to fail."""
        ...

    def hot(self, limit: int) -> Hot:
        """Return what is hot."""
        ...

    def report_traffic(self, hot: Hot) -> None:
        """Take what others counted."""
        ...

    def start_drain(self, endpoint: Endpoint | str) -> None:
        """Send an endpoint no new requests."""
        ...

    def readmit(self, endpoint: Endpoint | str) -> None:
        """Take an endpoint in again."""
        ...

    def add(self, endpoint: Endpoint | str) -> Endpoint:
        """Add an endpoint."""
        ...

    def remove(self, endpoint: Endpoint | str) -> None:
        """Take an endpoint out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats:
    """How a router's talk with the others goes.

    Args:
        connected: The last turn succeeded.
        peers: Other routers, when they were last counted.
        age_s: Time since others were last heard of, seconds; ``None``: never yet.
        turns: How often this router spoke and listened.
        losses: How often the server could not be reached any more.
        commands_per_s: Sent to the server, on average since the start.
        bytes_per_s: Of arguments and answers, on average since the start.
        fingerprints: Routers by fingerprint, this one included.
        hot_prefixes: Prefixes of which others have told how often they are asked for.
    """

    connected: bool = False
    peers: int = 0
    age_s: float | None = None
    turns: int = 0
    losses: int = 0
    commands_per_s: float = 0.0
    bytes_per_s: float = 0.0
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    hot_prefixes: int = 0


class View:
    """What one router says, and what it has heard.

    Args:
        router: Is told what the others have.
        fresh_s: How long what is heard may be believed, seconds.
        settled_s: Time for which routers of another fingerprint are let be: a change of the
            endpoints reaches the others a little later, and who was killed counts for a while.
    """

    def __init__(self, router: Shared, *, fresh_s: float, settled_s: float) -> None:
        self._router, self._fresh_s, self._settled_s = router, fresh_s, settled_s
        self._said: dict[str, OwnLoad] = {}
        self._print: tuple[tuple[Endpoint, ...], str] | None = None
        self._others_since: dict[str, float] = {}  # fingerprints, and since when they are there
        self._told: set[str] = set()
        self._heard: set[str] = set()  # endpoints ejected on others' word, while they say so
        self.now_ms = self.routers = 0
        self.version = b"0"  # of the members
        self.fingerprints: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """The router's, computed when its endpoints have changed."""
        endpoints = self._router.endpoints
        if self._print is None or self._print[0] is not endpoints:
            self._print = endpoints, self._router.fingerprint
        return self._print[1]

    def share(self) -> bytes:
        """Return this router's share, as beat.lua reads it."""
        self._said = loads = dict(self._router.own_loads())
        out = sum(load.ejected for load in loads.values())
        votes = out == 1 or out <= _MOST_OUT * len(loads)
        fields: list[str | int] = [f"f:{self.fingerprint}", 1]
        for name, load in loads.items():
            if load.requests:
                fields += [f"n:{name}", load.requests]
            if load.tokens >= 1.0:
                fields += [f"t:{name}", _whole(load.tokens)]
            if load.ejected and votes:
                fields += [f"e:{name}", 1]
        return msgspec.msgpack.encode(fields)

    def take(self, now_ms: int, routers: int, version: bytes, totals: bytes) -> None:
        """Take the answer: report what the others have, and eject what many of them have."""
        self.now_ms, self.routers, self.version = now_ms, routers, version
        flat = _TOTALS.decode(totals)
        sums = {field: int(count) for field, count in zip(flat[::2], flat[1::2], strict=True)}
        self._router.report_others(
            {
                name: OthersLoad(
                    requests=max(0, sums.get(f"n:{name}", 0) - own.requests),
                    tokens=float(max(0, sums.get(f"t:{name}", 0) - _whole(own.tokens))),
                )
                for name, own in self._said.items()
            },
            for_s=self._fresh_s,
        )
        self.fingerprints = {
            name[2:]: count for name, count in sums.items() if name.startswith("f:")
        }
        quorum = max(2, -(-routers * VOTES // 1))
        out = {name[2:] for name, n in sums.items() if name.startswith("e:") and n >= quorum}
        self._heard &= out
        self.suspect(out)

    def suspect(self, names: Iterable[str]) -> None:
        """Eject what others have ejected, once for as long as they say so."""
        for name in names:
            own = self._said.get(name)
            if own is None or own.ejected or name in self._heard:
                continue
            self._heard.add(name)
            try:
                if self._router.suspect(name):
                    log.info("%s is ejected on the word of other routers", name)
            except UnknownEndpointError:
                continue

    def disagreeing(self, now: float) -> list[str]:
        """Return other fingerprints that have been there for long, each one once.

        Args:
            now: Monotonic seconds.
        """
        others = self.fingerprints.keys() - {self.fingerprint}
        self._told &= others
        self._others_since = {one: self._others_since.get(one, now) for one in others}
        found = [
            one
            for one, since in self._others_since.items()
            if one not in self._told and now - since > self._settled_s
        ]
        self._told.update(found)
        return sorted(found)


def _whole(tokens: float) -> int:
    return min(round(tokens), _MOST_TOKENS)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return in words how the settings behind two fingerprints differ."""
    found = [
        f"{name}: {ours.get(name, 'none')} here, {theirs.get(name, 'none')} there"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    shown, more = found[:_SHOWN], len(found) - _SHOWN
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown)
