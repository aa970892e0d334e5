"""Many routers as one: ``python -m benchmarks.fleet --json``.

First part: 32 processes with a router each in front of eight simulated engines on sockets, which
run in a process of their own. The turns of a chat come through any of them. Nothing shared, polling
of the engines' metrics, load headers, Redis, and polling with Redis are measured in turn, with the
same schedule on emptied caches, beside one router that sees all.

Second part: 10, 100 and 1,000 routers that share their load through one Redis.

Redis runs for the benchmark alone, on a port of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet_load import Load, Order, Result, headers_available, schedule, serve_client
from benchmarks.fleet_many import carry
from benchmarks.fleets import machine, packages
from benchmarks.outage_figures import percentile
from prefixroute.testing import EngineModel, FakeCluster
from tests.signals.redis_server import SERVERS, RedisServer

REPLICAS: Final = 8
CROWDS: Final = (10, 100, 1000)
MODEL: Final = EngineModel(
    prefill_tokens_per_s=2500,
    request_overhead_s=0.005,
    decode_s_per_token=0.01,
    output_tokens=16,
    tokens_per_event=16,
    cache_blocks=6000,
    load_header_on_streams=True,
)
GOAL_OVER_ONE: Final = 0.10
GOAL_SHARE_OF_A_CORE: Final = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the routers of one measurement know of each other."""

    alone: bool = False
    polls: bool = False
    headers: bool = False
    redis: bool = False


SETTINGS: Final[Mapping[str, Setting]] = {
    "one router": Setting(alone=True),
    "nothing shared": Setting(),
    "polling": Setting(polls=True),
    "headers": Setting(headers=True),
    "Redis": Setting(redis=True),
    "polling and Redis": Setting(polls=True, redis=True),
}


def serve_engines(control: Connection) -> None:
    """Serve the engines; empty them, or say what they have used, as the other side asks."""
    cluster = FakeCluster(REPLICAS, model=MODEL, max_recorded=0)
    with cluster.serve() as urls:
        control.send(urls)
        while (told := control.recv()) is not None:
            if told == "reset":
                cluster.reset()
            used = os.times()
            control.send(used.user + used.system)


@contextmanager
def _processes(load: Load) -> Iterator[tuple[list[str], Connection, list[Connection]]]:
    """Start the engines and the clients; end them with the block."""
    context = multiprocessing.get_context("spawn")
    started, lines = [], list[Connection]()
    for target in (serve_engines, *[serve_client] * load.processes):
        line, far = context.Pipe()
        process = context.Process(target=target, args=(far,), daemon=True)
        process.start()
        far.close()
        started.append(process)
        lines.append(line)
    try:
        urls = lines[0].recv()
        for line in lines[1:]:
            line.recv()  # it has loaded what it needs
        yield urls, lines[0], lines[1:]
        for line in lines:
            line.send(None)
    finally:
        for process in started:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def measure(
    name: str,
    setting: Setting,
    load: Load,
    urls: Sequence[str],
    engines: Connection,
    clients: Sequence[Connection],
    server: RedisServer,
) -> dict[str, Any]:
    """Put the load on the engines in one setting and return the figures."""
    print(f"{name}: {load.seconds:g} s", file=sys.stderr, flush=True)
    turns = schedule(replace(load, processes=1) if setting.alone else load)
    lines = clients[:1] if setting.alone else clients
    engine_cpu_s = _ask(engines, "reset")
    with server.client() as client:
        client.flushall()
        before: Any = client.info()
        began = time.monotonic() + 1.0
        order = Order(
            urls=urls,
            turns=(),
            began=began,
            polls=setting.polls,
            headers=setting.headers,
            redis_url=server.url if setting.redis else None,
            load=load,
        )
        for number, line in enumerate(lines):
            line.send(replace(order, turns=[turn for turn in turns if turn.process == number]))
        told = [line.recv() for line in lines]
        after: Any = client.info()
    took = time.monotonic() - began
    results = [one for given, _, _ in told for one in given]
    cpu_s = sum(used for _, _, used in told) + _ask(engines, "used") - engine_cpu_s
    found = figures([one for one in results if one.at >= load.warm_up_s])
    found["cpu_share_of_the_machine"] = cpu_s / took / len(os.sched_getaffinity(0))
    if setting.redis:
        network = ("total_net_input_bytes", "total_net_output_bytes")
        moved = sum(after[key] - before[key] for key in network)
        found["redis_per_router"] = {
            "commands_per_s": sum(said["commands_per_s"] for _, said, _ in told) / len(lines),
            "network_bytes_per_s": moved / took / len(lines),
        }
    return found


def _ask(engines: Connection, what: str) -> float:
    engines.send(what)
    used: float = engines.recv()
    return used


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Return what the requests of one setting came to."""
    times = [one.ttft_s for one in results if one.ttft_s is not None]
    tokens = sum(one.prompt_tokens for one in results)
    return {
        "requests": len(results),
        "failed": len(results) - len(times),
        "hit_rate": sum(one.cached_tokens for one in results) / max(1, tokens),
        "ttft_mean_s": sum(times) / max(1, len(times)),
        "ttft_p50_s": percentile(times, 0.5),
        "ttft_p99_s": percentile(times, 0.99),
        "sent_late_p99_s": percentile([one.late_s for one in results], 0.99),
    }


def compare(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far each setting is from one router that sees all, as a share of its figures."""
    one = settings["one router"]
    measured = {name: found for name, found in settings.items() if "hit_rate" in found}
    names = ("hit_rate", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s")
    return {
        name: {figure: found[figure] / one[figure] - 1.0 for figure in names}
        for name, found in measured.items()
        if name != "one router" and all(one[figure] > 0 for figure in names)
    }


def reached(figure: str, over: float) -> bool:
    """Return whether a figure is within the goal of that of one router, or better."""
    return over >= -GOAL_OVER_ONE if figure == "hit_rate" else over <= GOAL_OVER_ONE


def table(report: Mapping[str, Any]) -> str:
    """Return the figures as tables in Markdown."""
    lines = [
        "| shared | cached of prompt tokens | TTFT mean | P50 | P99 | commands, bytes/s each |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in report["settings"].items():
        if "hit_rate" not in found:
            lines.append(f"| {name} | {found['not_available']} | | | | |")
            continue
        cost = found.get("redis_per_router")
        paid = f"{cost['commands_per_s']:.2f}, {cost['network_bytes_per_s']:.0f}" if cost else ""
        times = " | ".join(f"{found[f'ttft_{key}_s']:.3f} s" for key in ("mean", "p50", "p99"))
        lines.append(f"| {name} | {found['hit_rate']:.1%} | {times} | {paid} |")
    lines += ["", "| routers | Redis, of a core | per turn | commands/s each | bytes/s each |"]
    lines.append("|---|---|---|---|---|")
    for one in report["routers"]:
        lines.append(
            f"| {one['routers']} | {one['server_share_of_a_core']:.1%} "
            f"| {one['server_us_per_turn']:.0f} us | {one['commands_per_s_per_router']:.2f} "
            f"| {one['network_bytes_per_s_per_router']:.0f} |"
        )
    return "\n".join(lines)


def run(load: Load, names: Sequence[str], crowd_s: float) -> dict[str, Any]:
    """Run both parts; return the report."""
    settings: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), SERVERS[0])
        server.start()
        try:
            with _processes(load) as (urls, engines, clients):
                for name in names:
                    setting = SETTINGS[name]
                    if setting.headers and not headers_available():
                        settings[name] = {"not_available": "this version does not read them"}
                        continue
                    settings[name] = measure(name, setting, load, urls, engines, clients, server)
            routers = []
            for count in CROWDS:
                print(f"{count} routers: {crowd_s:g} s", file=sys.stderr, flush=True)
                routers.append(carry(server, count, every_s=0.5, seconds=crowd_s))
            with server.client() as client:
                info: Any = client.info()
        finally:
            server.kill()
    within = compare(settings) if "one router" in settings else {}
    return {
        "machine": machine(),
        "packages": packages("prefixroute", "redis", "httpx"),
        "server": f"{SERVERS[0]} {info['redis_version']}",
        "load": asdict(load),
        "rate_chosen": (
            "so low that the processes do not compete for the cores (see cpu_share_of_the_machine "
            "and sent_late_p99_s), and engines so slow that they are the bottleneck; intervals are "
            "twice the defaults, in proportion"
        ),
        "engines": {"replicas": REPLICAS, **asdict(MODEL)},
        "settings": settings,
        "over_one_router": within,
        "routers": routers,
        "goals": {
            "within_10_percent_of_one_router": {
                name: {key: reached(key, value) for key, value in each.items()}
                for name, each in within.items()
            },
            "redis_below_20_percent_of_a_core": all(
                one["server_share_of_a_core"] < GOAL_SHARE_OF_A_CORE for one in routers
            ),
        },
    }


def main() -> int:
    """Run the benchmark and print tables, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=150.0, help="for each setting")
    parser.add_argument("--crowd-seconds", type=float, default=15.0, help="for each number")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if not SERVERS:
        print("neither redis-server nor valkey-server is installed", file=sys.stderr)
        return 2
    seconds = 12.0 if options.quick else options.seconds
    load = Load(rate=options.rate, seconds=seconds, warm_up_s=seconds / 2)
    report = run(load, options.settings, 4.0 if options.quick else options.crowd_seconds)
    print(json.dumps(report, indent=2) if options.json else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
