"""The simulator agrees with theory, and with figures that were measured elsewhere."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks.prototype import PROTOTYPE
from prefixroute.simulator import (
    CacheReport,
    ReplicaModel,
    Trace,
    pooled_hit_rate,
    read_trace,
    simulate,
)

from .support import model, request, trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.exists(), reason="Mooncake's traces are not here")


def test_one_replica_is_an_m_d_1_queue() -> None:
    """Mean wait of rho / (2 (1 - rho)) service times: Pollaczek and Khinchin."""
    rng, at_s, requests = Random(1), 0.0, []
    for number in range(20_000):
        at_s += rng.expovariate(6.0)
        requests.append(request(at_s, [number], out=1))
    (result,) = simulate(trace(*requests), policies=["random"], replicas=[model()]).results
    rho = 0.6
    assert result.ttft_mean_s == pytest.approx(0.1 * (1 + rho / 2 / (1 - rho)), rel=0.05)


def start(name: str) -> Trace:
    """The first minutes of a trace."""
    whole = read_trace(TRACES / f"mooncake_{name}.jsonl")
    return Trace.of(name, whole.requests[:1500], block_tokens=whole.block_tokens)


@needs_traces
def test_the_pooled_bounds_of_the_real_traces() -> None:
    """0.34 and 0.58, as measured elsewhere."""
    conversation = read_trace(TRACES / "mooncake_conversation.jsonl").spread(0)
    synthetic = read_trace(TRACES / "mooncake_synthetic.jsonl")
    assert (len(conversation), len(synthetic)) == (12_031, 3993)
    assert pooled_hit_rate(conversation, 32_000) == pytest.approx(0.34, abs=0.005)
    assert pooled_hit_rate(synthetic, 20_000) == pytest.approx(0.58, abs=0.005)


@needs_traces
def test_the_prefix_tree_on_the_real_traces() -> None:
    """Hit rate 0.58, mean 1.24 s on the synthetic trace, as measured elsewhere."""
    made = simulate(
        read_trace(TRACES / "mooncake_synthetic.jsonl"),
        policies=["prefix-tree"],
        replicas=8,
        model=ReplicaModel(cache_blocks=2500),
    )
    assert made.results[0].hit_rate == pytest.approx(0.58, abs=0.01)
    assert made.results[0].ttft_mean_s == pytest.approx(1.24, rel=0.03)


@needs_traces
def test_the_product_is_no_worse_than_its_prototype() -> None:
    made = simulate(
        start("conversation"),
        policies=["nested", PROTOTYPE, "least-loaded"],
        replicas=8,
        routers=[1, 8],
        cache_report=CacheReport.START,
    )
    for count in (1, 8):
        nested, prototype, least = (r for r in made.results if r.routers == count)
        assert nested.ttft_mean_s < 1.06 * prototype.ttft_mean_s
        assert nested.ttft_mean_s < 0.8 * least.ttft_mean_s
        assert nested.hit_rate > prototype.hit_rate - 0.015
