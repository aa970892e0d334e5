"""The results of a simulation, for programs, notebooks and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil
from typing import Final

from prefixroute.simulator.run import Outcome

__all__ = ["PolicyResult", "Simulation"]

_QUANTILES: Final = tuple(q / 100 for q in range(1, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What one rule did with a trace.

    Attributes:
        policy: Name of the rule.
        routers: How many routers shared nothing.
        requests: How many requests there were.
        hit_rate: Share of prompt tokens that were found cached.
        ttft_mean_s: Mean time to first token, seconds.
        ttft_p50_s: Median, seconds.
        ttft_p90_s: 90 % are not longer, seconds.
        ttft_p99_s: 99 % are not longer, seconds.
        requests_max_over_mean: Most requests of a replica, over the mean.
        work_max_over_mean: Most prefill of a replica, over the mean.
        keys_moved: Mean share of keys whose home moved at a change of the membership; ``None``:
            there was none, or the rule has no keys.
        decisions_per_s: Requests per second of real time spent in the routers.
        ttft_quantiles_s: The 1st to 99th percentiles, for pictures.
        load: ``(time, requests at each replica)`` over the run, for pictures.
    """

    policy: str
    routers: int
    requests: int
    hit_rate: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    requests_max_over_mean: float
    work_max_over_mean: float
    keys_moved: float | None
    decisions_per_s: float
    ttft_quantiles_s: tuple[float, ...] = field(repr=False)
    load: tuple[tuple[float, tuple[int, ...]], ...] = field(repr=False)

    @classmethod
    def of(cls, policy: str, routers: int, outcome: Outcome) -> PolicyResult:
        """Return the result of a run."""
        ttft_s = sorted(outcome.ttft_s)
        count = len(ttft_s)
        moved = outcome.moved
        return cls(
            policy=policy,
            routers=routers,
            requests=count,
            hit_rate=outcome.cached_tokens / max(1, outcome.prompt_tokens),
            ttft_mean_s=sum(ttft_s) / max(1, count),
            ttft_p50_s=quantile(ttft_s, 0.5),
            ttft_p90_s=quantile(ttft_s, 0.9),
            ttft_p99_s=quantile(ttft_s, 0.99),
            requests_max_over_mean=_over_mean(outcome.requests),
            work_max_over_mean=_over_mean(outcome.work_s),
            keys_moved=sum(moved) / len(moved) if moved else None,
            decisions_per_s=count / max(1e-9, outcome.policy_s),
            ttft_quantiles_s=tuple([quantile(ttft_s, q) for q in _QUANTILES]),
            load=tuple(outcome.samples),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the figures, without those for pictures, as JSON has them."""
        return {
            "policy": self.policy,
            "routers": self.routers,
            "requests": self.requests,
            "hit_rate": self.hit_rate,
            "ttft_mean_s": self.ttft_mean_s,
            "ttft_p50_s": self.ttft_p50_s,
            "ttft_p90_s": self.ttft_p90_s,
            "ttft_p99_s": self.ttft_p99_s,
            "requests_max_over_mean": self.requests_max_over_mean,
            "work_max_over_mean": self.work_max_over_mean,
            "keys_moved": self.keys_moved,
            "decisions_per_s": self.decisions_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What all rules did with a trace.

    Attributes:
        trace: Name of the trace.
        requests: How many requests it has.
        duration_s: Time from its start to its last request, seconds.
        prompt_tokens: Of all requests.
        replicas: How many there were at the start.
        seed: Of the runs.
        pooled_hit_rate: Hit rate of one cache as large as all: what no rule is expected to pass.
        results: One for each rule and number of routers.
    """

    trace: str
    requests: int
    duration_s: float
    prompt_tokens: int
    replicas: int
    seed: int
    pooled_hit_rate: float
    results: tuple[PolicyResult, ...]

    def to_dict(self) -> dict[str, object]:
        """Return everything but the figures for pictures, as JSON has it."""
        return {
            "trace": self.trace,
            "requests": self.requests,
            "duration_s": self.duration_s,
            "prompt_tokens": self.prompt_tokens,
            "replicas": self.replicas,
            "seed": self.seed,
            "pooled_hit_rate": self.pooled_hit_rate,
            "results": [result.to_dict() for result in self.results],
        }

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        head = "".join(f"<th>{name}</th>" for name, _ in _COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(show(result))}</td>" for _, show in _COLUMNS) + "</tr>"
            for result in self.results
        )
        caption = (
            f"{escape(self.trace)}: {self.requests:,} requests in {self.duration_s:,.0f} s on "
            f"{self.replicas} replicas; hit rate of one pooled cache {self.pooled_hit_rate:.3f}"
        )
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"


_COLUMNS: Final = (
    ("policy", lambda r: r.policy),
    ("routers", lambda r: str(r.routers)),
    ("hit rate", lambda r: f"{r.hit_rate:.3f}"),
    ("TTFT mean, s", lambda r: f"{r.ttft_mean_s:.3f}"),
    ("P50", lambda r: f"{r.ttft_p50_s:.3f}"),
    ("P90", lambda r: f"{r.ttft_p90_s:.3f}"),
    ("P99", lambda r: f"{r.ttft_p99_s:.3f}"),
    ("requests, max/mean", lambda r: f"{r.requests_max_over_mean:.2f}"),
    ("work, max/mean", lambda r: f"{r.work_max_over_mean:.2f}"),
    ("keys moved", lambda r: "" if r.keys_moved is None else f"{r.keys_moved:.1%}"),
    ("decisions/s", lambda r: f"{r.decisions_per_s:,.0f}"),
)


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the smallest of sorted values that at least a share ``q`` of them does not exceed."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, ceil(q * len(ordered)) - 1))]


def _over_mean(values: Sequence[float]) -> float:
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0
