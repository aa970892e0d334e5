"""The virtual nodes of a ring, sorted: made at once, or of another's by what has changed.

A thousand members have a million virtual nodes, and to hash and sort these takes a second. Most of
them stay when a member comes or goes, so those that go are cut out and those that come are put in,
which copies the rest as it lies in memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from prefixroute.core.hashing import RING_SEED, digest64

__all__ = ["Circle"]

_MASK_32: Final = 0xFFFF_FFFF

_FEW: Final = 4
"""A circle is made of another if no more than one member in so many has changed."""


class Circle:
    """Sorted virtual nodes, each with the slot of the member that it belongs to; immutable.

    Args:
        counts: Virtual nodes of each member, by id.
        seed: Circles of different seeds differ.
        before: A circle of the same seed to make this one of, if most of its members stay.

    Attributes:
        keys: The virtual nodes, ascending; equal ones by id, so that even a collision does not
            depend on the order of the members.
        owners: The slot of each.
        slots: The slot of each member: its own for as long as it stays.
    """

    __slots__ = ("_counts", "keys", "owners", "slots")

    def __init__(self, counts: Mapping[str, int], seed: int, before: Circle | None = None) -> None:
        self._counts = dict(counts)
        self.slots = {member_id: slot for slot, member_id in enumerate(counts)}
        going, coming = [], list(counts)
        if before is not None:
            was = before._counts  # noqa: SLF001 - the same class
            going = [i for i, count in was.items() if counts.get(i) != count]
            coming = [i for i, count in counts.items() if was.get(i) != count]
        if before is None or _FEW * (len(going) + len(coming)) > len(counts):
            self._fill(seed)
        else:
            self._change(before, going, coming, seed)

    def _fill(self, seed: int) -> None:
        points = {i: _points(i, count, seed) for i, count in self._counts.items()}
        owner_of: dict[int, int] = {}
        for member_id, slot in self.slots.items():
            owner_of.update(dict.fromkeys(points[member_id], slot))
        keys = sorted(owner_of)
        self.keys, self.owners = array("Q", keys), array("I", [owner_of[key] for key in keys])
        if len(keys) < sum(self._counts.values()):  # some are equal
            pairs = sorted((point, i) for i in points for point in points[i])
            self.keys = array("Q", [point for point, _ in pairs])
            self.owners = array("I", [self.slots[i] for _, i in pairs])

    def _change(
        self, before: Circle, going: Sequence[str], coming: Sequence[str], seed: int
    ) -> None:
        self.keys, self.owners, self.slots = before.keys, before.owners, dict(before.slots)
        if going:
            gone: set[int] = set()
            for member_id in going:
                points = _points(member_id, before._counts[member_id], seed)
                gone |= self._places(self.slots.pop(member_id), points)
            places = sorted(gone)
            self.keys, self.owners = _without(self.keys, places), _without(self.owners, places)
        if coming:
            taken = set(self.slots.values())
            free = [slot for slot in range(len(self._counts)) if slot not in taken]
            names = {slot: member_id for member_id, slot in self.slots.items()}
            self.slots.update(zip(coming, free, strict=False))
            new = sorted((p, i) for i in coming for p in _points(i, self._counts[i], seed))
            places = [self._place(point, member_id, names) for point, member_id in new]
            keys, slots = [point for point, _ in new], [self.slots[i] for _, i in new]
            self.keys, self.owners = (
                _with(self.keys, places, keys), _with(self.owners, places, slots),
            )  # fmt: skip

    def _places(self, slot: int, points: Iterable[int]) -> set[int]:
        """Return where the virtual nodes of a slot are."""
        keys, owners, count = self.keys, self.owners, len(self.keys)
        found = set()
        for point in points:
            at = bisect_left(keys, point)
            while at < count and keys[at] == point:
                if owners[at] == slot:
                    found.add(at)
                at += 1
        return found

    def _place(self, point: int, member_id: str, names: Mapping[int, str]) -> int:
        """Return where a new virtual node goes: behind equal ones of smaller ids."""
        keys, owners, count = self.keys, self.owners, len(self.keys)
        at = bisect_left(keys, point)
        while at < count and keys[at] == point and names[owners[at]] < member_id:
            at += 1
        return at


def _without(values: array[int], places: Iterable[int]) -> array[int]:
    """Return values without those at these places, ascending."""
    size, view = values.itemsize, memoryview(values).cast("B")
    pieces, start = [], 0
    for at in places:
        pieces.append(view[start * size : at * size])
        start = at + 1
    pieces.append(view[start * size :])
    return array(values.typecode, b"".join(pieces))


def _with(values: array[int], places: Iterable[int], new: Iterable[int]) -> array[int]:
    """Return values with new ones before these places, ascending."""
    size, view = values.itemsize, memoryview(values).cast("B")
    added = memoryview(array(values.typecode, new)).cast("B")
    pieces, start = [], 0
    for number, at in enumerate(places):
        pieces += [view[start * size : at * size], added[number * size : (number + 1) * size]]
        start = at
    pieces.append(view[start * size :])
    return array(values.typecode, b"".join(pieces))


@lru_cache(maxsize=512)
def _points(member_id: str, count: int, seed: int) -> array[int]:
    """Return a member's virtual nodes; remembered, for most members outlive a change."""
    prefix = member_id.encode("utf-8", "surrogatepass") + b"\x00"
    ring_seed = RING_SEED ^ _fold(seed)
    return array("Q", [digest64(prefix + i.to_bytes(4, "little"), ring_seed) for i in range(count)])


def _fold(seed: int) -> int:
    """Return a seed of any size as 32 bits; small ones stay themselves."""
    if 0 <= seed <= _MASK_32:
        return seed
    return digest64(seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)) & _MASK_32
