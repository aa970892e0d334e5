"""``RouterCore``: one lock around one ledger.

Whatever is slow stays outside the lock: reading and hashing prompts, building rings, calling
observers. Inside it a request is placed and counted, or its end is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Final, TypeVar

from prefixroute.core.checks import refusal
from prefixroute.core.decision import Decision
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import Observer, RequestSent
from prefixroute.core.explain import Explanation, explanation
from prefixroute.core.failover import Failover, RetryBudget
from prefixroute.core.hashing import digest64, utf8
from prefixroute.core.health import HealthPolicy
from prefixroute.core.lease import Lease
from prefixroute.core.ledger import Ledger
from prefixroute.core.lending import Lending
from prefixroute.core.membership import Group
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.placer import Placed
from prefixroute.core.prompt import Prompt
from prefixroute.core.request import Body, Headers, read_prompt
from prefixroute.core.ring_view import RingView, ring_view
from prefixroute.core.settings import check_placement
from prefixroute.core.sharing import Sharing
from prefixroute.core.tokens import Tokenizer, TokenReader
from prefixroute.core.trials import Trials, with_holdout
from prefixroute.core.turns import SeenTurns
from prefixroute.core.waiters import Waiter
from prefixroute.errors import Saturated

__all__ = ["RouterCore"]

T = TypeVar("T")

_NONE: Final[frozenset[str]] = frozenset()


class RouterCore(Lending, Sharing):
    """Places requests on endpoints and keeps count of them; thread-safe; never does I/O.

    Args:
        endpoints: URLs and endpoints; their order is irrelevant.
        placement: How prompts are placed; default :class:`Nested`.
        failover: When a call is tried elsewhere.
        health: When endpoints are ejected.
        tokenizer: Counts prompts and cuts blocks in tokens; ``None``: in bytes.
        peers: Routers in front of these endpoints, this one included, if that is known: 1 means
            that nobody else's requests have to be guessed.
        seed: Of the ring; if given, also of ties and jitter, which else start at random.
        holdout: Share of the conversations that the baseline places, for comparison.
        holdout_placement: The baseline; default :class:`RoundRobin`.
        shadow: A second placement, which decides for every request and influences none.
        observers: Told of events, outside the lock.
        clock: Returns monotonic seconds.
        wall_clock: Returns seconds since the epoch.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.
    """

    inject_usage = False
    """Whether transports ask for the usage of streams, and hide it from callers who did not."""

    ask_load = False
    """Whether transports ask engines for their load, and hide it from callers who did not."""

    def __init__(  # noqa: PLR0913 - all that can be said about a router
        self,
        endpoints: Iterable[Endpoint | str],
        *,
        placement: Placement | None = None,
        failover: Failover | None = None,
        health: HealthPolicy | None = None,
        tokenizer: Tokenizer | None = None,
        peers: int | None = None,
        seed: int | None = None,
        holdout: float | None = None,
        holdout_placement: Placement | None = None,
        shadow: Placement | None = None,
        observers: Iterable[Observer] = (),
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.health = health if health is not None else HealthPolicy()
        placement = placement if placement is not None else Nested()
        check_placement("placement", placement)
        super().__init__(
            endpoints,
            placement=with_holdout(placement, holdout, holdout_placement),
            health=self.health,
            peers=peers,
            seed=seed,
            observers=observers,
            clock=clock,
        )
        if failover is not None and not isinstance(failover, Failover):
            raise refusal("Router", "failover", failover, "a Failover(), or None for the default")
        if not callable(wall_clock):
            raise refusal("Router", "wall_clock", wall_clock, "a function that returns seconds")
        self.failover = failover if failover is not None else Failover()
        self.wall_clock = wall_clock
        self._cut = self._placement.cut
        self._tokens = None if tokenizer is None else TokenReader(tokenizer)
        whole = self._tokens is None and self._cut.window_bytes is None
        self._turns = SeenTurns() if whole else None
        self._budget = RetryBudget(self.failover.budget_share, self.failover.budget_per_minute)
        if holdout is not None or shadow is not None:
            self._trials = Trials(
                self._placement,
                shadow,
                members=self._members,
                now=self._now(),
                health=self.health,
                peers=peers,
                seed=seed,
            )

    def __repr__(self) -> str:
        stats = self.stats()
        counts: dict[str, int] = {}
        for endpoint in stats.endpoints:
            counts[endpoint.state.value] = counts.get(endpoint.state.value, 0) + 1
        counts.pop("healthy", None)
        unwell = "".join(f", {count} {state}" for state, count in sorted(counts.items()))
        many = "" if len(stats.endpoints) == 1 else "s"
        return (
            f"<{type(self).__name__} {len(stats.endpoints)} endpoint{many}{unwell}, "
            f"{stats.in_flight} in flight>"
        )

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from prefixroute.core.pages import router_html  # noqa: PLC0415 - few look

        return router_html(repr(self), self.fingerprint, self.stats())

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of all that decides a placement: equal ones agree."""
        if self._tokens is None:
            return super().fingerprint
        return f"{digest64(utf8(f'{super().fingerprint} {self._tokens.name}')):016x}"

    @property
    def settings(self) -> dict[str, str]:
        """What :attr:`fingerprint` is made of, in words; nothing secret."""
        if self._tokens is None:
            return super().settings
        return {**super().settings, "tokenizer": self._tokens.name}

    # -- placing ---------------------------------------------------------------

    def read(
        self,
        body: Body,
        *,
        path: str | None = None,
        headers: Headers = None,
        session: str | None = None,
    ) -> Prompt:
        """Return what placement knows of a request; never raises."""
        cut, tokens = self._cut, self._tokens
        prompt = read_prompt(
            body,
            path=path,
            headers=headers,
            session=session,
            cut=cut,
            tokens=tokens,
            seen=self._turns,
        )
        if self._trials is None:
            return prompt
        session = prompt.session
        again = partial(
            read_prompt, body, path=path, headers=headers, session=session, tokens=tokens
        )
        return self._trials.seen(prompt, lambda other: again(cut=other))

    def route(
        self,
        body: Body,
        *,
        path: str | None = None,
        headers: Headers = None,
        session: str | None = None,
    ) -> Decision:
        """Return where a request would go now. No I/O, and nothing changes.

        Args:
            body: Request body (JSON bytes or mapping: the same answer), text, token ids or Prompt.
            path: The request's path, such as ``/v1/chat/completions``; it tells ``input`` of
                embeddings from that of responses.
            headers: The request's headers; ``x-session-id`` and ``x-prefix-id`` are read.
            session: Keeps requests together whatever their text.

        Raises:
            Saturated: Every eligible endpoint is at its ``max_in_flight``.
        """
        prompt = self.read(body, path=path, headers=headers, session=session)
        return self._placing(
            prompt,
            lambda ledger, now, groups: self._place(ledger, prompt, groups, now, _NONE).decision(),
        )

    def explain(
        self,
        body: Body,
        *,
        path: str | None = None,
        headers: Headers = None,
        session: str | None = None,
    ) -> Explanation:
        """Return where a request would go now, and why; prints as text. Takes what route takes."""
        prompt = self.read(body, path=path, headers=headers, session=session)

        def explained(ledger: Ledger, now: float, groups: Sequence[Group]) -> Explanation:
            placed = self._place(ledger, prompt, groups, now, _NONE)
            seen = ledger.policy.seen(placed.ask, placed.choice)
            return explanation(placed.ask, placed.decision(), seen)

        return self._placing(prompt, explained)

    def ring(self, model: str | None = None, *, tier: int | None = None) -> RingView:
        """Return whose keys are whose: each endpoint's share of the ring beside the fair one.

        Args:
            model: On the ring of those that may serve it; ``None``: one that nobody lists.
            tier: On the ring of this tier; ``None``: the lowest.

        Raises:
            ConfigurationError: There is no such tier.
        """
        return ring_view(self._members.groups(model), tier)

    def acquire(
        self,
        body: Body,
        *,
        path: str | None = None,
        headers: Headers = None,
        session: str | None = None,
        exclude: Iterable[str] = (),
    ) -> Lease:
        """Choose an endpoint for a request and count the request as in flight there.

        Args:
            body: As for :meth:`route`, and so the next three.
            path: The request's path.
            headers: The request's headers.
            session: Keeps requests together whatever their text.
            exclude: Ids or URLs of endpoints that were tried already; others than there are, are
                ignored.

        Raises:
            Saturated: Every eligible endpoint is excluded or at its ``max_in_flight``.
        """
        began = self._clock()
        prompt = self.read(body, path=path, headers=headers, session=session)
        return self.lease(prompt, exclude=self._ids(exclude), began=began)

    def lease(
        self,
        prompt: Prompt,
        *,
        exclude: frozenset[str] = _NONE,
        avoid: frozenset[str] = _NONE,
        began: float | None = None,
    ) -> Lease:
        """Do what :meth:`acquire` does, for a prompt that is read already.

        Args:
            prompt: What is to be placed.
            exclude: Ids of endpoints that were tried already.
            avoid: Ids of endpoints that are chosen only if nobody else is well and has room.
            began: When reading the prompt began, by :meth:`now`; ``None``: not known.
        """

        def lent(ledger: Ledger, now: float, groups: Sequence[Group]) -> Lease:
            placed = self._place(ledger, prompt, groups, now, exclude, avoid)
            return self._lend(ledger, placed, retry=bool(exclude), began=began)

        return self._placing(prompt, lent)

    def _lend(
        self,
        ledger: Ledger,
        placed: Placed,
        *,
        retry: bool,
        began: float | None = None,
        context: Context | None = None,
    ) -> Lease:
        """Carry out a placement; the traffic counts a call once, however often it is tried."""
        decision = placed.decision()  # before it changes what is in flight
        loan = ledger.lend(placed, counted=not retry)
        if self._trials is not None:
            self._trials.begin(ledger, placed, loan, retry=retry, told=self._is_watched)
        if self._is_watched:
            took = None if retry or began is None else max(0.0, self._clock() - began)
            sent = RequestSent(
                decision=decision,
                retry=retry,
                decision_s=took,
                serial=loan.serial,
                context=context,
            )
            ledger.events.append(sent)
        return Lease(self, loan, decision)

    def _placing(self, prompt: Prompt, act: Callable[[Ledger, float, Sequence[Group]], T]) -> T:
        """Act under the lock, with the groups that may serve a prompt, which are made outside."""
        while True:
            members = self._members
            groups = members.groups(prompt.model)
            if self._trials is not None:
                self._trials.prepare(prompt.model)
            with self._locked() as (ledger, now):
                if ledger.members is members:  # else they have changed meanwhile
                    return act(ledger, now, groups)

    @staticmethod
    def _place(
        ledger: Ledger,
        prompt: Prompt,
        groups: Sequence[Group],
        now: float,
        exclude: frozenset[str],
        avoid: frozenset[str] = _NONE,
    ) -> Placed:
        placed = ledger.placer.place(prompt, groups, now, exclude, avoid)
        if placed is not None:
            return placed
        tried = f", and {len(exclude)} excluded" if exclude else ""
        raise Saturated(
            f"every eligible endpoint is at its max_in_flight{tried}: wait for a request to end, "
            "raise max_in_flight, or add an endpoint"
        )

    # -- what an exchange asks -----------------------------------------------

    def now(self) -> float:
        """Return the time of the router's clock, seconds."""
        return self._clock()

    def count_call(self) -> None:
        """Note a call, which adds to the budget of further tries."""
        with self._locked() as (_, now):
            self._budget.call(now)

    def may_retry(self) -> bool:
        """Take one further try out of the budget; ``False``: it is spent."""
        with self._locked() as (_, now):
            return self._budget.take(now)

    def note_failed(self, request: int | None, endpoint_id: str) -> None:
        """Remember for a while, for its caller's own retry, who failed a request of a digest."""
        if request is None or self.in_lock:
            return
        with self._locked() as (ledger, now):
            ledger.failed_calls.note(request, endpoint_id, now)

    def note_served(self, digest: Callable[[], int | None]) -> None:
        """Note that a request was served; its digest is asked for only if that may matter."""
        if not self._ledger.judge.suspects(self.now()):
            return
        request = digest()
        if request is not None:
            with self._locked() as (ledger, _):
                ledger.judge.served(request)

    def failed_lately(self, request: int | None) -> frozenset[str]:
        """Return the ids of those that failed a request of a digest lately."""
        if request is None:
            return _NONE
        with self._locked() as (ledger, now):
            return ledger.failed_calls.of(request, now)

    def queue(self, prompt: Prompt, *, exclude: frozenset[str] = _NONE) -> Waiter | None:
        """Put a call into the queue for an endpoint with room; ``None``: all are excluded."""
        waiter = Waiter(prompt, exclude)

        def queued(ledger: Ledger, _: float, groups: Sequence[Group]) -> Waiter | None:
            if all(s.endpoint.id in exclude for group in groups for s in group.states):
                return None
            ledger.waiting.append(waiter)
            return waiter

        return self._placing(prompt, queued)

    def unqueue(self, waiter: Waiter) -> Lease | None:
        """Take a call out of the queue; return the lease that it was given, if it was."""
        with self._locked() as (ledger, _):
            if waiter in ledger.waiting:
                ledger.waiting.remove(waiter)
        return waiter.lease

    def poke(self) -> None:
        """Look whether time alone has made room for those who wait (a cooldown that is over)."""
        with self._locked():
            pass

    def _grant(self, ledger: Ledger, now: float) -> list[Callable[[], object]]:
        granted: list[Callable[[], object]] = []
        full: set[tuple[int, frozenset[str]]] = set()  # what had no room for somebody before
        for waiter in list(ledger.waiting):
            groups, tried = self._members.groups(waiter.prompt.model), waiter.exclude
            if (id(groups), tried) in full:
                continue
            placed = ledger.placer.place(waiter.prompt, groups, now, tried)
            if placed is None:
                full.add((id(groups), tried))
                continue
            ledger.waiting.remove(waiter)
            lease = self._lend(ledger, placed, retry=bool(tried), context=waiter.context)
            granted.append(partial(waiter.grant, lease))
        return granted
