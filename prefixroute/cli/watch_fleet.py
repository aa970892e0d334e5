"""Reads what the routers of a fleet leave in Redis or Valkey: nothing is written there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from prefixroute.cli.watch_view import EndpointView, SourceLost, View
from prefixroute.core.hottest import HotPrefix, hottest
from prefixroute.core.sharing import traffic_key
from prefixroute.signals.hot import HOT_PLACES, pooled, read_snapshot
from prefixroute.signals.link import LOSSES, Client, connector, shown_server
from prefixroute.signals.members import Record

__all__ = ["FleetSource"]

_TIMEOUT_S: Final = 5.0
_SHOWN_PREFIXES: Final = 8
_MOST_ENDPOINTS: Final = 1000
_RECORD: Final = msgspec.msgpack.Decoder(Record)
_SETTINGS: Final = msgspec.json.Decoder(dict[str, str])
_ENDPOINT: Final = "endpoint "

_NOT_TOLD: Final = (
    "a fleet's routers tell each other no hit rates, times, spills, failures and engines' queues, "
    "and of health ejections and drains: an application's metrics tell them"
)
_NOBODY: Final = "there is no router of this fleet (--namespace names another)"
_DISAGREE: Final = "routers do not agree where prompts belong, by fingerprint: {counts}"
_NO_SETTINGS: Final = "endpoints where nothing is in flight, and hot prefixes, are not known yet"
_NO_PREFIXES: Final = "no router has told of hot prefixes yet: they do every half minute"


class FleetSource:
    """The server of a fleet.

    Args:
        url: As of ``RedisFleet``.
        namespace: The fleet's prefix.
        cluster: The server is one of a cluster.

    Raises:
        ConfigurationError: It is no URL of a server.
    """

    def __init__(self, url: str, *, namespace: str, cluster: bool = False) -> None:
        self._connect = connector(url, cluster=cluster, timeout_s=_TIMEOUT_S)
        self._base = f"{{{namespace}}}:"
        self._client: Client | None = None
        self.shown = shown_server(url)

    def read(self) -> View:
        """Ask for what is there; a server that is lost is called anew the next time."""
        try:
            return self._view()
        except LOSSES as error:
            self.close()
            raise SourceLost(f"{type(error).__name__}: {error}".removesuffix(": ")) from None

    def close(self) -> None:
        """Close the connection; the next view makes another."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except LOSSES:
                return

    def _ask(self, command: str, *arguments: str | int) -> Any:
        if self._client is None:
            self._client = self._connect()
        client: Any = self._client
        where = {}
        if command == "TIME" and hasattr(client, "get_node_from_key"):  # of those of a cluster
            where["target_nodes"] = client.get_node_from_key(self._base)
        return client.execute_command(command, *arguments, **where)

    def _view(self) -> View:
        seconds, micros = self._ask("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        deadlines = self._base + "deadlines"
        alive = self._ask("ZRANGEBYSCORE", deadlines, now_ms, "+inf", "LIMIT", 0, 1)
        routers = int(self._ask("ZCARD", deadlines)) if alive else 0
        totals = _numbers(self._ask("HGETALL", self._base + "totals")) if alive else {}
        prints = {name[2:]: count for name, count in totals.items() if name.startswith("f:")}
        agreed = max(prints, key=lambda one: (prints[one], one), default=None)
        settings = self._settings(agreed) if agreed is not None else {}
        members = self._members()
        hot = self._hottest(settings, now_ms) if settings else None
        names = {name[2:] for name in totals if name[:2] in ("n:", "t:", "e:")}
        names |= {name.removeprefix(_ENDPOINT) for name in settings if name.startswith(_ENDPOINT)}
        names |= {name for name, state in members.items() if state != "gone"} if alive else set()
        return View(
            endpoints=[
                _endpoint(name, totals, members, routers)
                for name in sorted(names)[:_MOST_ENDPOINTS]
            ],
            total=EndpointView(
                id="",
                in_flight=sum(n for name, n in totals.items() if name.startswith("n:")),
                queued_tokens=sum(n for name, n in totals.items() if name.startswith("t:")),
            ),
            routers=routers,
            hottest=hot,
            notes=list(_notes(routers, prints, settings, hot)),
        )

    def _settings(self, fingerprint: str) -> Mapping[str, str]:
        """Return what a fingerprint is made of, as one of its routers says."""
        try:
            return _SETTINGS.decode(self._ask("GET", f"{self._base}about:{fingerprint}") or b"{}")
        except (msgspec.DecodeError, RecursionError):
            return {}

    def _members(self) -> dict[str, str]:
        """Return what was last done with endpoints, where routers tell each other."""
        found: dict[str, str] = {}
        for name, packed in _pairs(self._ask("HGETALL", self._base + "members")):
            try:
                found[name] = _RECORD.decode(packed).state
            except (msgspec.DecodeError, RecursionError):
                continue  # the version of them, among others
        return found

    def _hottest(self, settings: Mapping[str, str], now_ms: int) -> list[HotPrefix] | None:
        base = f"{self._base}hot:{traffic_key(settings)}:"
        places = self._ask("MGET", *(f"{base}{number}" for number in range(HOT_PLACES)))
        snapshots = [one for one in map(read_snapshot, places) if one is not None]
        return hottest(pooled(snapshots, now_ms), _SHOWN_PREFIXES) or None


def _endpoint(
    name: str, totals: Mapping[str, int], members: Mapping[str, str], routers: int
) -> EndpointView:
    votes, state = totals.get(f"e:{name}", 0), members.get(name)
    health = f"ejected by {votes} of {routers}" if votes else None
    return EndpointView(
        id=name,
        health=health or (state if state in ("draining", "gone") else None),
        in_flight=totals.get(f"n:{name}", 0),
        queued_tokens=totals.get(f"t:{name}", 0),
    )


def _notes(
    routers: int,
    prints: Mapping[str, int],
    settings: Mapping[str, str],
    hot: list[HotPrefix] | None,
) -> Iterable[str]:
    if not routers:
        yield _NOBODY
        return
    if len(prints) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(prints.items()))
        yield _DISAGREE.format(counts=counts)
    if not settings:
        yield _NO_SETTINGS
    elif hot is None:
        yield _NO_PREFIXES
    yield _NOT_TOLD


def _pairs(answer: Mapping[bytes, bytes] | list[bytes]) -> Iterable[tuple[str, bytes]]:
    """Return fields and values of what a server answers to HGETALL."""
    pairs = (
        answer.items()
        if isinstance(answer, Mapping)
        else zip(answer[::2], answer[1::2], strict=True)
    )
    return [(name.decode("utf-8", "replace"), value) for name, value in pairs]


def _numbers(answer: Mapping[bytes, bytes] | list[bytes]) -> dict[str, int]:
    found = {}
    for name, text in _pairs(answer):
        try:
            found[name] = int(float(text))
        except (ValueError, OverflowError):
            continue
    return found
