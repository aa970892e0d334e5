"""``Shadow``: a second placement that decides for every request and influences none.

It has a ledger of its own: traffic, map, requests in flight and queues, as if it had placed. What
it would have found cached cannot be observed, so both placements are judged by one yardstick: what
each of them has sent where so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

import msgspec

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.health import Health, HealthPolicy
from prefixroute.core.ledger import Ledger
from prefixroute.core.load import EndpointState, Loan
from prefixroute.core.membership import Members
from prefixroute.core.placement import Placement
from prefixroute.core.placer import Placed
from prefixroute.core.prefix_map import PrefixMap
from prefixroute.core.prompt import Prompt
from prefixroute.core.shadow_stats import ShadowStats

__all__ = ["Shadow", "Shadowed"]

_MOST_PREFIXES: Final = 131_072
"""Block hashes that the yardstick remembers of each placement."""

_NONE: Final[frozenset[str]] = frozenset()


class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as both placed it."""

    loan: Loan
    moved: bool
    tokens: float
    given_cached_tokens: float
    shadow_cached_tokens: float


class _Seen(Health):
    """Another row, looked at and never changed."""

    __slots__ = ("_of",)

    def __init__(self, of: Health) -> None:
        super().__init__()
        self._of = of

    def takes(self, now: float) -> bool:
        return self._of.takes(now)

    def warmth(self, now: float) -> float:
        return self._of.warmth(now)

    def warm_up(self, now: float, policy: HealthPolicy) -> None:
        """Leave that to the row itself."""

    def sent(self, now: float, *, panic: bool = False) -> int:  # noqa: ARG002 - it is no probe
        return 0


class Shadow:
    """Decides as if it placed.

    Args:
        placement: How.
        members: The router's.
        now: Seconds.
        health: When endpoints are ejected; only its slow start matters here.
        peers: As the router's.
        seed: Of the ring, as the router's.
        random: Source of ties; not the router's own, whose ties must stay as they are.
    """

    __slots__ = (
        "_ledger", "_members", "_seed", "_twins", "_virtual_nodes", "_yard", "full",
        "given_cached_tokens", "moved", "name", "requests", "shadow_cached_tokens", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        placement: Placement,
        *,
        members: Members,
        now: float,
        health: HealthPolicy,
        peers: int | None,
        seed: int,
        random: Random,
    ) -> None:
        self.name = repr(placement)
        self._ledger = Ledger(placement, health, peers, random)
        self._virtual_nodes, self._seed = placement.virtual_nodes, seed
        self._twins: dict[EndpointState, EndpointState] = {}
        self._yard = _Yard()
        own = self.members_of(zip(members.states, members.endpoints, strict=True))
        self.swap(members.states, own, now)
        self.requests = self.moved = self.full = 0
        self.tokens = self.given_cached_tokens = self.shadow_cached_tokens = 0.0

    # -- who there is --------------------------------------------------------------

    def members_of(self, pairs: Iterable[tuple[EndpointState, Endpoint]]) -> Members:
        """Return the router's members to be, with accounts of the shadow's own; takes a while."""
        twins = [(self._twins.get(state) or _twin(state, endpoint), endpoint)
                 for state, endpoint in pairs]  # fmt: skip
        return Members(twins, virtual_nodes=self._virtual_nodes, seed=self._seed)

    def swap(self, states: Iterable[EndpointState], members: Members, now: float) -> None:
        """Take the members, as the router takes its own."""
        self._twins = dict(zip(states, members.states, strict=True))
        joined, left = self._ledger.swap(members, now)
        self._members = members
        self._ledger.take_events()
        for state in left:
            self._yard.forget(state)
        for state in joined:
            self._yard.forget(state)

    def ejected(self, state: EndpointState) -> None:
        """Forget what an endpoint held, as the router does."""
        twin = self._twins[state]
        self._ledger.policy.left(twin)
        self._ledger.policy.joined(twin)
        self._yard.forget(twin)

    def prepare(self, model: str | None) -> None:
        """Make the rings that a model's requests need, outside of the lock."""
        self._members.groups(model)

    # -- one request ------------------------------------------------------------------

    def place(self, own: Prompt, whole: Prompt, given: Placed, now: float) -> Shadowed | None:
        """Place a request as if it went there; ``None``: the shadow has no room.

        Args:
            own: As the shadow wants it cut.
            whole: With its whole chain.
            given: Where it goes.
            now: Seconds.
        """
        twin, groups = self._twins[given.state], self._members.groups(own.model)
        placed = self._ledger.placer.place(own, groups, now, _NONE)
        if placed is None:
            self.full += 1
            return None
        loan, moved = self._ledger.lend(placed, counted=True), placed.state is not twin
        # What another endpoint's reply tells, in time or tokens, says nothing about this one.
        loan.learned = moved
        per_unit = given.ask.per_unit
        found, would = self._yard.found(whole, twin, placed.state)
        self.requests += 1
        self.moved += moved
        self.tokens += whole.size * per_unit
        self.given_cached_tokens += found * per_unit
        self.shadow_cached_tokens += would * per_unit
        return Shadowed(
            loan=loan,
            moved=moved,
            tokens=whole.size * per_unit,
            given_cached_tokens=found * per_unit,
            shadow_cached_tokens=would * per_unit,
        )

    def first_token(self, loan: Loan, now: float) -> None:
        """Take a request out of the shadow's queue when its real first token comes."""
        self._ledger.first_token(loan, None, now)
        self._ledger.take_events()

    def ended(self, loan: Loan, real: Loan, now: float) -> None:
        """End a request when its real one ends."""
        if not loan.learned:  # it went where the shadow, too, would have sent it
            self._ledger.usage(loan, real.prompt_tokens, None)
            loan.cached_tokens = real.cached_tokens  # for the rate; credits are the caches' own
        self._ledger.release(loan, now, neutral=True)
        self._ledger.take_events()

    def forked(self) -> None:
        """Drop the requests of the parent process."""
        self._ledger.forked()

    def stats(self) -> ShadowStats:
        """Return the counts so far."""
        return ShadowStats(
            placement=self.name,
            requests=self.requests,
            moved=self.moved,
            tokens=self.tokens,
            given_cached_tokens=self.given_cached_tokens,
            shadow_cached_tokens=self.shadow_cached_tokens,
            full=self.full,
        )


def _twin(state: EndpointState, endpoint: Endpoint) -> EndpointState:
    twin = EndpointState(endpoint)
    twin.health = _Seen(state.health)
    return twin


class _Yard:
    """What each of two placements has sent where: one yardstick for both."""

    __slots__ = ("_bits", "_given", "_shadow")

    def __init__(self) -> None:
        self._given, self._shadow = PrefixMap(_MOST_PREFIXES), PrefixMap(_MOST_PREFIXES)
        self._bits: dict[EndpointState, tuple[int, int]] = {}

    def forget(self, state: EndpointState) -> None:
        """Forget what an endpoint held."""
        bits = self._bits.pop(state, None)
        if bits is not None:
            self._given.leave(bits[0])
            self._shadow.leave(bits[1])

    def _of(self, state: EndpointState) -> tuple[int, int]:
        bits = self._bits.get(state)
        if bits is None:
            bits = self._bits[state] = self._given.join(), self._shadow.join()
        return bits

    def found(self, prompt: Prompt, at: EndpointState, would: EndpointState) -> tuple[int, int]:
        """Return what each would find cached, units of the prompt; and note that it was sent."""
        bit, shadow_bit = self._of(at)[0], self._of(would)[1]
        found = _held(prompt, self._given, bit), _held(prompt, self._shadow, shadow_bit)
        self._given.add(prompt.chain, bit)
        self._shadow.add(prompt.chain, shadow_bit)
        return found


def _held(prompt: Prompt, sent: PrefixMap, bit: int) -> int:
    blocks = max((blocks for blocks, _ in sent.holders(prompt.chain, bit)), default=0)
    blocks = prompt.with_reply(blocks) if blocks else 0
    return prompt.ends[blocks - 1] if blocks else 0
