"""Engines' metrics: old names and new, several workers, and whatever is no metric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixroute import EngineLoad
from prefixroute.signals import read_load

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.001",model_name="m"} 0.0
"""


def test_vllm_with_two_workers() -> None:
    assert read_load(VLLM) == EngineLoad(running=5, waiting=7, kv_usage=0.75)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (
            b'vllm:num_requests_running{a="b"} 1\nvllm:gpu_cache_usage_perc{a="b"} 0.5\n',
            EngineLoad(running=1, waiting=0, kv_usage=0.5),
        ),
        (
            b'sglang:num_running_reqs{m="x"} 4.0\nsglang:num_queue_reqs{m="x"} 2.0\n'
            b'sglang:token_usage{m="x"} 0.4\n',
            EngineLoad(running=4, waiting=2, kv_usage=0.4),
        ),
        (
            b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\n"
            b"llamacpp:requests_deferred 1\n",
            EngineLoad(running=3, waiting=1),
        ),
        (
            b"llamacpp:requests_processing 0\nllamacpp:kv_cache_usage_ratio 0.1\n",
            EngineLoad(running=0, waiting=0, kv_usage=0.1),
        ),
        (
            b"tgi_queue_size 6\ntgi_batch_current_size 8\n",
            EngineLoad(running=8, waiting=6),
        ),
        (
            b'vllm:num_requests_waiting{a="b"} NaN\nvllm:num_requests_running{a="b"} 2\n',
            EngineLoad(running=2, waiting=0),
        ),
        (
            b"vllm:num_requests_running{broken 1\nvllm:num_requests_running 2\n",
            EngineLoad(running=2),
        ),
        (
            b"vllm:kv_cache_usage_perc 7\nvllm:num_requests_waiting 1",
            EngineLoad(waiting=1, kv_usage=1.0),
        ),
        (b"process_cpu_seconds_total 1\n", None),
        (b"<html>not found</html>", None),
        (b"", None),
    ],
)  # fmt: skip
def test_what_engines_say(text: bytes, load: EngineLoad | None) -> None:
    assert read_load(text) == load


@given(st.binary(max_size=200))
def test_nothing_makes_it_raise(tail: bytes) -> None:
    read_load(tail)
    read_load(b"vllm:num_requests_running" + tail)
    read_load(VLLM + tail)
