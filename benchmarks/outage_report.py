"""The figures of an outage, for programs and for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.outage_figures import (
    Attempt,
    Call,
    Outage,
    Record,
    avoided_after_s,
    half_share_after_s,
    may_have_reached_dying,
    percentile,
    traffic_after_s,
)

__all__ = ["summary", "tables"]


def summary(record: Record) -> dict[str, Any]:
    """Return the figures of one client: by phase, and by endpoint that failed."""
    attempts = defaultdict[int, list[Attempt]](list)
    for one in record.attempts:
        attempts[one.call].append(one)
    phases = {}
    for phase in record.phases:
        calls = [call for call in record.calls if phase.began <= call.due < phase.ended]
        phases[phase.name] = _phase(calls, attempts, record.outages)
    well_p99_ms = phases["well"]["p99_ms"]
    for figures in phases.values():
        figures["added_p99_ms"] = figures["p99_ms"] - well_p99_ms
    late = [call.made - call.due for call in record.calls]
    return {
        "versions": record.versions,
        "calls": len(record.calls),
        "failed": sum(one["failed"] for one in phases.values()),
        "failed_never_sent_to_failing": sum(
            one["failed_never_sent_to_failing"] for one in phases.values()
        ),
        "load_late_p99_ms": 1000 * percentile(late, 0.99),
        "phases": phases,
        "outages": {one.fault: _outage(one, record) for one in record.outages},
    }


def _phase(
    calls: Sequence[Call], attempts: Mapping[int, Sequence[Attempt]], outages: Sequence[Outage]
) -> dict[str, Any]:
    failed = [call for call in calls if call.error]
    errors = defaultdict[str, int](int)
    for call in failed:
        errors[call.error] += 1
    sent = [may_have_reached_dying(call, attempts[call.number], outages) for call in failed]
    taken_s = [call.ended - call.due for call in calls]
    return {
        "calls": len(calls),
        "failed": len(failed),
        "failed_sent_to_failing": sum(sent),
        "failed_never_sent_to_failing": len(failed) - sum(sent),
        "errors": dict(errors),
        "p50_ms": 1000 * percentile(taken_s, 0.5),
        "p99_ms": 1000 * percentile(taken_s, 0.99),
        "attempts_per_call": sum(len(attempts[call.number]) for call in calls) / len(calls),
    }


def _outage(outage: Outage, record: Record) -> dict[str, Any]:
    there = sorted((one for one in record.attempts if one.endpoint == outage.endpoint), key=_began)
    begins = [one.began for one in there]
    well, last = record.phases[0], record.phases[-1]
    well_per_s = sum(at < well.ended for at in begins) / well.ended
    answered = [one.began for one in there if not one.error]
    return {
        "seconds": outage.ended - outage.began,
        "avoided_after_s": avoided_after_s(begins, outage),
        "attempts_while_failing": sum(outage.began <= at < outage.ended for at in begins),
        "usual_attempts_in_that_time": well_per_s * (outage.ended - outage.began),
        "traffic_after_s": traffic_after_s(answered, outage),
        "half_share_after_s": half_share_after_s(begins, outage, well_per_s, last.ended),
    }


def _began(attempt: Attempt) -> float:
    return attempt.began


def tables(clients: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures as two tables in Markdown: by phase, and by endpoint that failed."""
    measured = {name: one for name, one in clients.items() if "phases" in one}
    first = next(iter(measured.values()), {"phases": (), "outages": ()})
    lines = [
        "| phase | client | calls | failed | of these never sent to a failing endpoint "
        "| P50 | P99 | added P99 | attempts per call |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for phase in first["phases"]:
        for name, client in measured.items():
            row = client["phases"][phase]
            lines.append(
                f"| {phase} | {name} | {row['calls']} | {row['failed']} "
                f"| {row['failed_never_sent_to_failing']} | {row['p50_ms']:.0f} ms "
                f"| {row['p99_ms']:.0f} ms | {row['added_p99_ms']:+.0f} ms "
                f"| {row['attempts_per_call']:.2f} |"
            )
    lines += [
        "",
        "| endpoint | client | avoided after | sent to it while it failed (usual) "
        "| answers again after | half of its traffic after |",
        "|---|---|---|---|---|---|",
    ]
    for fault in first["outages"]:
        for name, client in measured.items():
            row = client["outages"][fault]
            lines.append(
                f"| {fault} | {name} | {_seconds(row['avoided_after_s'])} "
                f"| {row['attempts_while_failing']} ({row['usual_attempts_in_that_time']:.0f}) "
                f"| {_seconds(row['traffic_after_s'])} | {_seconds(row['half_share_after_s'])} |"
            )
    lines.append("")
    for name, client in clients.items():
        if "error" in client:
            lines.append(f"{name}: {client['error']}")
        else:
            late_ms = client["load_late_p99_ms"]
            lines.append(f"{name}: calls were made at most {late_ms:.0f} ms late (P99)")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "not in the run" if value is None else f"{value:.1f} s"
