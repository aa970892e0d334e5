"""``endpoint-load-metrics``: what an engine says of its load in the headers of a reply (ORCA).

Asked for with ``endpoint-load-metrics-format: TEXT``. vLLM answers on replies that are not
streamed: ``TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3``, or
the same as JSON. Reading never raises, and what it cannot make sense of is nothing: a load that is
guessed is better than one that is wrong.

Source of the format: "ORCA load report", https://github.com/cncf/xds, xds/data/orca/v3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from prefixroute.core.load import EndpointState, EngineLoad
from prefixroute.core.queues import Queues

__all__ = ["ASK", "ASKED_FORMAT", "REPORT", "HeaderLoad", "note_header", "read_load_header"]

ASK: Final = "endpoint-load-metrics-format"
ASKED_FORMAT: Final = "TEXT"
REPORT: Final = "endpoint-load-metrics"

_LONGEST: Final = 8192
"""Characters; a longer header is not read. Servers take about as much for all headers together."""

_MOST: Final = 1e6
"""Requests that an engine may claim; more is no count."""

_WAITING: Final = ("num_requests_waiting", "num_queue_reqs")
_RUNNING: Final = ("num_requests_running", "num_running_reqs")
_KV_USAGE: Final = (
    "kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_cache_utilization", "token_usage",
)  # fmt: skip


class HeaderLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply's header says of its engine.

    Args:
        waiting: Requests that wait for their prefill.
        running: Requests that it computes; ``None``: not said, as by vLLM.
        kv_usage: Share of its KV cache in use, 0 to 1; ``None``: not said.
    """

    waiting: int
    running: int | None = None
    kv_usage: float | None = None


def read_load_header(value: object) -> HeaderLoad | None:
    """Return the load in a header; never raises.

    Args:
        value: The header's, in ORCA's TEXT or JSON format.

    Returns:
        ``None``: none was given, it cannot be read, or it does not say how many requests wait.
    """
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    name, _, content = value.strip().partition(" ")
    match name.upper():
        case "TEXT":
            found: Mapping[str, float] = dict(_pairs(content))
        case "JSON":
            found = _of_json(content)
        case _:
            return None
    waiting, running = _count(found, _WAITING), _count(found, _RUNNING)
    if waiting is None:
        return None
    usage = next((found[name] for name in _KV_USAGE if name in found), None)
    if usage is not None and not 0.0 <= usage <= 1.0:
        usage = None
    return HeaderLoad(waiting=waiting, running=running, kv_usage=usage)


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    for pair in text.split(","):
        name, _, number = pair.partition("=")
        try:
            yield _plain(name), float(number)
        except ValueError:
            continue


def _of_json(text: str) -> Mapping[str, float]:
    try:
        given = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    if not isinstance(given, dict):
        return {}
    named = given.get("named_metrics")
    every = {**given, **named} if isinstance(named, dict) else given
    return {
        _plain(name): float(value)
        for name, value in every.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
    }


def _plain(name: str) -> str:
    """Return a metric's name without what groups it: ``named_metrics.``, ``vllm:``."""
    return name.strip().rpartition(".")[2].rpartition(":")[2].lower()


def _count(found: Mapping[str, float], names: tuple[str, ...]) -> int | None:
    value = next((found[name] for name in names if name in found), math.nan)
    return round(value) if 0.0 <= value <= _MOST else None


def note_header(state: EndpointState, load: HeaderLoad, queues: Queues, now: float) -> None:
    """Take a header for what an engine reports; own requests are left out as with any report.

    It is believed for three of the usual times between two reports, as every report is: these come
    with the replies, so the busier an endpoint is, the fresher is what is known of it, and one that
    answers nothing any more is soon a matter of guessing again.

    A header that does not say how many requests run tells of the queue alone. What a poller has
    said of them stays while it is fresh, and the long-run mean, from which routers conclude who has
    been given too many keys, is left to reports that count all requests: they must all see the
    same.

    Args:
        state: Who reports.
        load: What it says.
        queues: The router's.
        now: Seconds.
    """
    running, crowd = load.running, (state.crowd, state.crowd_weight)
    if running is None:
        last = state.reported if queues.fresh(state, now) else None
        running = last.running if last is not None else 0
    report = EngineLoad(running=running, waiting=load.waiting, kv_usage=load.kv_usage)
    queues.report(state, report, now)
    if load.running is None:
        state.crowd, state.crowd_weight = crowd
