"""The goals of ``benchmarks.peers``, judged: arithmetic on figures that were measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from benchmarks.measuring import Row, ratio_row
from benchmarks.peers.arms import Batch, Name

__all__ = ["CLIENTS", "Found", "hidden", "rows", "values"]

Found: TypeAlias = Mapping[Name, Sequence[Batch]]
"""What came of every repeat of each arm."""

CLIENTS: Final[Mapping[str, str]] = {
    "httpx": "httpx post",
    "openai": "OpenAI create()",
    "httpx-sse": "httpx, SSE by lines",
}
"""How servers are called straight, through the Router and through gateways."""

_CALLS: Final = (
    ("sync", "create()", "openai"),
    ("sync", "post()", "openai-post"),
    ("async", "create()", "openai-async"),
    ("async", "post()", "openai-post-async"),
)
"""How they are called beside LiteLLM: its way, ours, and the name of ours."""

_LEAST_US: Final = 1.0
"""What is added at the least: where noise hides it in a repeat, a ratio to less says nothing."""

_DRAWN: Final = "it draws a deployment and reads no prompt"
_COUNTED: Final = "it counts tokens up to 1,024 only, and weighs no queues"
_WALKED: Final = (
    "create() walks every message; LiteLLM, on the same SDK, leaves that out, as post()"
)
_HOP: Final = "Python here, compiled code there, and no network between"
_CALL: Final = "the call itself takes most of both"


def rows(found: Found, gateways: Iterable[str], ours: str) -> list[Row]:
    """Return every goal for which both sides were measured, misses with a reason."""
    made = [*_decisions(found, ours), *_litellm_calls(found, ours)]
    for gateway in gateways:
        for client in CLIENTS:
            if (three := _Three.of(found, client, gateway, ours)) is not None:
                made += [*three.added(), three.cpu()]
    return made


def hidden(found: Found, gateways: Iterable[str], ours: str) -> dict[str, str]:
    """Return what was measured and not judged, because the noise is larger, and how large."""
    threes = [_Three.of(found, client, gateway, ours) for gateway in gateways for client in CLIENTS]
    return {three.label: three.noise for three in threes if three is not None and three.lost}


# -- LiteLLM ---------------------------------------------------------------------------------------


def _decisions(found: Found, ours: str) -> Iterator[Row]:
    own = found.get(("decide", "bytes", ours))
    for check, goal, why in (
        ("simple-shuffle", 15.0, _DRAWN),
        ("prompt-caching check", 100.0, _COUNTED),
    ):
        theirs = found.get(("decide", check, "LiteLLM"))
        if own is None or theirs is None:
            continue
        for key, sight in (("first_us", "first sight"), ("next_us", "next turn")):
            mine, other = values(own, key), values(theirs, key)
            row = ratio_row(
                f"decision, {sight}: faster than LiteLLM's {check}",
                other,
                mine,
                unit="x",
                goal=goal,
                at_least=True,
                note=f"{_middle(mine):.0f} us against {_middle(other):.0f} us",
            )
            yield _judged(row, why)


def _litellm_calls(found: Found, ours: str) -> Iterator[Row]:
    for mode, by, client in _CALLS:
        direct = found.get(("litellm", client, "direct"))
        own = found.get(("litellm", client, ours))
        theirs = found.get(("litellm", mode, "LiteLLM"))
        if direct is None or own is None or theirs is None:
            continue
        mine, other = values(own, "cpu_us"), values(theirs, "cpu_us")
        most = _middle(other) / _middle(values(direct, "cpu_us"))
        row = ratio_row(
            f"CPU of a call, OpenAI {by}, {mode}: less than LiteLLM's",
            other,
            mine,
            unit="x",
            goal=3.0,
            at_least=True,
            note=f"{_middle(mine) / 1000:.2f} ms against {_middle(other) / 1000:.2f} ms; "
            f"no routing at all {most:.2g} x",
        )
        yield _judged(row, _WALKED)


# -- gateways --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Three:
    """The same client straight, through the Router, and through a gateway."""

    label: str
    gateway: str
    direct: Sequence[Batch]
    own: Sequence[Batch]
    theirs: Sequence[Batch]

    @classmethod
    def of(cls, found: Found, client: str, gateway: str, ours: str) -> _Three | None:
        """Return them, if all three were measured."""
        direct, own, theirs = (
            found.get(("gateway", client, through)) for through in ("direct", ours, gateway)
        )
        if direct is None or own is None or theirs is None:
            return None
        label = f"added P50, {CLIENTS[client]}: against {gateway}'s"
        return cls(label=label, gateway=gateway, direct=direct, own=own, theirs=theirs)

    def _beyond(self, batches: Sequence[Batch]) -> list[float]:
        """Return what is added to the client that calls straight, in each repeat."""
        least = values(self.direct, "p50_us")
        return [at - to for at, to in zip(values(batches, "p50_us"), least, strict=True)]

    @property
    def lost(self) -> bool:
        """Whether noise hides what either of them adds."""
        return min(_middle(self._beyond(self.own)), _middle(self._beyond(self.theirs))) <= 0

    @property
    def noise(self) -> str:
        """What is known of it."""
        base = [value / 1000 for value in values(self.direct, "p50_us")]
        return (
            f"noise hides it: calls straight to a server took {min(base):.2f} to {max(base):.2f} "
            "ms; measure on a quieter machine"
        )

    def added(self) -> Iterator[Row]:
        """Yield what the Router adds to a call, against what the gateway adds, unless lost."""
        if self.lost:
            return
        mine, other = self._beyond(self.own), self._beyond(self.theirs)
        row = ratio_row(
            self.label,
            *([max(_LEAST_US, value) for value in added] for added in (mine, other)),
            unit="x",
            goal=0.1,
            note=f"{_middle(mine):.0f} us against {_middle(other):.0f} us, "
            f"to {_middle(values(self.direct, 'p50_us')) / 1000:.2f} ms",
        )
        yield _judged(row, _HOP)

    def cpu(self) -> Row:
        """Return the CPU time of a call through the Router, against client and gateway."""
        spent = values(self.own, "cpu_us")
        client, gateway = values(self.theirs, "cpu_us"), values(self.theirs, "gateway_us")
        both = [here + there for here, there in zip(client, gateway, strict=True)]
        least = _middle(values(self.direct, "cpu_us")) / _middle(both)
        what = self.label.removeprefix("added P50, ").partition(":")[0]
        row = ratio_row(
            f"CPU of a call, {what}: against client and {self.gateway}",
            spent,
            both,
            unit="x",
            goal=0.5,
            note=f"{_middle(spent):.0f} us against {_middle(client):.0f} + "
            f"{_middle(gateway):.0f} us; no routing at all {least:.2f} x",
        )
        return _judged(row, _CALL)


def values(batches: Sequence[Batch], key: str) -> list[float]:
    """Return one figure of every repeat."""
    return [batch[key] for batch in batches]


def _middle(several: Sequence[float]) -> float:
    return statistics.median(several)


def _judged(row: Row, why: str) -> Row:
    """Return the row; one that misses its goal with the reason."""
    return row if row.met else replace(row, note=f"{row.note}; {why}")
