"""A ring as people look at it: what share of the keys is whose, and what would be fair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from prefixroute.core.checks import refusal
from prefixroute.core.membership import Group

__all__ = ["RingMember", "RingView", "ring_view"]

_KEYS: Final = 2**64
_PIECES: Final = 160
"""Virtual nodes that are kept to be drawn."""


class RingMember(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint on a ring.

    Args:
        id: The endpoint's id.
        weight: Its weight.
        virtual_nodes: How many it has on the ring.
        share: Of all keys, those whose home it is, 0 to 1.
        fair_share: Its share of the weights, 0 to 1. With v virtual nodes the other is off from it
            by about 1 in the square root of v: 3 % for 1,024.
    """

    id: str
    weight: float
    virtual_nodes: int
    share: float
    fair_share: float


class RingView(msgspec.Struct, frozen=True, kw_only=True):
    """What a ring gives to whom. Keys are hashes, so that cold prefixes are shared out like this.

    Hot ones are given several endpoints, and load moves requests from their homes: what becomes of
    the traffic is in ``router.stats()``.

    Args:
        members: Its endpoints, by id.
        tier: Theirs.
        pieces: The first virtual nodes: each one's member, by index, and its share of the keys.
    """

    members: tuple[RingMember, ...]
    tier: int
    pieces: tuple[tuple[int, float], ...]

    def __repr__(self) -> str:
        many = "" if len(self.members) == 1 else "s"
        nodes = f"{self.virtual_nodes:,} virtual nodes"
        return f"<RingView {len(self.members)} endpoint{many}, {nodes}, tier {self.tier}>"

    @property
    def virtual_nodes(self) -> int:
        """How many there are on the ring."""
        return sum(member.virtual_nodes for member in self.members)

    @property
    def max_over_fair(self) -> float:
        """The largest of all shares in terms of its fair one; 1: all is even."""
        return max(member.share / member.fair_share for member in self.members)

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from prefixroute.core.ring_page import ring_html  # noqa: PLC0415 - few look

        return ring_html(self)


def ring_view(groups: Sequence[Group], tier: int | None) -> RingView:
    """Return the ring of a tier.

    Args:
        groups: Those that may serve one model, lowest tier first.
        tier: Whose ring; ``None``: the lowest.

    Raises:
        ConfigurationError: There is no such tier.
    """
    found = [group for group in groups if tier is None or group.label[0] == tier]
    if not found:
        there = ", ".join(str(group.label[0]) for group in groups)
        raise refusal("Router.ring", "tier", tier, f"one that has endpoints: {there}")
    group = found[0]
    keys, nodes = [0] * len(group), [0] * len(group)
    for index, count in group.ring.arcs():
        keys[index] += count
        nodes[index] += 1
    weights = [weight for _, weight in group.ring.members]
    total = sum(weights)
    return RingView(
        members=tuple(
            RingMember(
                id=member_id,
                weight=weight,
                virtual_nodes=nodes[index],
                share=keys[index] / _KEYS,
                fair_share=weight / total,
            )
            for index, (member_id, weight) in enumerate(group.ring.members)
        ),
        tier=group.label[0],
        pieces=tuple((index, count / _KEYS) for index, count in islice(group.ring.arcs(), _PIECES)),
    )
