"""What ``benchmarks.peers`` is made of, as far as it needs nothing installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers.arms import Arm, Name, gateway_arm, interleaved
from benchmarks.peers.calls import ROUTED, Clients
from benchmarks.peers.cpu import cpu_ns, family
from benchmarks.peers.environments import SetupError
from benchmarks.peers.gateways import GATEWAYS, Running
from benchmarks.peers.lines import PeerError, Worker
from benchmarks.peers.parts import Trees, ring
from benchmarks.peers.run import Run, Size
from benchmarks.peers.servers import Servers, config, servers
from benchmarks.peers.timing import pairs, timed
from prefixroute.testing import EngineModel, FakeCluster

FAST = EngineModel(
    prefill_tokens_per_s=10_000_000,
    request_overhead_s=0.0,
    decode_s_per_token=0.0,
    output_tokens=2,
    cache_blocks=4000,
)


# -- turns -----------------------------------------------------------------------------------------


def test_arms_take_turns_there_and_back_on_the_same_chats() -> None:
    seen: list[tuple[str, int]] = []

    def arm(name: str) -> Arm:
        def measure(first: int) -> Mapping[str, Any]:
            seen.append((name, first))
            return {"cpu_us": float(first), "spent_us": [first - 1.0, first + 2.0, first + 7.0]}

        return measure

    arms: dict[Name, Arm] = {("s", "h", name): arm(name) for name in "ab"}
    found = interleaved(arms, repeats=2, rounds=2, count=10, left_out={})
    warm_up = [number for _, number in seen[:2]]
    assert min(warm_up) > 1000  # no round has those chats
    there, back = [("a", 0), ("b", 0), ("b", 10), ("a", 10)], [("a", 20), ("b", 20), ("b", 30)]
    assert seen[2:] == [*there, *back, ("a", 30)]
    assert found["s", "h", "a"] == [
        {"cpu_us": 5.0, "p50_us": 8.0},
        {"cpu_us": 25.0, "p50_us": 28.0},
    ]


def test_an_arm_that_fails_is_left_out_and_the_others_go_on() -> None:
    def fails(first: int) -> Mapping[str, float]:
        if first == 10:
            raise PeerError("it went away")
        return {}

    left_out: dict[str, str] = {}
    arms: dict[Name, Arm] = {("s", "h", "a"): fails, ("s", "h", "b"): lambda _: {}}
    found = interleaved(arms, repeats=3, rounds=2, count=10, left_out=left_out)
    assert list(found) == [("s", "h", "b")]
    assert len(found["s", "h", "b"]) == 3
    assert "it went away" in left_out["s, h, a"]


def test_pairs_are_chats_and_their_next_turn() -> None:
    seen, following = pairs(3, 2, 400)
    assert [later[:-2] for later in following] == seen
    assert seen[0] != seen[1]


def test_what_cannot_be_set_up_is_left_out_with_the_reason_on_one_line(tmp_path: Path) -> None:
    run = Run(
        folder=tmp_path,
        up=Servers(json=(), sse=()),
        size=Size(repeats=1, rounds=1, chats=1, prompts=1),
    )

    def fail(error: Exception) -> None:
        raise error

    with run.leaving_out("a peer"):
        fail(SetupError("uv says:\n  no such package"))
    assert run.left_out == {"a peer": "uv says: no such package"}
    with pytest.raises(ValueError, match="a mistake"), run.leaving_out("a peer"):
        fail(ValueError("a mistake"))


# -- processes -------------------------------------------------------------------------------------


def test_cpu_time_of_a_process_and_its_children_is_what_the_system_counts() -> None:
    burn = "sum(i * i for i in range(2_000_000))"
    code = f"""
import subprocess, sys
{burn}
child = subprocess.Popen([sys.executable, "-c", "{burn}; print(1, flush=True); input()"],
                         stdin=subprocess.PIPE)
input()
child.communicate(b"")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"1\n"  # both have done their work
        members = family(process.pid)
        assert len(members) == 2
        whole, alone = cpu_ns(*members), cpu_ns(process.pid)
        assert 0 < alone < whole
        assert Running(url="", pid=process.pid).cpu_ns() >= whole
        process.stdin.write(b"\n")
        process.stdin.flush()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert whole / 1e9 <= used.ru_utime + used.ru_stime + 0.05
    with pytest.raises(ProcessLookupError):
        cpu_ns(process.pid)


def test_what_a_gateway_spends_is_counted_for_each_call() -> None:
    class Spends(Running):
        def cpu_ns(self) -> int:
            return next(spent)

    spent = iter([1_000_000, 5_000_000])
    arm = gateway_arm(lambda _: {"cpu_us": 1.0}, Spends(url="", pid=0), calls=8)
    assert arm(0) == {"cpu_us": 1.0, "gateway_us": 500.0}


def test_a_worker_answers_says_what_failed_and_that_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Worker(sys.executable, "benchmarks.peers.parts", log) as worker:
        assert worker.ask("ring", kind=ROUTED, members=2, keys=10) > 0
        with pytest.raises(PeerError, match="KeyError"):
            worker.ask("ring", kind="unheard of", members=2, keys=10)
        assert worker.ask("ring", kind=ROUTED, members=2, keys=10) > 0
    with (
        Worker(sys.executable, "benchmarks.no_such_module", log) as worker,
        pytest.raises(PeerError, match="No module named"),
    ):
        worker.ask("ring")


def test_the_time_of_a_call_has_what_it_puts_off() -> None:
    said = timed(lambda _: sum(range(1000)), [1, 2, 3])
    assert len(said["spent_us"]) == 3
    assert min(said["spent_us"]) > 0
    assert said["cpu_us"] > 0


# -- peers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "client", ["httpx", "httpx-sse", "openai", "openai-async", "openai-post", "openai-post-async"]
)
def test_every_client_gets_through_straight_and_through_a_router(client: str) -> None:
    cluster = FakeCluster(2, model=FAST)
    with cluster.serve() as urls, closing(Clients()) as clients:
        places = {"direct": urls[:1], ROUTED: urls}
        clients.start({"json": places, "sse": places})
        for through in places:
            said = clients.call(client, through, first=0, count=2, tokens=200)
            assert len(said["spent_us"]) == 4
        assert clients.decide(first=0, count=2, tokens=200, form="bytes")["next_us"] > 0
        assert clients.decide(first=0, count=2, tokens=200, form="mapping")["next_us"] > 0
    assert len(cluster.requests) == 8


def test_every_gateway_listens_on_loopback_alone() -> None:
    for gateway in GATEWAYS:
        command = gateway.command(Path("python"), 1, 2, ["http://127.0.0.1:3"])
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert command[command.index("--prometheus-host") + 1] == "127.0.0.1"
        assert command[-2:] == ["--worker-urls", "http://127.0.0.1:3"]


def test_parts_that_are_not_installed_say_so() -> None:
    assert ring(ROUTED, 8, 100) > 0
    with pytest.raises(FileNotFoundError, match=r"hashtrie\.py is not there"):
        Trees().match("hashtrie", first=0, count=1, tokens=200, checkout="nowhere")


def test_nginx_is_told_to_stay_on_loopback_and_in_its_folder() -> None:
    told = config([1111], [2222])
    assert told.count("listen ") == told.count("listen 127.0.0.1:") == 2
    assert max(map(len, told.split("'"))) < 4096  # the most that it takes in one parameter


def test_without_nginx_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(PeerError, match="apt-get install nginx"), servers(tmp_path):
        pass


@pytest.mark.skipif(
    shutil.which("nginx", path="/usr/sbin:/usr/local/sbin") is None, reason="no nginx"
)
def test_the_servers_answer_as_engines_do(tmp_path: Path) -> None:
    with servers(tmp_path) as up:
        for root in up.json:
            reply = httpx.post(f"{root}/v1/chat/completions", content=b"x" * 100_000)
            assert reply.json()["usage"]["prompt_tokens"] == 8000
        for root in up.sse:
            lines = httpx.post(f"{root}/v1/chat/completions", content=b"{}").text.split("\n\n")
            assert lines[-2:] == ["data: [DONE]", ""]
            assert {json.loads(line.removeprefix("data: "))["id"] for line in lines[:-2]} == {
                "chatcmpl-1"
            }
            assert httpx.get(f"{root}/v1/models").json()["data"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{up.json[0]}/health")
