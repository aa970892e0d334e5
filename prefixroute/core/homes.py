"""Where a chain belongs: the walk from its root to the first prefix that is not hot.

While a prefix is hot, the set of endpoints narrows to the first few of the prefix's own ring order
within the set so far; at the first prefix that is not, the first endpoint of its order within the
set is the home.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from prefixroute.core.crowding import keeps, uniform
from prefixroute.core.membership import Group
from prefixroute.core.placement import NEAREST
from prefixroute.core.prompt import KeySource, Prompt
from prefixroute.core.ring import Ring
from prefixroute.core.traffic import Traffic, share

__all__ = ["Homes", "Walk", "heads", "traffic_keys"]

_SURE_AFTER: Final = 1.5
"""Own sightings, two of them somewhat decayed, before a hot prefix counts as shared by all whatever
follows it: a router's second request stays where the first went, as a chat does whose earlier turns
were written anew, or a text so short that it has no boundary yet."""

_OWN_TOKENS: Final = 256.0
"""Unless it has more than this of its own after what it shares: routers that live for a few
requests would crowd the endpoint that had the first. Less is computed anywhere within no time."""

_CREDITED_AFTER: Final = 4.0
"""Own sightings of a hot prefix before a home below it is taken to hold what others brought there
of a conversation that went elsewhere before: so much traffic is no lone conversation any more."""

_FALL_BELOW: Final = 0.7
"""A spread that has risen falls only when the traffic is below this share of its threshold."""

_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_TIER_SALT: Final = 0x9E37_79B9_7F4A_7C15


class Homes(msgspec.Struct, kw_only=True):
    """Where a chain belongs.

    Args:
        order: Indices in the group, home first, then the rest of its set, then all others; where
            all would be its set, and are many, only the nearest.
        whole: They are all there.
        depth: Index in the chain of the hash that the order is of.
        unique: The prefix has one home, rather than a set that shares it.
        credited: What others brought to the home may be guessed: every hot prefix above it is one
            that this router has seen often enough.
        shared: Requests went different ways from every hot prefix above the home, which those of
            one conversation do not: what others brought there may be guessed of a prompt that
            nobody is known to hold more of.
        everywhere: Leading blocks that all are taken to hold because they share a hot prefix from
            which requests went different ways.
        sure: The same of an index that shares a longer one.
        spread: Size of the set that the home was picked from.
        spreads: ``(key of the traffic, endpoints)`` of the hot prefixes passed, and of one that was
            hot before.
    """

    order: Sequence[int]
    whole: bool
    depth: int
    unique: bool
    credited: bool
    shared: bool
    everywhere: int
    sure: dict[int, int]
    spread: int
    spreads: list[tuple[int, int]]


class Walk:
    """Walks chains by the traffic counted so far; counts nothing itself.

    Args:
        traffic: Of the router.
        target: The most of an endpoint's fair share of the traffic that one prefix may put on it.
    """

    __slots__ = ("_target", "_traffic")

    def __init__(self, traffic: Traffic, target: float) -> None:
        self._traffic, self._target = traffic, target

    def homes(self, prompt: Prompt, group: Group, now: float) -> Homes:
        """Return where the prompt belongs, by the traffic seen so far."""
        chain, ring, traffic = prompt.chain, group.ring, self._traffic
        traffic.advance(now)
        total = traffic.total(group.label)
        if share(total, total) * len(group) <= self._target:
            return _unknown(chain, ring)
        hot = _Hot(prompt, traffic_keys(chain, group), traffic, len(group))
        head: Sequence[int] = ()
        depth, unique = len(chain) - 1, False
        keeps_together = depth if prompt.source is KeySource.SESSION else None
        for at, (key, prefix) in enumerate(zip(hot.keys, chain, strict=True)):
            count, within = traffic.count(key), hot.any_order
            if not group.even:  # else it does not matter whose weights they are
                within = hot.within(ring.order(prefix))
            spread = self._spread(key, share(count, total), within, group)
            if spread <= 1 or at == keeps_together:  # however hot: what a session is for
                head, depth, unique = hot.nearest(ring, prefix), at, True
                hot.fallen(key)
                break
            head = hot.within(ring.order(prefix))[:spread]
            hot.passed(at, count, head)
        members = hot.members
        rest = () if members is None else [i for i in ring.order(chain[depth]) if i not in members]
        return Homes(
            order=[*self._thinned(head, chain[depth], group), *rest],
            whole=len(head) + len(rest) == len(group),
            depth=depth,
            unique=unique,
            credited=unique and hot.credited,
            shared=unique and hot.shared,
            everywhere=hot.everywhere,
            sure=hot.sure,
            spread=hot.spread,
            spreads=hot.spreads,
        )

    def _thinned(self, head: Sequence[int], key: int, group: Group) -> Sequence[int]:
        """Return the order with those last that are too crowded to keep this key."""
        keeping = keeps(group.states)
        if keeping is None:
            return head
        states = group.states
        first: list[int] = []
        last: list[int] = []
        for index in head:
            keep = keeping[index]
            mine = keep >= 1.0 or uniform(key, states[index].salt) < keep
            (first if mine else last).append(index)
        return first + last

    def _spread(self, key: int, part: float, within: Sequence[int], group: Group) -> int:
        """Return how many endpoints a prefix with this share of the traffic is given."""
        if part <= 0.0:
            return 1
        before = self._traffic.spread(key)
        need = part * len(group) / self._target
        spread = heads(need, within, group)
        if before > spread:
            spread = min(before, heads(need / _FALL_BELOW, within, group))
        return min(spread, len(within))


class _Hot:
    """What one walk knows of the hot prefixes that it has passed."""

    __slots__ = (
        "_all", "_branch", "_prompt", "_traffic", "any_order", "credited", "everywhere", "keys",
        "members", "shared", "spread", "spreads", "sure",
    )  # fmt: skip

    def __init__(
        self, prompt: Prompt, keys: Sequence[int], traffic: Traffic, endpoints: int
    ) -> None:
        self._prompt, self._traffic, self.keys, self._all = prompt, traffic, keys, endpoints
        self._branch: int | None = 0  # a request left the chain after so many blocks; None: no more
        self.members: set[int] | None = None  # None: all
        self.any_order: Sequence[int] = range(endpoints)  # as many as there are members
        self.spread = 1
        self.everywhere = 0
        self.credited = self.shared = True
        self.sure: dict[int, int] = {}
        self.spreads: list[tuple[int, int]] = []

    def within(self, order: Sequence[int]) -> Sequence[int]:
        """Return the order among those that the prefixes so far have left."""
        members = self.members
        return order if members is None else [index for index in order if index in members]

    def nearest(self, ring: Ring, prefix: int) -> Sequence[int]:
        """Return the order of a prefix among them, or the beginning of it."""
        if self.members is None:
            return ring.nearest(prefix, NEAREST)
        return self.within(ring.order(prefix))

    def passed(self, at: int, count: float, head: Sequence[int]) -> None:
        """Note that a prefix is hot, and who shares it."""
        self.spread = len(head)
        self.spreads.append((self.keys[at], self.spread))
        self.any_order = range(self.spread)
        self.members = set(head) if self.spread < self._all else None
        if self._branch is not None and self._branch <= at:
            self._branch = self._traffic.branch(self.keys, at + 1)
        if self._is_shared(at, count):
            if self.members is None:
                self.everywhere = at + 1
            else:
                self.sure.update(dict.fromkeys(head, at + 1))
        elif count < _CREDITED_AFTER:
            self.shared = False
        if count < _CREDITED_AFTER:
            self.credited = False

    def _is_shared(self, at: int, count: float) -> bool:
        """Return whether the endpoints of a hot prefix may be taken to hold it all."""
        prompt = self._prompt
        if self._traffic.told(self.keys[at]) >= _CREDITED_AFTER:
            return True
        if count >= _SURE_AFTER:
            return self._branch is not None or not prompt.ends[at]
        own = (prompt.size - prompt.ends[at]) * prompt.tokens_per_unit
        return self._branch is not None and own > _OWN_TOKENS

    def fallen(self, key: int) -> None:
        """Note that a prefix is not hot; if it was, it rises at the full threshold again."""
        if self._traffic.spread(key) > 1:
            self.spreads.append((key, 1))


def _unknown(chain: Sequence[int], ring: Ring) -> Homes:
    """Return where a prompt belongs while not even what every request starts with would look hot.

    The first boundary is often everybody's, so the second is the key.
    """
    depth = min(1, len(chain) - 1)
    order = ring.nearest(chain[depth], NEAREST)
    return Homes(
        order=order,
        whole=len(order) == ring.placed,
        depth=depth,
        unique=True,
        credited=True,
        shared=True,
        everywhere=0,
        sure={},
        spread=1,
        spreads=[],
    )


def traffic_keys(chain: Sequence[int], group: Group) -> Sequence[int]:
    """Return what a chain's prefixes are counted under: in each tier apart.

    Requests that come to a higher tier because a lower one failed must not look hot there.
    """
    salt = group.label[0] * _TIER_SALT & _MASK_64
    return [prefix ^ salt for prefix in chain] if salt else chain


def heads(need: float, within: Sequence[int], group: Group) -> int:
    """Return how many of the first endpoints it takes to give a prefix ``need`` mean weights."""
    if need <= 1.0:
        return 1
    if group.even:
        return min(len(within), math.ceil(need * (1.0 - 1e-9)))
    states = group.states
    wanted = need * group.weight / len(group) * (1.0 - 1e-9)
    total = 0.0
    for count, index in enumerate(within, 1):
        total += states[index].endpoint.weight
        if total >= wanted:
            return count
    return len(within)
