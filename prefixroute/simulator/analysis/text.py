"""An analysis in words: sections of sentences and small tables, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefixroute.simulator.analysis.kinds import placeholder
from prefixroute.simulator.analysis.report import Analysis, Spoiler

__all__ = ["Section", "report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its title.
        lines: Sentences in front of the table.
        columns: Names of the table's columns.
        rows: The table's cells.
        after: Sentences behind the table.
    """

    title: str
    lines: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    after: Sequence[str] = ()


def report(analysis: Analysis) -> list[Section]:
    """Return what is to be said about a log, the verdict left out."""
    sections = [_traffic(analysis), _repeats(analysis)]
    if analysis.prefixes:
        sections.append(_prefixes(analysis))
    sections.append(_expected(analysis))
    if analysis.search is not None:
        sections.append(_spoilers(analysis))
    return sections


def _traffic(a: Analysis) -> Section:
    rest = "" if a.complete else ", the first of a longer log"
    estimate = "" if a.counted else " (four bytes are taken for one)"
    output = (
        f"; replies have {a.output_tokens_mean:,.0f} on average"
        if a.output_tokens_mean is not None
        else "; the log does not tell how long replies were"
    )
    over = f" over {_time(a.duration_s)}" if a.timed else ""
    line = (
        f"{a.requests:,} requests{rest}{over}, with {a.prompt_tokens:,} prompt tokens{estimate}: "
        f"{a.prompt_tokens_p50:,} in the median request{output}."
    )
    return Section(title="The traffic", lines=[line])


def _repeats(a: Analysis) -> Section:
    lines = [
        f"{a.repeated_share:.1%} of the prompt tokens repeat the start of an earlier prompt. "
        "That is the bound: the hit rate of one cache that forgets nothing. It would hold "
        f"{a.distinct_tokens:,} tokens.",
        f"One cache as large as all {a.replicas} replicas' together "
        f"({a.cache_tokens * a.replicas:,} tokens) finds {a.pooled_hit_rate:.1%}{_of_first(a)}.",
    ]
    if a.repeated_system_share is not None:
        lines.append(
            f"Of what repeats, {a.repeated_system_share:.0%} are tools and system prompts, the "
            "rest earlier turns and messages."
        )
    d = a.depths
    if d.p90 == 0:
        lines.append("Nine in ten requests repeat nothing.")
    else:
        lines.append(
            f"The median request repeats {d.p50:,} tokens; one in ten repeats no more than "
            f"{d.p10:,}, one in ten {d.p90:,} or more."
        )
    names = [_depth(low, high) for low, high in _bounds(d.shares)]
    rows = [
        (name, f"{share:.1%}", _bar(share))
        for name, (_, share) in zip(names, d.shares, strict=True)
    ]
    while len(rows) > 1 and d.shares[len(rows) - 1][1] == 0.0:
        rows.pop()
    return Section(
        title="What repeats",
        lines=lines,
        columns=("repeated tokens", "requests", ""),
        rows=rows,
    )


def _bounds(shares: Sequence[tuple[int, float]]) -> list[tuple[int, int | None]]:
    lows = [low for low, _ in shares]
    return list(zip(lows, [*lows[1:], None], strict=True))


def _depth(low: int, high: int | None) -> str:
    if low == 0:
        return "none"
    return f"{low:,} or more" if high is None else f"{low:,} to {high - 1:,}"


def _bar(share: float) -> str:
    return "█" * round(20 * share)


def _prefixes(a: Analysis) -> Section:
    covered = sum(prefix.request_share for prefix in a.prefixes)
    count = len(a.prefixes)
    which = "One prefix is" if count == 1 else f"{count} prefixes are"
    columns = ["prefix", "tokens", "requests", "prompt tokens saved", "ends at"]
    rows = [
        [
            prefix.digest[:12],
            f"{prefix.tokens:,}",
            f"{prefix.request_share:.1%}",
            f"{prefix.token_share:.1%}",
            prefix.label,
        ]
        for prefix in a.prefixes
    ]
    if a.show_text:
        columns.append("text")
        for row, prefix in zip(rows, a.prefixes, strict=True):
            row.append(prefix.text or "")
    return Section(
        title="The prefixes that save most",
        lines=[
            f"{which} shared by {covered:.0%} of the requests; each request counts for the deepest "
            "prefix that at least 1 % of all requests share."
        ],
        columns=columns,
        rows=rows,
    )


def _expected(a: Analysis) -> Section:
    rate = f"{a.prefill_tokens_per_s:,.0f} tokens/s"
    times = (
        f"at the log's own times, which load them to {a.load:.0%} if nothing is cached"
        if a.timed
        else f"at an even rate (the log tells no times) that loads them to {a.load:.0%} if nothing "
        "is cached"
    )
    through = "one router" if a.routers == 1 else f"{a.routers} routers that share nothing"
    line = (
        f"Simulated: {a.replicas} replicas that prefill {rate} and cache {a.cache_tokens:,} tokens "
        f"each, through {through}, {times}{_of_first(a)}."
    )
    rows = [
        (
            name,
            f"{e.hit_rate:.1%}",
            f"{e.ttft_mean_s:.3f} s",
            f"{e.ttft_p50_s:.3f} s",
            f"{e.ttft_p90_s:.3f} s",
        )
        for name, e in (("spread at random", a.random), ("routed by prefix", a.routed))
    ]
    after = []
    if a.timed and a.load > 2:
        after.append(
            "The log comes from more or faster replicas: these are overrun, so read the hit rates, "
            "not the times; or give --replicas and --prefill-rate as yours are."
        )
    return Section(
        title="What to expect",
        lines=[line],
        columns=("", "hit rate", "TTFT mean", "P50", "P90"),
        rows=rows,
        after=after,
    )


def _of_first(a: Analysis) -> str:
    return f" (the first {a.simulated:,} requests)" if a.simulated < a.requests else ""


def _spoilers(a: Analysis) -> Section:
    search = a.search
    if search is None:
        raise ValueError("there was no text to search")
    where = (
        "all requests"
        if search.requests == a.requests
        else f"the first {search.requests:,} requests"
    )
    if not search.spoilers:
        line = (
            f"Nothing was found (searched: {where}): no timestamp, id, counter, name or order of "
            "tools near the start of the prompts keeps what follows from being shared."
        )
        return Section(title="What spoils prefixes", lines=[line])
    lines = [
        f"In {where}, {search.repeated_share:.1%} of the prompt tokens repeat an earlier prefix "
        f"(in blocks of 32 tokens). {search.share_if_fixed:.1%} would if the following were equal "
        "in all of them:"
    ]
    after = []
    for number, spoiler in enumerate(search.spoilers, 1):
        after += _spoiler(number, spoiler, show_text=a.show_text)
    if len(search.spoilers) > 1:
        after.append(
            "Each loss is what stays lost if only that one stays: they overlap, and do not add up."
        )
    return Section(title="What spoils prefixes", lines=[*lines, *after])


def _spoiler(number: int, spoiler: Spoiler, *, show_text: bool) -> list[str]:
    role = f" ({spoiler.role})" if spoiler.role not in ("tools", "field", "prompt") else ""
    inside = spoiler.role != "field" and spoiler.kind not in ("order", "keys")
    at = f", at character {spoiler.offset:,}" if inside else ""
    lines = [f"{number}. {spoiler.place}{role}{at}: {spoiler.what}"]
    if inside and spoiler.pattern != placeholder(spoiler.kind):
        lines.append(f"     {spoiler.pattern.strip()}")
    if show_text and spoiler.examples:
        lines.append(f"     seen: {', '.join(repr(value[:60]) for value in spoiler.examples)}")
    lines += [
        f"     It costs {spoiler.tokens_lost:,} tokens, {spoiler.share_lost:.1%} of all prompt "
        f"tokens; {spoiler.requests:,} requests have it.",
        f"     Remedy: {spoiler.remedy}.",
    ]
    return lines


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
