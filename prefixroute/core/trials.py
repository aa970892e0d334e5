"""``Trials``: proof in production: a holdout, a shadow, or both, beside a router's placement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from prefixroute.core.checks import check_number, refusal
from prefixroute.core.crowding import uniform
from prefixroute.core.decision import Reason
from prefixroute.core.events import EndpointEjected, Event, GroupReply, ShadowPlaced
from prefixroute.core.fixed import RoundRobin
from prefixroute.core.groups import PARTS, Groups, Tally
from prefixroute.core.hashing import digest64
from prefixroute.core.health import HealthPolicy
from prefixroute.core.holdout import HeldOut, conversation_of, is_held_out
from prefixroute.core.ledger import Ledger
from prefixroute.core.load import EndpointState, Loan
from prefixroute.core.logs import log
from prefixroute.core.membership import Members
from prefixroute.core.placement import Placement
from prefixroute.core.placer import Placed
from prefixroute.core.prompt import Aside, Cut, Prompt
from prefixroute.core.settings import check_placement
from prefixroute.core.shadow import Shadow, Shadowed
from prefixroute.core.stats import Stats
from prefixroute.errors import ConfigurationError

__all__ = ["Trial", "Trials", "with_holdout"]

_PART_SALT: Final = digest64(b"prefixroute holdout, parts")
_WHOLE: Final = Cut()


class Trial(msgspec.Struct):
    """What is kept of one lease for the comparison."""

    tally: Tally | None
    part: int
    shadowed: Shadowed | None


def with_holdout(
    placement: Placement, share: object, baseline: Placement | None
) -> Placement | HeldOut:
    """Return a placement that holds a share of the conversations out; ``None``: none.

    Raises:
        ConfigurationError: A share that is none, a baseline that is no placement, or one whose
            ring is another.
    """
    if share is None:
        if baseline is not None:
            raise refusal(
                "Router", "holdout_placement", baseline, "left out while there is no holdout="
            )
        return placement
    rule = "0.05 holds out one conversation in twenty; None none"
    checked = check_number("Router", "holdout", share, above=True, at_most=1.0, hint=rule)
    if checked == 1.0:
        raise refusal("Router", "holdout", share, f"below 1: {rule}")
    check_placement("holdout_placement", baseline)
    base = RoundRobin() if baseline is None else baseline
    nodes = {placement.virtual_nodes, base.virtual_nodes} - {1}
    if len(nodes) > 1:
        raise ConfigurationError(
            f"Router(holdout_placement={base!r}) must have the virtual_nodes of the placement, "
            f"{placement.virtual_nodes}: both walk one ring"
        )
    return HeldOut(placement=placement, baseline=base, share=checked)


class Trials:
    """What a router compares its placement with.

    A comparison never hurts a request: should anything here raise, that is logged once, and nothing
    is compared any more.

    Args:
        placement: The router's.
        shadow: A second one, which decides and influences nothing; ``None``: none.
        members: The router's.
        now: Seconds.
        health: As the router's.
        peers: As the router's.
        seed: As the router's.
    """

    def __init__(
        self,
        placement: Placement | HeldOut,
        shadow: Placement | None,
        *,
        members: Members,
        now: float,
        health: HealthPolicy,
        peers: int | None,
        seed: int | None,
    ) -> None:
        check_placement("shadow", shadow)
        random = Random(seed)  # noqa: S311 - ties and samples, nothing secret
        self._cut = placement.cut
        self._held_out = placement if isinstance(placement, HeldOut) else None
        self._shadow_cut = None if shadow is None else shadow.cut
        self._broken = False
        self.groups: Groups | None = None
        if (held := self._held_out) is not None:
            names = repr(held.placement), repr(held.baseline)
            self.groups = Groups(held.share, *names, random)
        self.shadow: Shadow | None = None
        if shadow is not None:
            self.shadow = Shadow(
                shadow,
                members=members,
                now=now,
                health=health,
                peers=peers,
                seed=seed or 0,
                random=random,
            )

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever it is, requests go on
            if not self._broken:
                self._broken = True
                log.exception("comparing placements failed; it is left off from now on")

    # -- reading ---------------------------------------------------------------------

    def seen(self, prompt: Prompt, again: Callable[[Cut], Prompt]) -> Prompt:
        """Return a prompt with what the comparison needs of it.

        Args:
            prompt: As the placement wants it cut.
            again: Reads the same request, cut otherwise.
        """
        if not self._broken:
            with self._harmless():
                return self._seen(prompt, again)
        return prompt

    def _seen(self, prompt: Prompt, again: Callable[[Cut], Prompt]) -> Prompt:
        cuts = {self._cut: prompt}

        def cut_by(cut: Cut) -> Prompt:
            made = cuts.get(cut)
            if made is None:
                made = cuts[cut] = again(cut)
            return made

        wanted = [cut for cut in (self._cut, self._shadow_cut) if cut is not None]
        whole = next((cut_by(cut) for cut in wanted if cut.window_bytes is None), None)
        aside = self._group_of(whole or cut_by(_WHOLE))
        if self._shadow_cut is not None:
            shadow = cut_by(self._shadow_cut)
            aside = replace(aside, shadow=shadow, whole=whole or cut_by(_WHOLE))
        if aside.held_out and self._held_out is not None:
            prompt = cut_by(self._held_out.baseline.cut)
        return replace(prompt, aside=aside)

    def _group_of(self, whole: Prompt) -> Aside:
        conversation = conversation_of(whole)
        if self.groups is None or conversation is None:
            return Aside()
        part = int(uniform(conversation, _PART_SALT) * PARTS)
        if not is_held_out(conversation, self.groups.share):
            return Aside(part=part)
        if self.groups.is_over:
            return Aside(excess=True)
        return Aside(held_out=True, part=part)

    def prepare(self, model: str | None) -> None:
        """Make what a model's requests need, outside of the lock."""
        if self.shadow is not None:
            with self._harmless():
                self.shadow.prepare(model)

    # -- one lease, under the router's lock ------------------------------------------------

    def begin(self, ledger: Ledger, placed: Placed, loan: Loan, *, retry: bool, told: bool) -> None:
        """Note a request that is being sent.

        Args:
            ledger: The router's.
            placed: Where it goes.
            loan: Of its lease.
            retry: It is a further try of its call.
            told: Somebody watches events.
        """
        aside = placed.ask.prompt.aside
        if aside is None or self._broken or placed.choice.reason is Reason.PINNED:
            return  # no placement decides where what is pinned goes
        with self._harmless():
            loan.trial = self._begin(ledger, placed, aside, retry=retry, told=told)

    def _begin(
        self, ledger: Ledger, placed: Placed, aside: Aside, *, retry: bool, told: bool
    ) -> Trial | None:
        tally, shadowed = None, None
        if self.groups is not None and aside.part is not None:
            tally = self.groups.held_out if aside.held_out else self.groups.routed
            tally.requests += not retry
        elif self.groups is not None and aside.excess:
            self.groups.excess += not retry
        own, whole = aside.shadow, aside.whole
        if self.shadow is not None and own is not None and whole is not None and not retry:
            shadowed = self.shadow.place(own, whole, placed, placed.ask.now)
            if shadowed is not None and told:
                ledger.events.append(_event_of(shadowed))
        if tally is None and shadowed is None:
            return None
        return Trial(tally, aside.part or 0, shadowed)

    def first_token(self, trial: Trial, now: float) -> None:
        """Note a first token."""
        if self.shadow is not None and trial.shadowed is not None:
            with self._harmless():
                self.shadow.first_token(trial.shadowed.loan, now)

    def ended(self, ledger: Ledger, loan: Loan, trial: Trial, now: float, *, told: bool) -> None:
        """Note the end of a lease."""
        loan.trial = None
        with self._harmless():
            self._ended(ledger, loan, trial, now, told=told)

    def _ended(self, ledger: Ledger, loan: Loan, trial: Trial, now: float, *, told: bool) -> None:
        if self.shadow is not None and trial.shadowed is not None:
            self.shadow.ended(trial.shadowed.loan, loan, now)
        if trial.tally is None or self.groups is None:
            return
        trial.tally.ended(loan, trial.part)
        if told:
            ledger.events.append(
                GroupReply(
                    held_out=trial.tally is self.groups.held_out,
                    failed=loan.failed,
                    prompt_tokens=loan.prompt_tokens,
                    cached_tokens=loan.cached_tokens,
                    ttft_s=None if loan.first_at is None else loan.first_at - loan.sent_at,
                )
            )

    # -- everything else ---------------------------------------------------------------

    def heard(self, events: Iterable[Event], states: Iterable[EndpointState]) -> None:
        """Take what happened to endpoints."""
        if self.shadow is None:
            return
        ejected = {event.endpoint_id for event in events if isinstance(event, EndpointEjected)}
        for state in states if ejected else ():
            if state.endpoint.id in ejected:
                with self._harmless():
                    self.shadow.ejected(state)

    def forked(self) -> None:
        """Drop the leases of the parent process."""
        if self.shadow is not None:
            self.shadow.forked()

    def added_to(self, stats: Stats) -> Stats:
        """Return a router's counts with what was compared."""
        return replace(
            stats,
            holdout=None if self.groups is None else self.groups.stats(),
            shadow=None if self.shadow is None else self.shadow.stats(),
        )


def _event_of(shadowed: Shadowed) -> ShadowPlaced:
    return ShadowPlaced(
        moved=shadowed.moved,
        tokens=shadowed.tokens,
        given_cached_tokens=shadowed.given_cached_tokens,
        shadow_cached_tokens=shadowed.shadow_cached_tokens,
    )
