"""A decision in words: where the prompt was cut, what is hot, and why the endpoint was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from prefixroute.core.decision import Decision
from prefixroute.core.placement import Ask, Seen

__all__ = ["Boundary", "Explanation"]

_SHOWN: Final = 10


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """One boundary of a prompt.

    Args:
        key: The block hash up to here, 16 hexadecimal digits.
        tokens: Size of the prompt up to here, tokens.
        share: Share of the traffic that starts with the prompt up to here, as a lower bound, 0 to
            1; ``None`` where the placement does not look at traffic, and so below.
        spread: Endpoints that requests which start so are given; 1: its home alone.
        holders: Endpoints that this router has sent it to, as far as it remembers, and that have
            not lost their caches since.
    """

    key: str
    tokens: float
    share: float | None
    spread: int | None = None
    holders: int | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request would go where it would go; ``str()`` of it is for people.

    Args:
        decision: The decision.
        boundaries: The prompt's boundaries, from the root on.
        requests_seen: Decayed count of requests that this router has placed for these endpoints.
    """

    decision: Decision
    boundaries: tuple[Boundary, ...]
    requests_seen: float

    def __str__(self) -> str:
        """Return the explanation as text, a fact per line."""
        decision = self.decision
        lines = [
            f"goes to   {decision.endpoint.id}",
            f"why       {decision.reason.sentence}",
            f"home      {decision.home.id if decision.home else '-'}",
            f"key       {decision.key or '-'} (from {decision.key_source.value}, "
            f"boundary {decision.depth + 1} of {len(self.boundaries)})",
            f"prompt    about {decision.tokens:.0f} tokens, "
            f"{decision.expected_cached_tokens:.0f} of them expected in the cache there",
            f"spread    {decision.spread} endpoint{'' if decision.spread == 1 else 's'}",
            f"bound     {decision.bound if decision.bound is not None else '-'} in flight",
        ]
        if self.requests_seen < 1.0:
            lines.append("traffic   this router has seen none yet: nothing is known to be hot")
        else:
            lines.append(f"traffic   {self.requests_seen:.0f} requests seen (older ones fade)")
        return "\n".join([*lines, *self._boundary_lines(), *self._candidate_lines()])

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can say; endpoints are their ids."""
        decision = self.decision
        return {
            "endpoint": decision.endpoint.id,
            "home": decision.home.id if decision.home is not None else None,
            "key": decision.key,
            "key_source": decision.key_source.value,
            "depth": decision.depth,
            "reason": decision.reason.value,
            "sentence": decision.reason.sentence,
            "tokens": decision.tokens,
            "expected_cached_tokens": decision.expected_cached_tokens,
            "spread": decision.spread,
            "bound": decision.bound,
            "candidates": [endpoint.id for endpoint in decision.candidates],
            "in_flight": list(decision.in_flight),
            "loads": list(decision.loads),
            "boundaries": [msgspec.structs.asdict(boundary) for boundary in self.boundaries],
            "requests_seen": self.requests_seen,
        }

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from prefixroute.core.pages import explanation_html  # noqa: PLC0415 - few look

        return explanation_html(self)

    def _boundary_lines(self) -> list[str]:
        if not self.boundaries:
            return []
        first = self.boundaries[0]
        names = ["tokens up to each"]
        names += ["share of the traffic"] if first.share is not None else []
        names += ["spread"] if first.spread is not None else []
        names += ["endpoints that hold it"] if first.holders is not None else []
        lines = [f"boundaries, {', '.join(names)}:"]
        for at, boundary in enumerate(self.boundaries[:_SHOWN]):
            figures = [f"{boundary.tokens:9.0f}"]
            figures += [] if boundary.share is None else [f"{boundary.share:7.1%}"]
            counts = (boundary.spread, boundary.holders)
            figures += [f"{count:4d}" for count in counts if count is not None]
            mark = " <- key" if at == self.decision.depth else ""
            lines.append(f"  {boundary.key} {' '.join(figures)}{mark}")
        return [*lines, *_more(self.boundaries)]

    def _candidate_lines(self) -> list[str]:
        decision = self.decision
        lines = ["candidates in order, requests in flight, load in seconds of prefill:"]
        loads = decision.loads or (None,) * len(decision.candidates)
        rows = list(zip(decision.candidates, decision.in_flight, loads, strict=True))
        for endpoint, in_flight, load in rows[:_SHOWN]:
            seconds = "" if load is None else f"{load:9.3f}"
            mark = " <- chosen" if endpoint is decision.endpoint else ""
            lines.append(f"  {endpoint.id} {in_flight:4d}{seconds}{mark}")
        return [*lines, *_more(rows)]


def _more(items: Sequence[object]) -> list[str]:
    return [f"  ... and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []


def explanation(ask: Ask, decision: Decision, seen: Seen) -> Explanation:
    """Return the explanation of one decision, from the question that led to it."""
    prompt = ask.prompt
    none = (None,) * len(prompt.chain)
    spreads = seen.spreads if decision.depth >= 0 else ()  # a pinned request walks no ring
    columns = (seen.shares or none, spreads or none, seen.holders or none)
    return Explanation(
        decision=decision,
        boundaries=tuple(
            Boundary(
                key=f"{key:016x}",
                tokens=end * ask.per_unit,
                share=share,
                spread=spread,
                holders=holders,
            )
            for key, end, share, spread, holders in zip(
                prompt.chain, prompt.ends, *columns, strict=True
            )
        ),
        requests_seen=seen.requests,
    )
