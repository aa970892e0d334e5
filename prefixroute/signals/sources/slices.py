"""EndpointSlices as the Kubernetes API writes them, and the endpoints in them.

Shapes: https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/.
Only what routing needs is read; whatever else there is, or comes to be, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from msgspec import Raw, Struct, field

__all__ = ["Event", "Found", "Slice", "SliceList", "State", "Status", "found_in"]

_FAMILIES: Final[tuple[str, ...]] = ("IPv4", "IPv6")


class Metadata(Struct, rename="camel"):
    """Of a slice, a list or a bookmark."""

    name: str = ""
    resource_version: str = ""


class Conditions(Struct):
    """What is not said is as the API defines it: ready, and not terminating."""

    ready: bool | None = None
    terminating: bool | None = None


class Reference(Struct):
    """The pod behind an address."""

    uid: str | None = None


class Address(Struct, rename="camel"):
    """One endpoint of a slice; only the first of its addresses is to be used."""

    addresses: list[str]
    conditions: Conditions = field(default_factory=Conditions)
    hostname: str | None = None
    target_ref: Reference | None = None


class Port(Struct):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class Slice(Struct, rename="camel"):
    """Some of the endpoints of a service, all of one address family."""

    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: list[Address] | None = None
    ports: list[Port] | None = None


class SliceList(Struct):
    """The answer to a list."""

    metadata: Metadata = field(default_factory=Metadata)
    items: list[Slice] | None = None


class Event(Struct):
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: Raw


class Bookmark(Struct):
    """What is read of an object that only tells how far the watch has come."""

    metadata: Metadata


class Status(Struct):
    """An error."""

    code: int = 0
    message: str = ""


class State(IntEnum):
    """What may be sent to an address; where slices disagree, the largest holds."""

    RESTING = 0
    READY = 1
    LEAVING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A pod, or whatever is behind an address, with the port that was asked for."""

    address: str
    port: int
    hostname: str | None
    state: State


def found_in(
    slices: Iterable[Slice],
    *,
    port: int | str | None,
    prefer: Literal["IPv4", "IPv6"],
) -> list[Found]:
    """Return what slices list, each pod once, in the order of their addresses.

    A pod may be in two slices of a dual-stack service, and for a moment in two of one family.

    Args:
        slices: Of one service.
        port: Its name or number; ``None``: the only one.
        prefer: The family to use of a pod that has both.

    Raises:
        LookupError: The slices have no such port, or several where none was named.
    """
    families: list[str] = sorted(_FAMILIES, key=lambda family: family != prefer)
    served = sorted(
        (one for one in slices if one.address_type in families and one.endpoints),
        key=lambda one: (families.index(one.address_type), one.metadata.name),
    )
    numbers = [_port(one, port) for one in served]
    if served and set(numbers) == {None}:
        raise LookupError(f"port={port!r} is none of its pods' ports; {_ports_of(served)}")
    known: dict[str, Found] = {}
    states: dict[str, State] = {}
    for one, number in zip(served, numbers, strict=True):
        if number is None:
            continue
        for key, address in _named(one):
            state = _state(address.conditions)
            states[key] = max(state, states.get(key, state))
            if key not in known:
                known[key] = Found(
                    address=address.addresses[0],
                    port=number,
                    hostname=address.hostname or None,
                    state=state,
                )
    return sorted(
        (
            Found(address=f.address, port=f.port, hostname=f.hostname, state=states[key])
            for key, f in known.items()
        ),
        key=lambda f: f.address,
    )


def _named(one: Slice) -> Iterator[tuple[str, Address]]:
    """Yield the endpoints of a slice with what tells that two are the same."""
    for address in one.endpoints or ():
        if address.addresses:
            uid = address.target_ref.uid if address.target_ref is not None else None
            yield uid or address.hostname or address.addresses[0], address


def _state(conditions: Conditions) -> State:
    if conditions.terminating:
        return State.LEAVING
    return State.RESTING if conditions.ready is False else State.READY


def _port(one: Slice, wanted: int | str | None) -> int | None:
    """Return the number of the port that is wanted; ``None``: the slice's pods do not have it.

    Raises:
        LookupError: It is not clear which.
    """
    if isinstance(wanted, int):
        return wanted  # a service that is headless need not name its ports
    numbers = {port.name or "": port.port for port in one.ports or () if port.port is not None}
    if wanted is not None:
        return numbers.get(wanted)
    if len(set(numbers.values())) > 1:
        raise LookupError(f"port=None needs pods with one port; {_ports_of([one])}")
    return next(iter(numbers.values()), None)


def _ports_of(slices: Iterable[Slice]) -> str:
    ports = {(port.name or "", port.port or 0) for one in slices for port in one.ports or ()}
    if not ports:
        return "the service names none: give the number"
    return f"there are: {', '.join(f'{name!r} ({number})' for name, number in sorted(ports))}"
