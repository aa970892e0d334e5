"""FakeCluster: configuration, counting, lives of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable

import httpx
import pytest

import prefixroute.testing as module
from prefixroute.testing import EngineModel, FakeCluster, Refuse
from tests.testing.support import INSTANT, chat

PATH = "/chat/completions"


def post(cluster: FakeCluster, index: int, text: str = "word " * 40) -> httpx.Response:
    with httpx.Client(transport=cluster.transport()) as client:
        return client.post(cluster.urls[index] + PATH, json=chat(text))


def test_all_is_sorted_and_there() -> None:
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


def test_sizes() -> None:
    assert FakeCluster().urls == [f"http://replica-{index}.test/v1" for index in range(4)]
    assert len(FakeCluster(2).replicas) == 2
    models = [EngineModel(names=("a",)), EngineModel(names=("b",))]
    assert [one.model for one in FakeCluster(model=models).replicas] == models


@pytest.mark.parametrize(
    "make",
    [
        lambda: FakeCluster(0),
        lambda: FakeCluster(-1),
        lambda: FakeCluster(model=[]),
        lambda: FakeCluster(3, model=[EngineModel()]),
        lambda: FakeCluster(1, time_scale=-1),
        lambda: FakeCluster(1, max_recorded=-1),
        lambda: EngineModel(names=()),
        lambda: EngineModel(names="model"),  # type: ignore[arg-type]
        lambda: EngineModel(block_tokens=0),
        lambda: EngineModel(cache_blocks=-1),
        lambda: EngineModel(max_running=1.5),  # type: ignore[arg-type]
        lambda: EngineModel(decode_s_per_token=-1),
        lambda: EngineModel(loading_s=math.inf),
        lambda: EngineModel(prefill_tokens_per_s=0),
        lambda: EngineModel(prefill_tokens_per_s=math.nan),
    ],
)
def test_nonsense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must|don't make"):
        make()


def test_prefill_may_take_no_time() -> None:
    cluster = FakeCluster(1, model=EngineModel(prefill_tokens_per_s=math.inf), time_scale=0)
    assert post(cluster, 0).status_code == 200


def test_each_replica_has_its_own_cache() -> None:
    cluster = FakeCluster(2, model=INSTANT, time_scale=0)
    texts = [post(cluster, index).json()["choices"][0] for index in (0, 1, 0)]
    assert texts[0] == texts[1] == texts[2]
    hits = [one.hit_rate for one in cluster.stats()]
    assert hits[0] > 0.3
    assert hits[1] == 0.0
    assert cluster.hit_rate == pytest.approx(hits[0] * 2 / 3)


def test_no_cache_no_hits() -> None:
    cluster = FakeCluster(1, model=EngineModel(cache_blocks=0), time_scale=0)
    post(cluster, 0)
    post(cluster, 0)
    assert cluster.hit_rate == 0.0


def test_a_small_cache_forgets() -> None:
    cluster = FakeCluster(1, model=EngineModel(cache_blocks=6), time_scale=0)
    for text in ("a" * 400, "b" * 400, "a" * 400):
        post(cluster, 0, text)
    assert cluster.stats()[0].cached_blocks == 6
    assert cluster.hit_rate == 0.0


def test_restarting_loses_the_cache_and_keeps_the_counts() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    post(cluster, 0)
    cluster.restart(0)
    post(cluster, 0)
    stats = cluster.stats()[0]
    assert (stats.requests, stats.finished, stats.cached_tokens) == (2, 2, 0)
    with httpx.Client(transport=cluster.transport()) as client:
        metrics = client.get("http://replica-0.test/metrics").text
    assert "prompt_tokens_total{" in metrics
    assert f" {stats.prompt_tokens / 2}" in metrics


def test_a_stopped_replica_refuses() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    cluster.stop(0)
    with pytest.raises(httpx.ConnectError):
        post(cluster, 0)
    cluster.heal(0)
    assert not cluster.replicas[0].accepts
    cluster.start(0)
    cluster.start(0)
    assert post(cluster, 0).status_code == 200


def test_resetting() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    post(cluster, 0)
    cluster.reset()
    assert cluster.requests == ()
    assert cluster.stats()[0].requests == 0
    post(cluster, 0)
    assert cluster.hit_rate == 0.0


def test_the_last_requests_are_kept() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0, max_recorded=2)
    for text in "abc":
        post(cluster, 0, text)
    assert [b'"b"' in one.body for one in cluster.requests] == [True, False]
    assert cluster.stats()[0].requests == 3


def test_seeds_give_other_answers_and_ids() -> None:
    replies = [
        post(FakeCluster(1, model=INSTANT, time_scale=0, seed=seed), 0).json()
        for seed in (0, 0, 1, -5)
    ]
    assert replies[0] == replies[1]
    texts = {reply["choices"][0]["message"]["content"] for reply in replies}
    assert len(texts) == len({reply["id"] for reply in replies}) == 3


def test_a_new_replica_is_like_the_first() -> None:
    cluster = FakeCluster(1, model=INSTANT, time_scale=0)
    replica = cluster.add()
    assert (replica.index, replica.model) == (1, INSTANT)
    assert post(cluster, 1).headers["x-replica"] == "1"
    other = EngineModel(output_tokens=3)
    assert cluster.add(other).model is other


def test_reprs_say_what_is_going_on() -> None:
    cluster = FakeCluster(3, model=INSTANT, time_scale=0)
    cluster.stop(0)
    cluster.fail(1, Refuse())
    post(cluster, 2)
    assert repr(cluster) == (
        "<FakeCluster 3 replicas, 2 down, 0 running, 0 waiting, hit rate 0.00>"
    )
    assert repr(cluster.replicas[0]).endswith("hit rate 0.00, stopped>")
    assert repr(cluster.replicas[1]).endswith("hit rate 0.00, refusing>")
    assert repr(cluster.replicas[2]) == "<Replica 2: 0 running, 0 waiting, hit rate 0.00>"
