"""What a router says to the server, and what it asks, turn by turn."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from random import Random
from typing import Any, Final

import msgspec

from prefixroute.core.logs import log
from prefixroute.signals.fleet import VOTES, Shared, View, differences
from prefixroute.signals.hot import HOT_PLACES, HOT_PREFIXES, Snapshot, pooled, read_snapshot
from prefixroute.signals.link import Link
from prefixroute.signals.members import Accept, Membership

__all__ = ["FRESH_INTERVALS", "JITTER", "Talk"]

FRESH_INTERVALS: Final = 3.0
"""What was heard is believed for this many of them."""
JITTER: Final = 0.1
"""Share by which an interval varies, so that many routers do not speak together."""
_HOT_EVERY_S: Final = 30.0
_ABOUT_EVERY_S: Final = 600.0
_ABOUT_FOR_S: Final = 3600
_KEEP_MS: Final = 600_000
"""After which a fleet that has gone leaves nothing behind."""


class Talk:
    """One router's talk with the others, from when it is first heard of.

    Its methods raise what :data:`prefixroute.signals.link.LOSSES` names.

    Args:
        router: Whose talk it is.
        link: To the server.
        base: Begins every key and the channel.
        every_s: Interval, seconds.
        ttl_s: For how long the router counts when it says nothing more, seconds.
        share_membership: Whether drains and changes of the membership are told and followed.
        accept: Decides about URLs.
    """

    def __init__(
        self,
        router: Shared,
        link: Link,
        base: str,
        *,
        every_s: float,
        ttl_s: float,
        share_membership: bool,
        accept: Accept | None,
    ) -> None:
        self.owner = secrets.token_hex(8)
        self.view = View(router, fresh_s=FRESH_INTERVALS * every_s, settled_s=ttl_s)
        self.heard_at: float | None = None
        self.hot_at, self.hot_prefixes = 0.0, 0  # when they are told next; how many were heard of
        self._router, self._link, self._base = router, link, base
        self._every_s, self._ttl_ms = every_s, round(ttl_s * 1000)
        self._keep_ms = max(_KEEP_MS, 2 * self._ttl_ms)
        self._keys = [base + name for name in ("owners", "deadlines", "totals", "members")]
        self._members: Membership | None = None
        if share_membership:
            self._members = Membership(router, self.owner, accept)
        self._members_version = b"0"
        self._about_at, self._about = 0.0, ""
        self._began = time.monotonic()
        self._random = Random()  # noqa: S311 - spreads what is told

    def turn(self) -> None:
        """Say what this router has, hear what the others have, and do what else is due."""
        now_ms, routers, version, totals = self.say(self.view.share())
        self.view.take(int(now_ms), int(routers), version, totals)
        self.heard_at = time.monotonic()
        self._look_around(self.heard_at)

    def say(self, share: bytes, *, leaves: bool = False) -> Any:
        """Run beat.lua with this share; return its answer."""
        ttl_ms = 0 if leaves else self._ttl_ms
        given = (self.owner, ttl_ms, self._keep_ms, self._base + "events", str(VOTES), share)
        return self._link.script(self._keys, *given)

    def leave(self) -> None:
        """Say goodbye."""
        self.say(b"", leaves=True)

    def forgotten(self) -> None:
        """Note that the server may come back empty."""
        self._about_at = 0.0

    def hear(self, message: bytes) -> None:
        """Take a message: what it tells would else be heard in the next turn."""
        kind, content = message[:2], message[2:]
        if kind == b"e:":
            self.view.suspect([content.decode("utf-8", "replace")])
        elif kind == b"m:" and self._members is not None:
            self._members.take(content)

    def _look_around(self, now: float) -> None:
        """Do what is not due in every turn."""
        if self._members is not None:
            self._follow(self._members)
        if now >= self.hot_at:
            self._share_hot(now)
        ours = self.view.fingerprint
        if now >= self._about_at or ours != self._about:
            self._about_at, self._about = now + _ABOUT_EVERY_S, ours
            settings = msgspec.json.encode(dict(self._router.settings))
            self._link.command("SET", self._base + f"about:{ours}", settings, "EX", _ABOUT_FOR_S)
        for theirs in self.view.disagreeing(now):
            self._warn(ours, theirs)

    def _warn(self, ours: str, theirs: str) -> None:
        said = self._link.command("GET", self._base + f"about:{theirs}")
        try:
            settings = msgspec.json.decode(said or b"", type=dict[str, str])
            why = differences(self._router.settings, settings)
        except msgspec.DecodeError:
            why = "what differs is not known"
        count = self.view.fingerprints.get(theirs, 0)
        log.warning(
            "%d router(s) do not agree with this one where prompts belong: fingerprint %s here, "
            "%s there; %s. Give all of them the same endpoints and settings",
            count,
            ours,
            theirs,
            why,
        )

    # -- hot prefixes ------------------------------------------------------------

    def place(self, number: int) -> str:
        """Return the key of one of the places where routers leave what is hot."""
        return self._base + f"hot:{self._router.traffic_key}:{number}"

    def _share_hot(self, now: float) -> None:
        """Leave what was counted here, and read what others have left: often at first."""
        every_s = max(self._every_s, min(_HOT_EVERY_S, (now - self._began) / 4))
        self.hot_at = now + every_s * self._random.uniform(1 - JITTER, 1 + JITTER)
        self.leave_hot()
        self._read_hot()

    def leave_hot(self) -> None:
        """Leave what is hot here in one of the places."""
        hot = self._router.hot(HOT_PREFIXES)
        if not hot.totals:
            return
        snapshot = Snapshot(
            owner=self.owner,
            at_ms=self.view.now_ms,
            half_life_s=hot.half_life_s,
            totals={group: total for group, total in hot.totals.items() if type(group) is int},
            prefixes=list(hot.prefixes),
            tokens=dict(hot.tokens),
        )
        place = self.place(self._random.randrange(HOT_PLACES))
        seconds = max(1, round(2 * hot.half_life_s))
        self._link.command("SET", place, msgspec.msgpack.encode(snapshot), "EX", seconds)

    def _read_hot(self) -> None:
        places = self._link.command("MGET", *map(self.place, range(HOT_PLACES)))
        snapshots = [one for one in map(read_snapshot, places) if one is not None]
        hot = pooled([one for one in snapshots if one.owner != self.owner], self.view.now_ms)
        self.hot_prefixes = len(hot.prefixes)
        self._router.report_traffic(hot)

    # -- membership -------------------------------------------------

    def _follow(self, members: Membership) -> None:
        changes, key = members.changes(), self._keys[3]
        for name, record in changes.items():
            self._link.command("HSET", key, name, record)
            self._link.command("PUBLISH", self._base + "events", b"m:" + record)
        if changes:
            self._link.command("HINCRBY", key, "@", len(changes))
            self._link.command("PEXPIRE", key, self._keep_ms)
            members.said()
        if self.view.version != self._members_version:
            records = _records(self._link.command("HGETALL", key))
            members.apply(records)
            if excess := members.excess(records):
                self._link.command("HDEL", key, *excess)
            self._members_version = self.view.version


def _records(flat: Mapping[bytes, bytes] | list[bytes]) -> dict[str, bytes]:
    """Return the records in what a server answers to HGETALL, by id."""
    pairs = flat.items() if isinstance(flat, Mapping) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode("utf-8", "replace"): record for name, record in pairs if name != b"@"}
