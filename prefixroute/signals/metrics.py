"""Engines' ``/metrics``, as the load that a router wants to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from prefixroute.core.load import EngineLoad

try:
    from prometheus_client.parser import text_string_to_metric_families
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "reading engines' metrics needs prometheus-client: pip install 'prefixroute[prometheus]'",
        name=error.name,
    ) from error

__all__ = ["read_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engine:
    """The names of one engine's metrics; of several names for one thing, the newest first."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.running, *self.waiting, *self.kv_usage)


_ENGINES: Final = (
    _Engine(  # vLLM
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    _Engine(  # SGLang
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_usage=("sglang:token_usage",),
    ),
    _Engine(  # llama.cpp
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_usage=("llamacpp:kv_cache_usage_ratio",),
    ),
    _Engine(running=("tgi_batch_current_size",), waiting=("tgi_queue_size",)),  # TGI
)
_NAMES: Final = tuple(name for engine in _ENGINES for name in engine.names)


def read_load(text: bytes) -> EngineLoad | None:
    """Return the load in an engine's metrics; ``None``: it is none of the engines known.

    Knows vLLM, SGLang, llama.cpp and TGI, by old names and new. Counts of several workers (labels)
    are added up; of their cache usage the highest is taken. What cannot be read is left out.

    Args:
        text: In Prometheus' text format.
    """
    values = _values(text.decode("utf-8", "replace"))
    for engine in _ENGINES:
        running, waiting = _first(values, engine.running), _first(values, engine.waiting)
        if running is None and waiting is None:
            continue
        usage = _first(values, engine.kv_usage)
        return EngineLoad(
            running=round(sum(running or ())),
            waiting=round(sum(waiting or ())),
            kv_usage=min(1.0, max(usage)) if usage else None,
        )
    return None


def _values(text: str) -> Mapping[str, list[float]]:
    """Return the samples of the metrics that are looked for, by name.

    Engines have hundreds of histogram lines: only the lines that are needed reach the parser.
    """
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        if not line.startswith(_NAMES):
            continue
        try:
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    if sample.name in _NAMES and isfinite(sample.value) and sample.value >= 0:
                        values.setdefault(sample.name, []).append(sample.value)
        except (ValueError, KeyError, IndexError):
            continue
    return values


def _first(values: Mapping[str, list[float]], names: Iterable[str]) -> list[float] | None:
    return next((values[name] for name in names if name in values), None)
