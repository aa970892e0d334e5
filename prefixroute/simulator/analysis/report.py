"""What an analysis found, for programs and notebooks; `text` has the words for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from html import escape

from prefixroute.simulator.analysis.kinds import named, remedy

__all__ = ["Analysis", "Depths", "Expected", "Reason", "Search", "Spoiler", "TopPrefix", "Verdict"]


class Reason(Enum):
    """Why routing by prefix is worth it, or not."""

    GAIN = "gain"
    TOO_FEW = "too few requests"
    ONE_REPLICA = "one replica"
    UNRELATED = "unrelated prompts"
    SPOILED = "spoiled prompts"
    SHORT = "short prompts"
    CACHE_HOLDS_ALL = "the cache holds everything"
    LITTLE_GAIN = "little gain"
    LONG_OUTPUTS = "outputs much longer than prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether to go on.

    Attributes:
        worth_it: Whether routing by prefix is worth it; ``None``: it cannot be told.
        reason: Why.
        text: Both in a sentence or two.
    """

    worth_it: bool | None
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """How deep requests repeat an earlier prefix.

    Attributes:
        p10: 10 % of the requests repeat no more than so many tokens.
        p50: Half of them.
        p90: 90 %.
        shares: ``(tokens, share of the requests)``: those that repeat at least so many tokens, but
            fewer than the next entry's; the first entry is for no repeated token at all.
    """

    p10: int
    p50: int
    p90: int
    shares: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPrefix:
    """A prefix that many requests share. Each request counts for the deepest one it has.

    Attributes:
        digest: Names it, without its text.
        tokens: Its length.
        requests: How many requests start with it, and with no longer one of this list.
        request_share: Of all requests.
        token_share: Share of all prompt tokens that these repeat.
        label: Where it ends.
        text: Its start, if that was asked for.
    """

    digest: str
    tokens: int
    requests: int
    request_share: float
    token_share: float
    label: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What simulated replicas make of the requests.

    Attributes:
        policy: Name of the rule: ``random`` or ``nested``.
        hit_rate: Share of prompt tokens that are found cached.
        ttft_mean_s: Mean time to first token, seconds.
        ttft_p50_s: Median, seconds.
        ttft_p90_s: 90 % are not longer, seconds.
    """

    policy: str
    hit_rate: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoiler:
    """A place that varies and keeps what follows it from being shared.

    Attributes:
        place: Where: ``messages[0].content``.
        role: Whose text it is: a message's role, ``tools``, ``prompt`` or ``field``.
        offset: Of its first character in the text, in the first request that has it.
        kind: What it is, as a word: ``timestamp``, ``uuid``, ``order``, ...
        pattern: The words in front of it and what it is, without a literal value.
        requests: How many requests have it.
        values: How many values were seen, at least.
        tokens_lost: Prompt tokens that would repeat an earlier prefix if it were equal everywhere
            (and the other spoilers too).
        share_lost: The same as a share of all prompt tokens.
        examples: Literal values. They are prompt text: no report shows them unless asked to.
    """

    place: str
    role: str
    offset: int
    kind: str
    pattern: str
    requests: int
    values: int
    tokens_lost: int
    share_lost: float
    examples: tuple[str, ...] = field(default=(), repr=False)

    @property
    def what(self) -> str:
        """The kind in words."""
        return named(self.kind)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return remedy(self.kind)

    def to_dict(self, *, show_text: bool = False) -> dict[str, object]:
        """Return everything as JSON has it; literal values only if asked for."""
        found: dict[str, object] = {
            "place": self.place,
            "role": self.role,
            "offset": self.offset,
            "kind": self.kind,
            "pattern": self.pattern,
            "requests": self.requests,
            "values": self.values,
            "tokens_lost": self.tokens_lost,
            "share_lost": self.share_lost,
            "remedy": self.remedy,
        }
        return {**found, "examples": list(self.examples)} if show_text else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was found in the texts.

    Attributes:
        requests: How many requests were searched: the first ones.
        tokens: Prompt tokens of these.
        repeated_share: Share of these that repeat an earlier prefix, in blocks of 32 tokens.
        share_if_fixed: The same if all spoilers were equal everywhere.
        spoilers: The costliest first.
    """

    requests: int
    tokens: int
    repeated_share: float
    share_if_fixed: float
    spoilers: tuple[Spoiler, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the traffic of a log has to gain.

    Attributes:
        log: Its name.
        requests: How many requests were read.
        complete: Whether these are all of the log.
        timed: Whether the log tells their times.
        duration_s: From the first to the last request, seconds; where the log tells no times, of
            the even rate that was simulated.
        prompt_tokens: Of all requests.
        prompt_tokens_p50: Median of a request.
        output_tokens_mean: Mean of the replies' lengths; ``None``: the log does not tell.
        counted: Whether the log counts tokens; if not, they are estimated from bytes.
        repeated_share: Share of prompt tokens that repeat the start of an earlier prompt: the hit
            rate of one cache without bounds.
        repeated_system_share: Share of these that are tools and system prompts; ``None``: the log
            does not tell.
        distinct_tokens: What such a cache would have to hold.
        depths: How deep requests repeat.
        prefixes: The prefixes that save most.
        replicas: How many were simulated.
        routers: Through how many routers that share nothing.
        cache_tokens: Size of each replica's cache, tokens.
        prefill_tokens_per_s: How fast each computes what is not cached.
        load: Busy share of the replicas if nothing were cached.
        simulated: How many requests were simulated: the first ones.
        pooled_hit_rate: Hit rate of one cache as large as all replicas' together.
        random: What to expect of requests spread at random.
        routed: What to expect of requests routed by prefix.
        search: What spoils prefixes; ``None``: the log has no text.
        verdict: Whether to go on.
        show_text: Whether reports may show prompt text.
    """

    log: str
    requests: int
    complete: bool
    timed: bool
    duration_s: float
    prompt_tokens: int
    prompt_tokens_p50: int
    output_tokens_mean: float | None
    counted: bool
    repeated_share: float
    repeated_system_share: float | None
    distinct_tokens: int
    depths: Depths
    prefixes: tuple[TopPrefix, ...]
    replicas: int
    routers: int
    cache_tokens: int
    prefill_tokens_per_s: float
    load: float
    simulated: int
    pooled_hit_rate: float
    random: Expected
    routed: Expected
    search: Search | None
    verdict: Verdict
    show_text: bool = False

    @property
    def spoilers(self) -> tuple[Spoiler, ...]:
        """What spoils prefixes, the costliest first."""
        return self.search.spoilers if self.search is not None else ()

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON has it, without prompt text unless it was asked for."""
        names = [name for name in self.__slots__ if name not in _NESTED]
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        for name in ("random", "routed"):
            found[name] = _plain(getattr(self, name))
        found["depths"] = {**_plain(self.depths), "shares": [list(s) for s in self.depths.shares]}
        found["prefixes"] = [_plain(prefix) for prefix in self.prefixes]
        found["verdict"] = {**_plain(self.verdict), "reason": self.verdict.reason.value}
        found["search"] = None
        if self.search is not None:
            spoilers = [s.to_dict(show_text=self.show_text) for s in self.spoilers]
            found["search"] = {**_plain(self.search), "spoilers": spoilers}
        return found

    def _repr_html_(self) -> str:
        """Return the report, for notebooks."""
        from prefixroute.simulator.analysis.text import report  # noqa: PLC0415 - imports this one

        parts = [f"<p><b>{escape(self.verdict.text)}</b></p>"]
        for section in report(self):
            parts.append(f"<h4>{escape(section.title)}</h4>")
            parts += [f"<p>{escape(line)}</p>" for line in section.lines]
            if section.rows:
                head = "".join(f"<th>{escape(name)}</th>" for name in section.columns)
                rows = "".join(
                    "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                    for row in section.rows
                )
                parts.append(f"<table><tr>{head}</tr>{rows}</table>")
            parts += [f"<p>{escape(line)}</p>" for line in section.after]
        return "".join(parts)


_NESTED = frozenset({"depths", "prefixes", "random", "routed", "search", "verdict", "show_text"})


def _plain(value: Depths | TopPrefix | Expected | Search | Verdict) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}
