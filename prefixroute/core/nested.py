"""``Nested``: a cold prefix has one home, a hot one as many endpoints as its traffic needs.

The chain is walked from the root. While a prefix is hot, the set of endpoints narrows to the first
few of the prefix's own ring order within the set so far; at the first prefix that is not, the first
endpoint of its order within the set is the home. Orders nest: routers that judge a share a little
differently still agree on most homes, and none of them has to ask another.

The hash decides where a prompt belongs; a map of what this router sent where, the replies' cached
tokens and the endpoints' queues decide whether going elsewhere is cheaper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from prefixroute.core.checks import check_int, check_number
from prefixroute.core.decision import Reason
from prefixroute.core.homes import Homes, Walk, traffic_keys
from prefixroute.core.load import EndpointState, Loan
from prefixroute.core.membership import Group
from prefixroute.core.placement import NEAREST, Ask, Bound, Choice, Policy, Seen, StatelessPolicy
from prefixroute.core.prefix_map import PrefixMap
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.traffic import Hot, Traffic, share

__all__ = ["Nested", "NestedPolicy"]

_CREDIT_PRIOR: Final[Sequence[float]] = (5.0, 10.0)
"""What a home holds beyond what this router knows: half, with the weight of ten replies."""

_CREDIT_FADE: Final = 0.99
"""Per reply: a window of about a hundred."""

_PRICE: Final = 4.0
"""Of a second of prefill that leaving the best place makes: it is computed now, again on later
turns, which come through other routers that look for it at home, and evicts somebody."""

_PRICE_TOLD: Final = 1.5
"""The same where loads are told, for each second by which it lengthens a busy period; see
:class:`Busy`. With a price that does not grow with the load, routers that all see the same queue
leave it together, find nothing cached, and overload what was half busy."""

_PRICE_KNOWN: Final = 2.0
"""The same where all that is found cached is what this router knows of: later turns come through
it and follow the move."""

_PRICE_BLIND: Final = 6.0
"""More of it per F/T of the endpoint moved to, where loads are guessed: who is busy is delayed by a
move, and the worse the guess, the more often it was in vain."""

_KNOWN_FADE: Final = 0.99
"""Per reply: a window of about a hundred."""

_REPLY_TOKENS: Final = 256.0
"""What the one endpoint that had a chat's last turn holds beyond it: the reply that it generated.
Small beside what a turn of a long chat costs, it keeps a chat of short turns from wandering."""

_SIZED_EVERY: Final = 16
"""Requests."""

_EVERYBODY: Final = -1
"""The bits of all endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """The placement to use: learns what is hot, needs no prefix length.

    Args:
        block_bytes: Length of a block, bytes; doubles every 64 blocks.
        target: The most of an endpoint's fair share of the traffic that one prefix may put on it
            before it is given another endpoint, 0 to 1.
        load_factor: Of the bound on in-flight requests, 1 or more.
        load_slack: Requests above the fair share that are always allowed.
        half_life_s: A request counts for half in the traffic after this time, seconds.
        max_prefixes: The most block hashes remembered, in the traffic and in the map each.
        virtual_nodes: Virtual nodes on the ring per unit of weight.

    Raises:
        ConfigurationError: A value out of its range.
    """

    block_bytes: int = 1024
    target: float = 0.125
    load_factor: float = 1.25
    load_slack: float = 8.0
    half_life_s: float = 600.0
    max_prefixes: int = 262_144
    virtual_nodes: int = 1024

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("Nested", "block_bytes", self.block_bytes, 16)
        check_int("Nested", "max_prefixes", self.max_prefixes, 16)
        check_int("Nested", "virtual_nodes", self.virtual_nodes, 1)
        bound = Bound(self.load_factor, self.load_slack).checked("Nested")
        put = object.__setattr__  # as floats, so that equal placements print, and agree, alike
        put(self, "load_factor", bound.load_factor)
        put(self, "load_slack", bound.load_slack)
        put(self, "target", check_number("Nested", "target", self.target, above=True, at_most=1.0))
        half_life_s = check_number("Nested", "half_life_s", self.half_life_s, above=True)
        put(self, "half_life_s", half_life_s)

    @property
    def cut(self) -> Cut:
        """The whole chain."""
        return Cut(block_bytes=self.block_bytes)

    def start(self, random: Random) -> Policy:
        """Return a policy that knows nothing yet."""
        return NestedPolicy(self, random)


class NestedPolicy(StatelessPolicy):
    """Places by :class:`Nested`."""

    __slots__ = ("_bound", "_credit", "_found", "_known", "_map", "_traffic", "_walk")

    def __init__(self, config: Nested, random: Random) -> None:
        super().__init__(random)
        self._bound = Bound(config.load_factor, config.load_slack)
        self._traffic = Traffic(half_life_s=config.half_life_s, max_prefixes=config.max_prefixes)
        self._walk = Walk(self._traffic, config.target)
        self._map = PrefixMap(config.max_prefixes)
        self._credit = [list(_CREDIT_PRIOR), list(_CREDIT_PRIOR)]  # of homes at the root, deeper
        self._known = self._found = 0.0  # cached tokens that this router knew of; all of them

    # -- one decision ----------------------------------------------------------

    def choose(self, ask: Ask) -> Choice:
        """Weigh queue and uncached prefill of the candidates; ties in their order."""
        prompt, group = ask.prompt, ask.group
        if not prompt.chain:
            return self.keyless(ask)
        homes = self._walk.homes(prompt, group, ask.now)
        known = self._known_blocks(prompt, group, homes.everywhere)
        held = _held(homes, known)
        available: Collection[int] = ask.available
        if available is not group.everyone:
            available = set(available)
        home, order = homes.order[0], _candidates(homes, known, available)
        level = int(homes.depth > 0) if _may_credit(homes, held) else None
        limits, allowed = self._room(ask, order)
        if not allowed and len(order) < len(available):  # the bound holds while anybody has room
            order = [i for i in group.ring.order(prompt.chain[homes.depth]) if i in available]
            limits, allowed = self._room(ask, order)
        blocks_of = [held.get(index, homes.everywhere) for index in order]
        prefills = _prefills(ask, blocks_of, _sole(homes, held))
        if level is not None and home in order and ask.queues.foreign:
            found, replies = self._credit[level]
            at = order.index(home)
            prefills[at] = prefills[at].credited(found / replies)
        loads, costs = self._weigh(ask, order, prefills)
        among = enumerate(costs)  # all, where all are full
        best = min((cost, at) for at, cost in among if not allowed or order[at] in allowed)[1]
        index, chosen = order[best], prefills[best]
        return Choice(
            index=index,
            reason=_reason(ask, homes, index, available, allowed, held),
            home=home,
            depth=homes.depth,
            candidates=order,
            loads=loads,
            bound=limits[index],
            spread=homes.spread,
            held_tokens=chosen.held_tokens,
            held_blocks=held.get(index, homes.everywhere),
            uncached_tokens=chosen.uncached_tokens,
            shared_tokens=_tokens(ask, homes.sure.get(index, homes.everywhere)),
            credit_level=level if index == home else None,
            spreads=homes.spreads,
        )

    def _room(self, ask: Ask, order: Sequence[int]) -> tuple[dict[int, int], set[int]]:
        """Return the bound of each candidate, and those that are below it."""
        limits, states = self._bound.limits(ask.group, ask.available, order), ask.group.states
        return limits, {index for index in order if states[index].in_flight < limits[index]}

    def _known_blocks(self, prompt: Prompt, group: Group, more_than: int) -> dict[int, int]:
        """Return the leading blocks that indices hold of what was sent there, if they are more."""
        held: dict[int, int] = {}
        holders = [
            (blocks, bits)
            for sent, bits in self._map.holders(prompt.chain, _EVERYBODY)
            if (blocks := prompt.with_reply(sent)) > more_than
        ]
        if not holders:
            return held
        index_of = {state.bit: index for index, state in enumerate(group.states)}
        for blocks, bits in holders:
            left = bits
            while left:
                bit = left & -left
                left ^= bit
                index = index_of.get(bit)  # None: of another group
                if index is not None and held.get(index, 0) < blocks:
                    held[index] = blocks
        return held

    def _weigh(
        self, ask: Ask, order: Sequence[int], prefills: Sequence[_Prefill]
    ) -> tuple[list[float], list[float]]:
        """Return each candidate's load, and what it costs to send the request there, seconds.

        Its own time, and others': whoever comes while the queue lasts is delayed, by the relative
        value of an M/G/1 queue.

        Source: Hyytia, Penttinen, Aalto, "Size- and state-aware dispatching problem with
        queue-specific job sizes", EJOR 217 (2012), of own requests; all others' are in the price.
        """
        queues, states, now = ask.queues, ask.group.states, ask.now
        least = min(prefill.seconds for prefill in prefills)
        known, told = self._share_known, max(_PRICE_KNOWN, _PRICE_TOLD * queues.busy.lengthening)
        told -= (told - _PRICE_KNOWN) * known
        guessed = _PRICE - (_PRICE - _PRICE_KNOWN) * known
        scale, outlook = queues.scale(), queues.outlook
        loads, costs = [], []
        for index, prefill in zip(order, prefills, strict=True):
            seconds = prefill.seconds
            own, foreign, blindness, pressure = outlook(states[index], now, scale)
            load = own + foreign
            delay = pressure * seconds * (own + 0.5 * seconds)
            price = told if blindness is None else guessed + _PRICE_BLIND * blindness
            loads.append(load)
            costs.append(load + seconds + delay + price * (seconds - least))
        return loads, costs

    @property
    def _share_known(self) -> float:
        """Share of what was found cached that this router knew of: 1 if it is the only one."""
        return self._known / self._found if self._found > 0.0 else 0.0

    def seen(self, ask: Ask, choice: Choice) -> Seen:
        """Return the share of each prefix as the walk would read it now, spread and holders."""
        traffic, chain = self._traffic, ask.prompt.chain
        traffic.advance(ask.now)
        total = traffic.total(ask.group.label)
        keys, given = traffic_keys(chain, ask.group), dict(choice.spreads)
        held = self._known_blocks(ask.prompt, ask.group, 0).values()
        return Seen(
            requests=total,
            shares=[share(traffic.count(key), total) for key in keys],
            spreads=[given.get(key, 1) for key in keys],
            holders=[sum(blocks > at for blocks in held) for at in range(len(keys))],
        )

    # -- what happens ----------------------------------------------------------

    def sent(self, ask: Ask, choice: Choice, *, counted: bool) -> None:
        """Count the request's prefixes and note what its endpoint will hold."""
        super().sent(ask, choice, counted=counted)
        prompt = ask.prompt
        if not prompt.chain:
            return
        if counted:
            self._traffic.advance(ask.now)
            keys, label = traffic_keys(prompt.chain, ask.group), ask.group.label
            self._traffic.record(keys, label, prompt.lasting_blocks)
            for key, spread in choice.spreads:
                self._traffic.set_spread(key, spread)
            self._note_sizes(ask, keys[: len(choice.spreads)])
        self._map.add(prompt.chain, ask.group.states[choice.index].bit)

    def _note_sizes(self, ask: Ask, hot: Sequence[int]) -> None:
        """Note how long hot prefixes are, for people; anew at times, as tokens are learned."""
        anew = not self._requests % _SIZED_EVERY
        for at in range(0 if anew else self._traffic.sized(hot), len(hot)):
            self._traffic.set_size(hot[at], _tokens(ask, at + 1))

    def learned(self, loan: Loan) -> None:
        """Learn what share of the rest a home holds: what others brought there."""
        if loan.cached_tokens is None:
            return
        known = min(loan.held_tokens, loan.cached_tokens) - loan.shared_tokens
        self._known = self._known * _KNOWN_FADE + max(0.0, known)
        self._found *= _KNOWN_FADE
        self._found += max(0.0, loan.cached_tokens - loan.shared_tokens)
        if loan.credit_level is None:
            return
        tokens = loan.tokens if loan.prompt_tokens is None else float(loan.prompt_tokens)
        unknown = tokens - 1.0 - loan.held_tokens
        if unknown <= 0.0:
            return
        found = min(1.0, max(0.0, (loan.cached_tokens - loan.held_tokens) / unknown))
        credit = self._credit[loan.credit_level]
        credit[0] = credit[0] * _CREDIT_FADE + found
        credit[1] = credit[1] * _CREDIT_FADE + 1.0

    def unsent(self, loan: Loan) -> None:
        """Forget that the endpoint holds what it did not before."""
        self._map.discard(loan.prompt.chain[loan.blocks :], loan.state.bit)

    def hot(self, now: float) -> Hot:
        """Return own counts of the prefixes that may be hot."""
        self._traffic.advance(now)
        return self._traffic.hot()

    def heard(self, hot: Hot, now: float) -> None:
        """Judge from now on what is hot by what other routers have seen too."""
        self._traffic.advance(now)
        self._traffic.set_others(hot)

    def joined(self, state: EndpointState) -> None:
        """Give the endpoint a bit in the map."""
        state.bit = self._map.join()

    def left(self, state: EndpointState) -> None:
        """Forget what the endpoint held."""
        self._map.leave(state.bit)
        state.bit = 0


class _Prefill:
    """What a candidate would have to compute, tokens and seconds."""

    __slots__ = ("_behind_tokens", "_rate", "held_tokens", "seconds", "uncached_tokens")

    def __init__(
        self, uncached_tokens: float, held_tokens: float, behind_tokens: float, rate: float
    ) -> None:
        self.uncached_tokens, self.held_tokens = uncached_tokens, held_tokens
        self._behind_tokens, self._rate = behind_tokens, rate
        self.seconds = (uncached_tokens + behind_tokens) / rate

    def credited(self, share: float) -> _Prefill:
        """Return the same where others are taken to have brought this share of the rest."""
        uncached = max(1.0, self.uncached_tokens * (1.0 - share))
        return _Prefill(uncached, self.held_tokens, self._behind_tokens, self._rate)


def _prefills(ask: Ask, blocks_of: Sequence[int], sole: int | None) -> list[_Prefill]:
    """Return what each candidate would have to compute; those that hold the same share it.

    Args:
        ask: The question.
        blocks_of: Leading blocks that each holds.
        sole: What one endpoint alone holds, which is the most; ``None``: several do.
    """
    tokens, rate = ask.tokens, ask.queues.rate
    of_blocks = {}
    for blocks in set(blocks_of):
        held_tokens = _tokens(ask, blocks)
        behind = 0.0 if sole is None or blocks == sole else _REPLY_TOKENS
        of_blocks[blocks] = _Prefill(max(1.0, tokens - held_tokens), held_tokens, behind, rate)
    return [of_blocks[blocks] for blocks in blocks_of]


def _sole(homes: Homes, held: dict[int, int]) -> int | None:
    """Return the most blocks that anybody holds, if only one endpoint does."""
    most = max(held.values(), default=homes.everywhere)
    return most if list(held.values()).count(most) == 1 else None


def _held(homes: Homes, known: dict[int, int]) -> dict[int, int]:
    """Return the leading blocks that indices are believed to hold; others: ``everywhere``."""
    held = dict(homes.sure)
    for index, blocks in known.items():
        if held.get(index, 0) < blocks:
            held[index] = blocks
    return held


def _candidates(homes: Homes, known: dict[int, int], available: Collection[int]) -> Sequence[int]:
    """Return those that are weighed: the nearest, those that share the prompt, and who knows it."""
    order = [index for index in homes.order if index in available]
    near = NEAREST if homes.unique else max(NEAREST, homes.spread)
    if homes.whole:
        return order[:near] + [index for index in order[near:] if index in known]
    further = known.keys() - order
    return order + [index for index in sorted(further) if index in available]


def _may_credit(homes: Homes, held: dict[int, int]) -> bool:
    """Return whether the home may be taken to hold what others brought there."""
    if homes.credited or not homes.shared:
        return homes.credited
    everywhere = homes.everywhere
    most = max(held.values(), default=everywhere)
    return most <= max(homes.sure.values(), default=everywhere)


def _tokens(ask: Ask, blocks: int) -> float:
    """Return the size of the prompt's leading blocks, tokens."""
    return ask.prompt.ends[blocks - 1] * ask.per_unit if blocks else 0.0


def _reason(
    ask: Ask,
    homes: Homes,
    index: int,
    available: Collection[int],
    allowed: set[int],
    held: dict[int, int],
) -> Reason:
    home = homes.order[0]
    if ask.panic:
        return Reason.PANIC
    if index == home or not allowed:
        return Reason.HOME if allowed else Reason.OVERFLOW
    if home not in available:
        return Reason.HOME_UNAVAILABLE
    if not homes.unique and index in homes.order[: homes.spread]:
        return Reason.SPREAD
    if home not in allowed:
        return Reason.BOUND
    everywhere = homes.everywhere
    more = held.get(index, everywhere) > held.get(home, everywhere)
    return Reason.HOLDER if more else Reason.LOAD
