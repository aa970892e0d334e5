"""The results of a simulation, for programs, notebooks and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Final

from prefixroute.simulator.replica import ReplicaModel
from prefixroute.simulator.run import Outcome, Setting
from prefixroute.simulator.traces import Change

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
        decisions_per_s: Requests per second of CPU time spent in the routers.
        source: Where the rule comes from.
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
    source: str = field(repr=False)
    ttft_quantiles_s: tuple[float, ...] = field(repr=False)
    load: tuple[tuple[float, tuple[int, ...]], ...] = field(repr=False)

    @classmethod
    def of(cls, policy: str, routers: int, outcome: Outcome, *, source: str = "") -> PolicyResult:
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
            source=source,
            ttft_quantiles_s=tuple([quantile(ttft_s, q) for q in _QUANTILES]),
            load=tuple(outcome.samples),
        )

    def to_dict(self) -> dict[str, object]:
        """Return all figures, as JSON has them."""
        return asdict(self)


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
        block_tokens: Size of the blocks that caches are counted in, tokens.
        models: What the replicas were like.
        setting: How requests came to them, with the first number of routers.
        changes: Of the membership.
    """

    trace: str
    requests: int
    duration_s: float
    prompt_tokens: int
    replicas: int
    seed: int
    pooled_hit_rate: float
    results: tuple[PolicyResult, ...]
    block_tokens: int
    models: tuple[ReplicaModel, ...] = field(repr=False)
    setting: Setting = field(repr=False)
    changes: tuple[Change, ...] = field(repr=False)

    @property
    def routers(self) -> tuple[int, ...]:
        """The numbers of routers that were tried, in order."""
        return tuple(dict.fromkeys(result.routers for result in self.results))

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the rules, in order."""
        return tuple(dict.fromkeys(result.policy for result in self.results))

    def with_routers(self, count: int) -> list[PolicyResult]:
        """Return the results with this number of routers."""
        return [result for result in self.results if result.routers == count]

    @property
    def keys_moved(self) -> bool:
        """Whether there was a change of the membership that moved keys."""
        return any(result.keys_moved is not None for result in self.results)

    def of_bound(self, result: PolicyResult) -> float:
        """Return the hit rate of a result as a share of the pooled one."""
        return result.hit_rate / self.pooled_hit_rate if self.pooled_hit_rate else 1.0

    def to_dict(self) -> dict[str, object]:
        """Return everything, as JSON has it."""
        setting = asdict(self.setting)
        setting["cache_report"] = self.setting.cache_report.value
        del setting["routers"], setting["seed"]  # they are said for the whole
        return {
            "trace": self.trace,
            "requests": self.requests,
            "duration_s": self.duration_s,
            "prompt_tokens": self.prompt_tokens,
            "block_tokens": self.block_tokens,
            "replicas": self.replicas,
            "models": [asdict(model) for model in self.models],
            "setting": setting,
            "changes": [asdict(change) for change in self.changes],
            "seed": self.seed,
            "pooled_hit_rate": self.pooled_hit_rate,
            "results": [result.to_dict() for result in self.results],
        }

    def to_html(self, *, command: str | None = None) -> str:
        """Return one page with the table, plots and settings; it needs nothing from elsewhere.

        Args:
            command: What repeats the simulation, to be shown.
        """
        from prefixroute.simulator.html import page  # noqa: PLC0415 - it is built on this module

        return page(self, command=command)

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        from prefixroute.simulator.html import notebook  # noqa: PLC0415

        return notebook(self)


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the smallest of sorted values that at least a share ``q`` of them does not exceed."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, ceil(q * len(ordered)) - 1))]


def _over_mean(values: Sequence[float]) -> float:
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0
