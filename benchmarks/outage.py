"""What callers see of an outage: ``python -m benchmarks.outage --json``.

Eight simulated engines on sockets, in a process of their own, and 200 calls a second that come
whatever became of those before. After a while in which all is well one engine is killed, one hangs,
one answers 500, and each is put right as the next one fails. Three clients take it in turn, each in
a process of its own, with the same arrivals, prompts and faults: a Router, the OpenAI SDK with one
client for each endpoint in turn, and LiteLLM's Router (in an environment of its own; left out where
that can't be made). All have the same timeout and are otherwise as they come. ``--clients`` takes a
fourth: a Router that probes.

The exit code is 1 if a call through the Router failed that was never sent to a failing engine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.fleets import machine, packages
from benchmarks.litellm_peer import python_of_litellm
from benchmarks.outage_figures import Attempt, Call, Outage, Phase, Record
from benchmarks.outage_report import summary, tables
from prefixroute.testing import EngineModel, FakeCluster, Hang, Status
from tests.sdk.environments import ROOT, SetupError

REPLICAS: Final = 8
CLIENTS: Final = ("prefixroute", "round-robin", "litellm")
"""Those that are measured by default."""
PROBING: Final = "prefixroute-probing"
PLAN: Final = (("well", 10), ("killed", 12), ("hangs", 12), ("answers 500", 12), ("all back", 22))
"""The phases and how long each takes, in parts of the whole."""
OUTAGE_ENDPOINTS: Final = {"killed": 1, "hangs": 3, "answers 500": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent, and how.

    Attributes:
        rate: Calls a second.
        seconds: For how long.
        timeout_s: What each client is given as its timeout.
        seed: Of the arrivals.
    """

    rate: float
    seconds: float
    timeout_s: float
    seed: int = 0

    def phases(self) -> list[Phase]:
        """Return the phases, in seconds from the start."""
        began, phases = 0.0, list[Phase]()
        for name, part in PLAN:
            ended = began + part * self.seconds / sum(parts for _, parts in PLAN)
            phases.append(Phase(name=name, began=began, ended=ended))
            began = ended
        return phases


# -- the engines, in a process of their own ------------------------------------------------------


def serve(control: Connection) -> None:
    """Serve the engines, and do to them what the other side says: a method and its arguments."""
    model = EngineModel(
        prefill_tokens_per_s=20_000,
        request_overhead_s=0.002,
        decode_s_per_token=0.002,
        output_tokens=12,
        cache_blocks=4000,
    )
    cluster = FakeCluster(REPLICAS, model=model, max_recorded=0)
    with cluster.serve() as urls:
        control.send(urls)
        while (told := control.recv()) is not None:
            name, *arguments = told
            getattr(cluster, name)(*arguments)
            control.send(None)  # done


@contextmanager
def engines() -> Iterator[tuple[list[str], Connection]]:
    """Start the engines, and stop them at the end of the block."""
    context = multiprocessing.get_context("spawn")
    control, far = context.Pipe()
    process = context.Process(target=serve, args=(far,))
    process.start()
    try:
        yield control.recv(), control
        control.send(None)
    finally:
        process.join(timeout=10)
        if process.is_alive():
            process.kill()


def disturb(control: Connection, load: Load, began: float) -> list[Outage]:
    """Let one endpoint after the other fail, each for one phase; return when each really did."""
    breaks: Mapping[str, tuple[Any, ...]] = {
        "killed": ("stop",),
        "hangs": ("fail", Hang()),
        "answers 500": ("fail", Status(code=500)),
    }
    outages = []
    for phase in load.phases():
        if (endpoint := OUTAGE_ENDPOINTS.get(phase.name)) is None:
            continue
        name, *arguments = breaks[phase.name]
        time.sleep(max(0.0, began + phase.began - time.monotonic()))
        broke = time.monotonic()
        tell(control, name, endpoint, *arguments)
        time.sleep(max(0.0, began + phase.ended - time.monotonic()))
        tell(control, "start" if name == "stop" else "heal", endpoint)
        healed = time.monotonic()
        outages.append(
            Outage(fault=phase.name, endpoint=endpoint, began=broke - began, ended=healed - began)
        )
    return outages


def tell(control: Connection, *what: Any) -> None:
    """Have something done to the engines, and wait until it is."""
    control.send(what)
    control.recv()


# -- the clients -----------------------------------------------------------------------------------


def python_of(client: str) -> str:
    """Return the Python that has a client; see ``environment`` for what it raises."""
    return python_of_litellm() if client == "litellm" else sys.executable


def measure(client: str, urls: Sequence[str], control: Connection, load: Load) -> Record:
    """Put one client under the load while endpoints fail.

    Raises:
        SetupError: Its environment can't be made.
        RuntimeError: It ended early.
    """
    process = subprocess.Popen(
        [python_of(client), "-m", "benchmarks.outage_load", client],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        print(json.dumps({"urls": urls, **asdict(load)}), file=process.stdin, flush=True)
        versions = hear(client, process.stdout.readline())["versions"]
        began = time.monotonic() + 0.5
        print(began, file=process.stdin, flush=True)
        outages = disturb(control, load, began)
        said = hear(client, process.stdout.readline())
    finally:
        process.kill()
        process.wait()
    calls = [
        Call(number=number, due=due - began, made=made - began, ended=ended - began, error=error)
        for number, due, made, ended, error in said["calls"]
    ]
    attempts = [
        Attempt(call=call, endpoint=at, began=start - began, ended=end - began, error=error)
        for call, at, start, end, error in said["attempts"]
    ]
    return Record(
        calls=calls,
        attempts=attempts,
        outages=outages,
        phases=load.phases(),
        versions=versions,
    )


def hear(client: str, line: str) -> dict[str, Any]:
    """Return what a client says."""
    if not line:
        raise RuntimeError(f"the process of {client} ended early")
    said: dict[str, Any] = json.loads(line)
    return said


# -- the whole -------------------------------------------------------------------------------------


def run(clients: Sequence[str], load: Load) -> dict[str, dict[str, Any]]:
    """Return the figures of each client; of one that can't be set up, or that died, the error."""
    results: dict[str, dict[str, Any]] = {}
    with engines() as (urls, control):
        for client in clients:
            print(f"{client}: {load.seconds:g} s", file=sys.stderr, flush=True)
            try:
                results[client] = summary(measure(client, urls, control, load))
            except (SetupError, RuntimeError) as error:
                results[client] = {"error": str(error)}
    return results


def main() -> int:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=200.0, help="calls a second")
    parser.add_argument("--seconds", type=float, default=68.0, help="for each client")
    parser.add_argument("--timeout", type=float, default=3.0, help="of each client, seconds")
    parser.add_argument("--clients", nargs="+", choices=(*CLIENTS, PROBING), default=CLIENTS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    load = Load(rate=options.rate, seconds=options.seconds, timeout_s=options.timeout)
    clients = run(options.clients, load)
    ours = [clients[name] for name in ("prefixroute", PROBING) if name in clients]
    sound = all(one.get("failed_never_sent_to_failing") == 0 for one in ours)
    if options.json:
        report = {
            "machine": machine(),
            "packages": packages("prefixroute"),
            "load": asdict(load),
            "replicas": REPLICAS,
            "clients": clients,
            "sound": sound,
        }
        print(json.dumps(report, indent=2))
    else:
        print(tables(clients))
        print("\nsound" if sound else "\nNOT SOUND: a call failed that no failing engine had")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
