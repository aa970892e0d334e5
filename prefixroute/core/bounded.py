"""A dict of bounded size that forgets what was not used for longest, roughly and cheaply.

Two generations: what is written or found goes into the young one; when that is half of the bound,
the old one is dropped and the young one becomes old. An entry therefore stays for at least
``max_entries / 2`` further entries after its last use, and no operation ever costs more than a few
dict look-ups, where an exact LRU order would pay for every touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["BoundedDict"]

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Maps at most ``max_entries`` keys.

    Args:
        max_entries: The most entries that it holds, 2 or more.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, max_entries: int) -> None:
        self._half = max(1, max_entries // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def peek(self, key: K) -> V | None:
        """Return the value without counting that as a use."""
        value = self._young.get(key)
        return value if value is not None else self._old.get(key)

    def leading(self, keys: Iterable[K]) -> list[V]:
        """Return the values of the first keys, up to one that is not there; no use of any."""
        young, old = self._young.get, self._old.get
        found = []
        for key in keys:
            value = young(key)
            if value is None and (value := old(key)) is None:
                break
            found.append(value)
        return found

    def get(self, key: K) -> V | None:
        """Return the value, or ``None``; a use."""
        value = self._young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self._young[key] = value
                if len(self._young) >= self._half:
                    self._age()
        return value

    def put(self, key: K, value: V) -> None:
        """Set the value; a use."""
        young = self._young
        young[key] = value
        if self._old:
            self._old.pop(key, None)
        if len(young) >= self._half:
            self._age()

    def merge(self, keys: Iterable[K], value: V, combine: Callable[[V, V], V]) -> None:
        """Set each key to ``value``, or to ``combine(old value, value)``; a use of each.

        The same as :meth:`get` and :meth:`put` of each key, at a fraction of the cost.
        """
        young, old = self._young, self._old
        new = dict.fromkeys(keys, value)
        if len(young) + len(new) >= self._half:  # the young one may have to be made old in between
            for key in new:
                found = self.get(key)
                self.put(key, value if found is None else combine(found, value))
            return
        for key in young.keys() & new.keys():
            new[key] = combine(young[key], value)
        if old:
            for key in old.keys() & new.keys():
                new[key] = combine(old.pop(key), value)
        young.update(new)

    def pop(self, key: K) -> V | None:
        """Remove the key and return what it had."""
        old = self._old.pop(key, None)
        value = self._young.pop(key, None)
        return value if value is not None else old

    def items(self) -> Iterator[tuple[K, V]]:
        """Return the entries, the newest first; none may be added meanwhile."""
        yield from reversed(self._young.items())
        yield from reversed(self._old.items())

    def _age(self) -> None:
        self._old, self._young = self._young, {}

    def transform(self, function: Callable[[V], V | None]) -> None:
        """Replace every value by ``function(value)``; ``None`` removes the entry."""
        for table in (self._old, self._young):
            for key, value in list(table.items()):
                new = function(value)
                if new is None:
                    del table[key]
                else:
                    table[key] = new

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
