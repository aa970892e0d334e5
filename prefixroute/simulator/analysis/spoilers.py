"""What spoils prefixes: places in prompts that vary and keep what follows from being shared.

Candidates come from the texts themselves (`clusters`); whether one costs anything is measured: the
prompts are chained again with the place made equal in all requests, and what they then repeat is
compared. A place in front of nothing that is shared costs nothing, and is not reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from prefixroute.core.prompt import BYTES_PER_TOKEN, Cut, Prompt
from prefixroute.core.request import read_prompt
from prefixroute.simulator.analysis.clusters import Book, Cluster, Stretch
from prefixroute.simulator.analysis.kinds import kind_of, masked
from prefixroute.simulator.analysis.report import Search, Spoiler
from prefixroute.simulator.analysis.segments import (
    FIELDS,
    Place,
    Segment,
    label_of,
    replaced,
    segments,
    tools_text,
)

__all__ = ["Sample", "find_spoilers"]

_CUT: Final = Cut(block_bytes=128)
"""Blocks of about 32 tokens: near to what engines have, and few enough to be fast."""

_LEAST_SHARE: Final = 0.01
_LEAST_TOKENS: Final = 32
"""A place costs at least this share of all prompt tokens, and so many tokens of each request."""

_MOST: Final = 8
"""Places whose loss is measured; more are seldom, and each takes a pass over its requests."""

_VALUES: Final = 512
_VARIES: Final = 0.2
_FRONT: Final = 256
"""Characters of a constant text that a varying one stands in front of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request whose text is looked at.

    Args:
        body: Its body.
        path: The path that it was sent to.
        prompt: What placement knows of it.
    """

    body: Mapping[str, Any]
    path: str | None
    prompt: Prompt


@dataclass(slots=True, kw_only=True)
class _Candidate:
    """A place that varies.

    Attributes:
        place: Where.
        role: Whose text it is.
        kind: What it is.
        pattern: How it is shown.
        before: The text in front of it.
        offset: Of its first character in the first text, characters.
        stretches: In each request: stretches of its text, or nothing where all of it counts.
        values: Some that stood there.
    """

    place: Place
    role: str
    kind: str = "text"
    pattern: str = ""
    before: str = ""
    offset: int = 0
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)


def find_spoilers(
    samples: Sequence[Sample], progress: Callable[[str], None] | None = None
) -> Search:
    """Return what spoils the prefixes of these requests, the costliest first."""
    tell = progress or (lambda _: None)
    tell("looking for what varies")
    texts = [segments(sample.body) for sample in samples]
    candidates = _candidates(samples, texts)
    if not candidates:
        return _nothing([sample.prompt for sample in samples])
    tell("measuring what it costs")
    return _Measure(samples, texts, candidates).search()


# -- candidates ------------------------------------------------------------------------------------


def _candidates(samples: Sequence[Sample], texts: list[list[Segment]]) -> list[_Candidate]:
    book = Book()
    groups = [[book.add(at, segment) for segment in found] for at, found in enumerate(texts)]
    merged: dict[tuple[Place, str], _Candidate] = {}
    for cluster in book.clusters:
        for candidate in _varying(cluster):
            known = merged.setdefault(
                (candidate.place, masked(candidate.before, "text")), candidate
            )
            if known is not candidate:
                known.stretches.update(candidate.stretches)
                known.values += candidate.values
    for candidate in merged.values():
        candidate.kind = kind_of(candidate.values, candidate.before)
        candidate.pattern = masked(candidate.before, candidate.kind)
    found = [*merged.values(), *_whole(texts, groups), *_tools(texts), *_fields(samples)]
    return _worth_measuring(found, samples, texts)


def _worth_measuring(
    found: list[_Candidate], samples: Sequence[Sample], texts: list[list[Segment]]
) -> list[_Candidate]:
    """Return those in front of enough text that they may cost something, the most so first."""
    total = sum(sample.prompt.size for sample in samples)
    costs = {}
    for number, candidate in enumerate(found):
        units = 0
        for request, stretches in candidate.stretches.items():
            before = sum(end for _, end in stretches[:1])
            for segment in texts[request]:
                if segment.place == candidate.place or candidate.role == "field":
                    break
                before += len(segment.text)
            units += max(0, samples[request].prompt.size - before)
        least = _LEAST_TOKENS * len(candidate.stretches) * BYTES_PER_TOKEN
        if units >= max(_LEAST_SHARE * total, least):
            costs[number] = units
    return [found[number] for number in sorted(costs, key=lambda n: -costs[n])[: 2 * _MOST]]


def _varying(cluster: Cluster) -> list[_Candidate]:
    """Return the places at which the texts of a group differ."""
    found, behind = [], 0
    for start, end in cluster.stretches():
        values: dict[str, None] = {}
        stretches = {}
        for request, text in cluster.requests:
            where = cluster.place_in(text, (start, end))
            if where is not None:
                stretches[request] = [where]
                if len(values) < _VALUES:
                    values[text[where[0] : where[1]]] = None
        before = cluster.text[behind:start]
        behind = end
        if len(values) < 2:
            continue
        candidate = _Candidate(
            place=cluster.place,
            role=cluster.role,
            before=before,
            offset=start,
            stretches=stretches,
            values=list(values),
        )
        found.append(candidate)
    return found


def _whole(texts: list[list[Segment]], groups: list[list[Cluster]]) -> list[_Candidate]:
    """Return system texts that differ altogether, in front of another that does not."""
    by_next: dict[tuple[Place, Cluster], list[int]] = defaultdict(list)
    for request, (found, grouped) in enumerate(zip(texts, groups, strict=True)):
        for segment, after, group in zip(found, found[1:], grouped[1:], strict=False):
            front = segment.role in ("system", "developer") and after.root
            if front and len(after.text) >= _FRONT:
                by_next[segment.place, group].append(request)
    candidates = []
    for (place, _), requests in by_next.items():
        own = {at: next(s for s in texts[at] if s.place == place) for at in requests}
        values = list(dict.fromkeys(segment.text for segment in own.values()))
        if len(values) < max(3, _VARIES * len(requests)):
            continue
        if len({id(groups[at][texts[at].index(own[at])]) for at in requests}) == 1:
            continue  # one text with places that vary
        candidate = _Candidate(
            place=place,
            role=own[requests[0]].role,
            pattern="the whole text",
            stretches={at: [(0, len(segment.text))] for at, segment in own.items()},
            values=values[:_VALUES],
        )
        candidates.append(candidate)
    return candidates


def _tools(texts: list[list[Segment]]) -> list[_Candidate]:
    """Return lists of tools that are equal but for the order of the tools, or of their keys."""
    groups: dict[tuple[Place, str], list[tuple[int, str]]] = defaultdict(list)
    for request, found in enumerate(texts):
        for segment in found:
            if segment.role == "tools":
                groups[segment.place, segment.text].append((request, segment.raw))
    merged: dict[tuple[Place, str], _Candidate] = {}
    for (place, text), members in groups.items():
        given = {raw for _, raw in members}
        if len(given) < 2:
            continue
        lengths = {tuple(_sizes(raw)) for raw in given}
        kind = "order" if len(lengths) > 1 else "keys"
        candidate = merged.setdefault(
            (place, kind),
            _Candidate(place=place, role="tools", kind=kind),
        )
        candidate.stretches.update((request, []) for request, _ in members)
        candidate.values += [text]
    return list(merged.values())


def _sizes(raw: str) -> list[str]:
    """Return each tool in turn, the same for any order of its keys."""
    return [tools_text([tool]) for tool in msgspec.json.decode(raw)]


def _fields(samples: Sequence[Sample]) -> list[_Candidate]:
    """Return fields that have nearly as many values as there are requests."""
    candidates = []
    for name in FIELDS:
        given = {at: s.body[name] for at, s in enumerate(samples) if s.body.get(name) is not None}
        values = list(dict.fromkeys(map(str, given.values())))
        if len(values) >= max(2, _VARIES * len(given)):
            candidate = _Candidate(
                place=(name,),
                role="field",
                kind="field",
                stretches={at: [] for at in given},
                values=values[:_VALUES],
            )
            candidates.append(candidate)
    return candidates


# -- what they cost --------------------------------------------------------------------------------


class _Measure:
    """Chains the prompts with places made equal, and compares."""

    def __init__(
        self,
        samples: Sequence[Sample],
        texts: list[list[Segment]],
        candidates: list[_Candidate],
    ) -> None:
        self._samples, self._candidates = samples, candidates
        self._texts = [{segment.place: segment for segment in found} for found in texts]
        self._given = [read_prompt(s.body, path=s.path, cut=_CUT) for s in samples]
        self._by_request: dict[int, list[_Candidate]] = defaultdict(list)
        for candidate in candidates:
            for request in candidate.stretches:
                self._by_request[request].append(candidate)

    def search(self) -> Search:
        """Return the places that cost something."""
        tokens = sum(round(prompt.tokens) for prompt in self._given)
        before = _repeated(self._given)
        fixed = self._without(None, self._given)
        after = _repeated(fixed)
        spoilers = []
        if after - before >= _LEAST_SHARE * tokens:
            for candidate in self._candidates:
                lost = after - _repeated(self._without(candidate, fixed))
                count = len(candidate.stretches)
                if lost >= max(_LEAST_SHARE * tokens, _LEAST_TOKENS * count):
                    spoilers.append(_spoiler(candidate, lost, tokens))
        spoilers.sort(key=lambda spoiler: -spoiler.tokens_lost)
        return Search(
            requests=len(self._samples),
            tokens=tokens,
            repeated_share=before / tokens if tokens else 0.0,
            share_if_fixed=(after if spoilers else before) / tokens if tokens else 0.0,
            spoilers=tuple(spoilers[:_MOST]),
        )

    def _without(self, spared: _Candidate | None, known: Sequence[Prompt]) -> list[Prompt]:
        """Return the prompts with all places but one made equal.

        Args:
            spared: The one that stays as it is.
            known: Prompts of the requests that it does not concern.
        """
        prompts = list(known)
        for request in self._by_request if spared is None else spared.stretches:
            chosen = [c for c in self._by_request[request] if c is not spared]
            sample = self._samples[request]
            if not chosen:
                prompts[request] = self._given[request]
                continue
            body = replaced(sample.body, self._changes(request, chosen))
            prompts[request] = read_prompt(body, path=sample.path, cut=_CUT)
        return prompts

    def _changes(self, request: int, chosen: Sequence[_Candidate]) -> dict[Place, object]:
        changes: dict[Place, object] = {}
        cuts: dict[Place, list[Stretch]] = defaultdict(list)
        sorted_tools = {c.place for c in chosen if c.kind in ("order", "keys")}
        unsorted = {
            c.place for c in self._by_request[request] if c.kind in ("order", "keys")
        } - sorted_tools
        for candidate in chosen:
            if candidate.kind == "field":
                changes[candidate.place] = None
            elif candidate.place not in unsorted:
                cuts[candidate.place] += candidate.stretches[request]
        for place, stretches in cuts.items():
            changes[place] = _blanked(self._texts[request][place].text, stretches)
        return changes


def _nothing(prompts: Sequence[Prompt]) -> Search:
    tokens = sum(round(prompt.tokens) for prompt in prompts)
    share = _repeated(prompts) / tokens if tokens else 0.0
    return Search(
        requests=len(prompts),
        tokens=tokens,
        repeated_share=share,
        share_if_fixed=share,
        spoilers=(),
    )


def _blanked(text: str, stretches: Sequence[Stretch]) -> str:
    """Return a text with a mark in place of each stretch."""
    pieces, at = [], 0
    for start, end in sorted(stretches):
        if start >= at:
            pieces += [text[at:start], "\0"]
        at = max(at, end)
    return "".join([*pieces, text[at:]])


def _repeated(prompts: Sequence[Prompt]) -> int:
    """Return how many tokens of prompts repeat the start of an earlier one."""
    seen: set[int] = set()
    units = 0.0
    for prompt in prompts:
        held = 0
        for block in prompt.chain:
            if block not in seen:
                break
            held += 1
        seen.update(prompt.chain[held:])
        units += prompt.ends[held - 1] * prompt.tokens_per_unit if held else 0.0
    return round(units)


def _spoiler(candidate: _Candidate, lost: int, tokens: int) -> Spoiler:
    return Spoiler(
        place=label_of(candidate.place),
        role=candidate.role,
        offset=candidate.offset,
        kind=candidate.kind,
        pattern=candidate.pattern,
        requests=len(candidate.stretches),
        values=len(set(candidate.values)),
        tokens_lost=lost,
        share_lost=lost / tokens,
        examples=tuple(candidate.values[:3]),
    )
