"""What one scrape of an application's Prometheus metrics says, and what two of them say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from prefixroute.cli.watch_view import SourceLost

__all__ = ["EVERYBODY", "Scrape", "Series", "counted_between", "quantile", "read_scrape"]

EVERYBODY: Final = ""
"""The endpoint of what has none."""

_COUNTS: Final = {
    "attempts_total": "",
    "failovers_total": "",
    "spills_total": "reason",
    "failures_total": "",
    "ejections_total": "",
    "prompt_tokens_total": "",
    "cached_tokens_total": "",
    "expected_cached_tokens_total": "",
    "ttft_seconds_bucket": "le",
    "decision_seconds_bucket": "le",
}
"""Counters that are read, with the label that tells their series apart beside the endpoint."""

_GAUGES: Final = {
    "in_flight": "",
    "ejected": "",
    "state": "state",
    "queued_tokens": "",
    "engine_running": "",
    "engine_waiting": "",
    "waiting": "",
    "fleet_peers": "",
    "hot_prefix_requests": "prefix",
    "hot_prefix_share": "prefix",
    "hot_prefix_endpoints": "prefix",
    "hot_prefix_tokens": "prefix",
}

Series: TypeAlias = Mapping[tuple[str, str], float]
"""Values by name, without the namespace, and label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What one answer said.

    Args:
        at_s: When it was asked for, monotonic seconds.
        counts: Counters of each endpoint.
        gauges: Gauges of each endpoint.
    """

    at_s: float
    counts: Mapping[str, Series] = field(default_factory=dict)
    gauges: Mapping[str, Series] = field(default_factory=dict)


def read_scrape(text: str, namespace: str, at_s: float) -> Scrape:
    """Return what is known of the series in an answer; all others are left out.

    Series that differ in further labels only (those of several processes) are added up.

    Args:
        text: In Prometheus' text format.
        namespace: First part of the names.
        at_s: When it was asked for, monotonic seconds.

    Raises:
        SourceLost: It is not in that format.
    """
    start = f"{namespace}_"
    lines = [line for line in text.splitlines() if line.startswith(start)]
    counts: dict[str, dict[tuple[str, str], float]] = {}
    gauges: dict[str, dict[tuple[str, str], float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                name = sample.name.removeprefix(start)
                if name in _COUNTS:
                    _add(counts, name, _COUNTS[name], sample)
                elif name in _GAUGES:
                    _add(gauges, name, _GAUGES[name], sample)
    except (ValueError, KeyError, IndexError):
        raise SourceLost("what it answers are no Prometheus metrics") from None
    return Scrape(at_s=at_s, counts=counts, gauges=gauges)


def _add(
    into: dict[str, dict[tuple[str, str], float]], name: str, label: str, sample: Sample
) -> None:
    """Add a sample to what is known.

    Raises:
        ValueError: It is of a bucket without a bound.
    """
    if not math.isfinite(sample.value):
        return
    of = sample.labels.get(label, "")
    if label == "le":
        float(of)
    series = into.setdefault(sample.labels.get("endpoint", EVERYBODY), {})
    key = name, of
    series[key] = series.get(key, 0.0) + sample.value


def counted_between(before: Series, now: Series) -> Series:
    """Return what was counted between two scrapes; all of it if it was counted anew since."""
    if any(now.get(key, 0.0) < value for key, value in before.items()):
        return now
    return {key: value - before.get(key, 0.0) for key, value in now.items()}


def quantile(q: float, buckets: Mapping[float, float]) -> float | None:
    """Return a quantile of a histogram, as Prometheus' ``histogram_quantile`` does.

    Args:
        q: Which, 0 to 1.
        buckets: By upper bound, how many were no greater.

    Returns:
        Linear within its bucket; beyond the last bound that bound; ``None`` of nothing.
    """
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank, below, low = q * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * max(0.0, rank - below) / (count - below)
        below, low = count, bound
    return low
