"""Drains and changes of the membership that one router made, for the others to follow. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.logs import log
from prefixroute.core.urls import shown_url
from prefixroute.errors import ConfigurationError, UnknownEndpointError
from prefixroute.signals.fleet import Shared

__all__ = ["Accept", "Membership", "Record"]

Accept = Callable[[Endpoint], Endpoint | None]
"""Is asked about an endpoint that another router added; returns it, with a key, say, or none."""

_LONGEST: Final = 16 * 1024
_MOST_RECORDS: Final = 1000


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What was last done with one endpoint: no key, no header."""

    id: str
    state: Literal["serving", "draining", "gone"]
    by: str
    url: str = ""
    weight: float = 1.0
    tier: int = 0
    models: list[str] | None = None
    max_in_flight: int | None = None


_DECODER: Final = msgspec.msgpack.Decoder(Record)


class Membership:
    """Tells local changes from those that others made, and follows the latter.

    Args:
        router: Whose endpoints they are.
        owner: Names this router in its records.
        accept: Decides about URLs that this process was not given by its own user; ``None``: none
            of them is taken.
    """

    def __init__(self, router: Shared, owner: str, accept: Accept | None) -> None:
        self._router, self._owner, self._accept = router, owner, accept
        self._known = {endpoint.id: endpoint for endpoint in router.endpoints}
        self._seen = self._now()
        self._last: dict[str, bytes] = {}  # the last record of each endpoint
        self._unsaid: dict[str, bytes] = {}  # records that the others may not have
        self._refused: set[str] = set()

    def _now(self) -> dict[str, bool]:
        """Return who belongs to the router, and whether it drains."""
        return {name: load.draining for name, load in self._router.own_loads().items()}

    def changes(self) -> dict[str, bytes]:
        """Return records of what was done here and is not said yet, by id."""
        now, endpoints = self._now(), {e.id: e for e in self._router.endpoints}
        self._known.update(endpoints)
        changed = {
            name for name in now.keys() | self._seen if now.get(name) != self._seen.get(name)
        }
        self._seen = now
        for name in changed:
            if name not in now:
                record = Record(name, "gone", self._owner)
            elif name in endpoints:
                state: Literal["draining", "serving"] = "draining" if now[name] else "serving"
                record = _record(endpoints[name], state, self._owner)
            else:
                continue
            if not self._says_so(record):
                self._unsaid[name] = self._last[name] = msgspec.msgpack.encode(record)
        return dict(self._unsaid)

    def said(self) -> None:
        """Note that the others have been told of all changes."""
        self._unsaid.clear()

    def _says_so(self, record: Record) -> bool:
        """Return whether that is what others were told last: several may have done the same."""
        last = _read(self._last.get(record.id))
        return last is not None and msgspec.structs.replace(last, by=record.by) == record

    def apply(self, packed: Mapping[str, bytes]) -> None:
        """Do what others have done, as their records say."""
        for name, one in packed.items():
            if self._last.get(name) == one:
                continue
            self._last[name] = one
            record = _read(one)
            if record is None or record.id != name:
                continue
            try:
                self._follow(record)
            except (ConfigurationError, UnknownEndpointError) as error:
                log.warning("cannot do what another router did with %s: %s", name, error)
            drains = self._now().get(name)
            if drains is None:
                self._seen.pop(name, None)
            else:
                self._seen[name] = drains

    def excess(self, packed: Mapping[str, bytes]) -> list[str]:
        """Return the ids of records to drop where there are too many: of endpoints long gone."""
        if len(packed) <= _MOST_RECORDS:
            return []
        gone = [
            name
            for name, one in packed.items()
            if (record := _read(one)) is None or record.state == "gone"
        ]
        for name in gone:
            self._last.pop(name, None)
        return gone

    def take(self, packed: bytes) -> None:
        """Do what one record says."""
        record = _read(packed)
        if record is not None:
            self.apply({record.id: packed})

    def _follow(self, record: Record) -> None:
        router, name, seen = self._router, record.id, self._now()
        match record.state:
            case "gone" if name in seen:
                log.info("%s is removed: router %s did so", name, record.by)
                router.remove(name)
            case "draining" if name in seen and not seen[name]:
                log.info("%s drains: router %s did so", name, record.by)
                router.start_drain(name)
            case "serving" if seen.get(name):
                log.info("%s drains no more: router %s did so", name, record.by)
                router.readmit(name)
            case "serving" if name not in seen:
                self._join(record)
            case _:
                pass

    def _join(self, record: Record) -> None:
        known = self._known.get(record.id)
        offered = _endpoint(record)
        if known is not None and shown_url(known.url) == record.url:
            accepted: Endpoint | None = known  # its own user gave it, with its key
        else:
            accepted = self._accept(offered) if self._accept is not None else None
        if accepted is not None:
            log.info("%s joins: router %s added it", record.id, record.by)
            self._router.add(accepted)
        elif record.id not in self._refused:
            self._refused.add(record.id)
            log.warning(
                "router %s added %s, which is not taken here: RedisFleet(accept=...) decides about "
                "URLs that this process was not given",
                record.by,
                shown_url(record.url),
            )


def _record(endpoint: Endpoint, state: Literal["draining", "serving"], owner: str) -> Record:
    models = endpoint.models
    return Record(
        id=endpoint.id,
        state=state,
        by=owner,
        url=shown_url(endpoint.url),
        weight=endpoint.weight,
        tier=endpoint.tier,
        models=sorted(models) if models is not None else None,
        max_in_flight=endpoint.max_in_flight,
    )


def _endpoint(record: Record) -> Endpoint:
    return Endpoint(
        record.url,
        id=record.id,
        weight=record.weight,
        tier=record.tier,
        models=record.models,
        max_in_flight=record.max_in_flight,
    )


def _read(packed: bytes | None) -> Record | None:
    if packed is None or len(packed) > _LONGEST:
        return None
    try:
        return _DECODER.decode(packed)
    except (msgspec.DecodeError, RecursionError):
        return None
