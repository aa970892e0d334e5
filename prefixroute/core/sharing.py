"""``Sharing``: what a router tells other routers of itself, and takes from them.

Whoever carries it between them (``prefixroute.signals.redis``) calls these now and then, from a
thread of its own. What they do under the lock is bounded, and takes microseconds as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from heapq import nlargest
from operator import itemgetter

from msgspec.structs import replace

from prefixroute.core.crowding import note_crowd
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.hashing import digest64, utf8
from prefixroute.core.load import EndpointState, EngineLoad
from prefixroute.core.others import Others, OthersLoad, OwnLoad
from prefixroute.core.queues import Queues
from prefixroute.core.roster import PLACEMENT_VERSION, Roster
from prefixroute.core.traffic import Hot
from prefixroute.errors import UnknownEndpointError

__all__ = ["Sharing", "traffic_key"]


class Sharing(Roster):
    """A roster that can be one of several in front of the same endpoints."""

    def own_loads(self) -> dict[str, OwnLoad]:
        """Return what this router has at each endpoint now, by id."""
        with self._locked() as (ledger, now):
            rate, queues = ledger.queues.rate, ledger.queues
            return {
                state.endpoint.id: OwnLoad(
                    requests=state.in_flight,
                    tokens=queues.own_s(state, now) * rate,
                    ejected=state.health.ejected_until is not None and not state.health.hearsay,
                    draining=state.health.draining,
                )
                for state in self._members.states
            }

    def report_others(self, loads: Mapping[str, OthersLoad], *, for_s: float) -> None:
        """Take what all other routers together have at endpoints, by id or URL.

        Requests of this router must not be in it. While it is fresh, nothing is guessed; of an
        engine's reports what they show beyond it counts too.

        Args:
            loads: By endpoint; those that are not (or no longer) here are ignored.
            for_s: How long it may be believed, seconds.
        """
        found = []
        for name, load in loads.items():
            try:
                found.append((self._find(name), load))
            except UnknownEndpointError:
                continue
        with self._locked() as (ledger, now):
            for state, load in found:
                if not ledger.queues.fresh(state, now):  # else the engine tells how crowded it is
                    _note_load(ledger.queues, state, load, now)
                state.others = Others(
                    requests=load.requests, tokens=load.tokens, at=now, until=now + for_s
                )

    def suspect(self, endpoint: Endpoint | str) -> bool:
        """Eject an endpoint that other routers found to fail, until it is due a probe.

        Returns:
            Whether that was done: it may be ejected already, or too many may be
            (``HealthPolicy.max_ejected_share``).

        Raises:
            UnknownEndpointError: There is none of this id or URL.
        """
        state = self._find(endpoint)
        with self._locked() as (ledger, now):
            return ledger.judge.suspect(state, now)

    # -- what is hot -------------------------------------------------------------

    @property
    def traffic_key(self) -> str:
        """16 hexadecimal digits of what :meth:`hot` depends on: how prompts are cut and counted."""
        return traffic_key(self.settings)

    def hot(self, limit: int) -> Hot:
        """Return what this router has counted of its hottest prefixes; digests alone, no text.

        Args:
            limit: The most prefixes, and the most groups.
        """
        with self._locked() as (ledger, now):
            found = ledger.policy.hot(now)
        totals = nlargest(limit, found.totals.items(), key=itemgetter(1))
        prefixes = nlargest(limit, found.prefixes, key=itemgetter(1))
        sizes = found.tokens
        return replace(
            found,
            totals={_name(group): total for group, total in totals},
            prefixes=prefixes,
            tokens={prefix: sizes[prefix] for prefix, *_ in prefixes if prefix in sizes},
        )

    def report_traffic(self, hot: Hot) -> None:
        """Take what other routers have counted, in place of what they had the last time.

        What is hot is then judged by all of these requests, as if this router had seen them.
        """
        labels: dict[Hashable, Hashable] = {_name(label): label for label in self._members.labels}
        totals: dict[Hashable, float] = {
            labels[name]: total for name, total in hot.totals.items() if name in labels
        }
        with self._locked() as (ledger, now):
            ledger.policy.heard(replace(hot, totals=totals), now)

    # -- who agrees --------------------------------------------------------------

    @property
    def settings(self) -> dict[str, str]:
        """What :attr:`fingerprint` is made of, in words; nothing secret."""
        made = {
            "version": str(PLACEMENT_VERSION),
            "seed": str(self._seed),
            "placement": repr(self._placement),
        }
        for e in self.endpoints:
            models = "all" if e.models is None else ",".join(sorted(e.models))
            made[f"endpoint {e.id}"] = f"weight {e.weight:g}, tier {e.tier}, models {models}"
        return made


def traffic_key(settings: Mapping[str, str]) -> str:
    """Return :attr:`Sharing.traffic_key` of a router with these :attr:`Sharing.settings`."""
    version, placement = settings.get("version"), settings.get("placement")
    text = f"({version}, {placement}, {settings.get('tokenizer')!r})"
    return f"{digest64(utf8(text)):016x}"


def _name(group: object) -> int:
    return digest64(utf8(repr(group)))


def _note_load(queues: Queues, state: EndpointState, load: OthersLoad, now: float) -> None:
    """Count all requests there, own ones too: so every router comes to the same means."""
    before = max(state.reported_at, state.others.at if state.others is not None else -math.inf)
    total = EngineLoad(running=load.requests + state.in_flight)
    note_crowd(state, total, max(0.0, now - before))
    queues.note_busy(waiting=load.tokens > 0.0 or bool(state.open), since_s=now - before)
