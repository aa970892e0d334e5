"""Texts at one place of many requests, grouped by likeness: each group laid along its first text.

Likeness is told by a few hashes of words (bottom-k sketches), looked up in an index, so grouping
takes time linear in the number of texts.

Source: A. Broder, On the resemblance and containment of documents, 1997.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, TypeAlias

from prefixroute.core.hashing import digest64, utf8
from prefixroute.simulator.analysis.align import Alignment, align
from prefixroute.simulator.analysis.segments import Place, Segment

__all__ = ["Book", "Cluster", "Stretch"]

Stretch: TypeAlias = tuple[int, int]
"""Start and end, characters."""

_WORD: Final = re.compile(r"(?<![\w])[A-Za-z]{4,32}(?![\w])|[^\x00-\x7f]{2}")
_SCALES: Final = ((512, 6), (4096, 10))
"""Characters from the start, and hashes of words kept of them."""

_VOTES: Final = 3
_POSTINGS: Final = 16
"""Groups that a hash leads to, at most: frequent words lead to the first ones alone."""

_NEAR: Final = 1
"""Stretches that so few characters part are one: first name and last name."""

_TRIES: Final = 4
_LEAST_AGREED: Final = 64
"""Characters that texts must have in common behind a difference to be one text that varies."""


class Cluster:
    """Texts that are one but for some stretches.

    Args:
        place: Where they were found.
        role: Whose they are.
        text: The first of them.
    """

    __slots__ = ("alignments", "place", "requests", "role", "text")

    def __init__(self, place: Place, role: str, text: str) -> None:
        self.place, self.role, self.text = place, role, text
        self.alignments: dict[str, Alignment] = {}  # of every other text
        self.requests: list[tuple[int, str]] = []

    def stretches(self) -> list[Stretch]:
        """Return where texts differ, as stretches of the first text that don't touch."""
        found = sorted({(d[0], d[1]) for a in self.alignments.values() for d in a.differences})
        joined: list[Stretch] = []
        for start, end in found:
            if joined and start <= joined[-1][1] + _NEAR:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def place_in(self, text: str, stretch: Stretch) -> Stretch | None:
        """Return where a stretch of the first text is in another text of the group."""
        alignment = self.alignments.get(text)
        return stretch if alignment is None else alignment.place(*stretch)


class Book:
    """Takes texts, and groups them."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        self._known: dict[tuple[Place, str], Cluster] = {}
        self._index: dict[tuple[Place, int], list[Cluster]] = {}

    def add(self, request: int, segment: Segment) -> Cluster:
        """Add a text of a request, and return its group."""
        key = (segment.place, segment.text)
        cluster = self._known.get(key)
        if cluster is None:
            cluster = self._known[key] = self._find(segment)
        cluster.requests.append((request, segment.text))
        return cluster

    def _find(self, segment: Segment) -> Cluster:
        place, text = segment.place, segment.text
        words = _sketch(text)
        votes: Counter[Cluster] = Counter()
        for word in words:
            votes.update(self._index.get((place, word), ()))
        for cluster, count in votes.most_common(_TRIES):
            if count < min(_VOTES, len(words)) or cluster.role != segment.role:
                break
            alignment = align(cluster.text, text)
            if _is_one(alignment, cluster.text, text):
                cluster.alignments[text] = alignment
                return cluster
        cluster = Cluster(place, segment.role, text)
        self.clusters.append(cluster)
        for word in words:
            postings = self._index.setdefault((place, word), [])
            if len(postings) < _POSTINGS:
                postings.append(cluster)
        return cluster


def _is_one(alignment: Alignment, first: str, text: str) -> bool:
    """Whether two texts are one that varies, rather than two that start alike."""
    if not alignment.differences:
        return False
    whole = alignment.reached == len(first)
    least = min(_LEAST_AGREED, min(len(first), len(text)) // 2) if whole else _LEAST_AGREED
    return alignment.agreed >= least or (whole and alignment.differences[0][0] >= least)


def _sketch(text: str) -> set[int]:
    found: set[int] = set()
    for reach, size in _SCALES:
        words: Iterable[str] = set(_WORD.findall(text, 0, reach))
        found.update(nsmallest(size, (digest64(utf8(word)) for word in words)))
    return found
