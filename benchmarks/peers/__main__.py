"""Routers beside each other: ``python -m benchmarks.peers --json``.

prefixroute, LiteLLM's Router and the gateways of SGLang and vLLM on the same chats of 8k tokens, in
front of the same four servers (nginx on loopback, which answers at once), in one run: decisions,
calls with the same clients, CPU time of all processes of a call but the servers'. Hash rings and
trees of prompts are measured as parts. Each peer is installed in an environment of its own, and
what can't be installed or doesn't start is named with the reason, and the rest is measured.

It needs nginx, and the package index the first time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import memory
from benchmarks.litellm_peer import python_of_litellm
from benchmarks.measuring import packages, parser
from benchmarks.peers.arms import Arm, Name, gateway_arm, worker_arm
from benchmarks.peers.calls import ROUTED
from benchmarks.peers.environments import python_with, version
from benchmarks.peers.gateways import GATEWAYS, Gateway, Running, running
from benchmarks.peers.goals import CLIENTS, hidden, rows
from benchmarks.peers.lines import PeerError, Worker
from benchmarks.peers.report import Report, figures, show
from benchmarks.peers.run import Run, Size
from benchmarks.peers.servers import SERVERS, servers

TOKENS: Final = 8_000
KEYS: Final = 20_000
RINGS: Final = (8, 64)
_LITELLM: Final[Mapping[str, tuple[str, ...]]] = {
    "simple-shuffle": (),
    "prompt-caching check": ("prompt_caching",),
}
_LITELLM_ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it looks for prices when it starts
    "LITELLM_LOG": "ERROR",
}
_NOT_PUBLISHED: Final = "not on the package index, where vllm-router is another project"
_XXHASH: Final = "xxhash<4"
"""What the trie hashes with; later versions refuse text."""


# -- gateways --------------------------------------------------------------------------------------


def gateways(run: Run) -> None:
    """Measure the same clients straight, through the Router, and through each gateway."""
    with ExitStack() as stack:
        up = {"json": run.up.json, "sse": run.up.sse}
        own = {kind: [f"{root}/v1" for root in roots] for kind, roots in up.items()}
        places = {kind: {"direct": urls[:1], ROUTED: urls} for kind, urls in own.items()}
        started: dict[tuple[str, str], Running] = {}
        for gateway in GATEWAYS:
            with run.leaving_out(gateway.name):
                started |= _started(run, gateway, stack)
        for (name, kind), at in started.items():
            places[kind][name] = [at.url]
        worker = stack.enter_context(run.worker("calls", sys.executable))
        worker.ask("start", places=places)
        run.measure("gateways", _gateway_arms(run, worker, started))


def _started(run: Run, gateway: Gateway, stack: ExitStack) -> dict[tuple[str, str], Running]:
    python = python_with(gateway.package, (gateway.package,))
    found = {}
    for kind, roots in (("json", run.up.json), ("sse", run.up.sse)):
        log = run.folder / f"{gateway.package}-{kind}.log"
        found[gateway.name, kind] = stack.enter_context(running(gateway, python, roots, log))
    run.versions[gateway.package] = version(python, gateway.package)
    return found


def _gateway_arms(
    run: Run, worker: Worker, started: Mapping[tuple[str, str], Running]
) -> dict[Name, Arm]:
    arms: dict[Name, Arm] = {}
    for client in CLIENTS:
        kind = "sse" if client == "httpx-sse" else "json"
        names = [name for name, of in started if of == kind]
        for through in ("direct", ROUTED, *names):
            arm = _call(run, worker, client=client, through=through)
            if (through, kind) in started:
                arm = gateway_arm(arm, started[through, kind], 2 * run.size.chats)
            arms["gateway", client, through] = arm
    return arms


def _call(run: Run, worker: Worker, **arguments: str) -> Arm:
    return worker_arm(worker, "call", count=run.size.chats, tokens=TOKENS, **arguments)


# -- LiteLLM ---------------------------------------------------------------------------------------


def litellm(run: Run) -> None:
    """Measure decisions and calls beside LiteLLM's Router."""
    urls = [f"{root}/v1" for root in run.up.json]
    decide = {"count": run.size.chats, "tokens": TOKENS}
    with ExitStack() as stack:
        worker = stack.enter_context(run.worker("calls", sys.executable))
        worker.ask("start", places={"json": {"direct": urls[:1], ROUTED: urls}})
        arms: dict[Name, Arm] = {
            ("decide", form, ROUTED): worker_arm(worker, "decide", form=form, **decide)
            for form in ("bytes", "mapping")
        }
        for client in ("openai", "openai-async", "openai-post", "openai-post-async"):
            for through in ("direct", ROUTED):
                arm = _call(run, worker, client=client, through=through)
                arms["litellm", client, through] = arm
        with run.leaving_out("LiteLLM"):
            python = python_of_litellm()
            run.versions["litellm"] = version(python, "litellm")
            for name, checks in _LITELLM.items():
                peer = stack.enter_context(run.worker("litellm", python, _LITELLM_ENVIRONMENT))
                peer.ask("start", urls=urls, checks=checks)
                arms["decide", name, "LiteLLM"] = worker_arm(peer, "decide", **decide)
                for mode in () if checks else ("sync", "async"):
                    arms["litellm", mode, "LiteLLM"] = _call(run, peer, mode=mode)
        run.measure("LiteLLM", arms)


# -- parts -----------------------------------------------------------------------------------------


def parts(run: Run, checkout: str | None) -> None:
    """Measure hash rings, trees of prompts, and what is remembered for prompts."""
    with ExitStack() as stack:
        arms: dict[Name, Arm] = {}
        rings: dict[str, Path | str] = {ROUTED: sys.executable}
        with run.leaving_out("uhashring"):
            rings["uhashring"] = python_with("uhashring", ("uhashring",))
            run.versions["uhashring"] = version(rings["uhashring"], "uhashring")
        for kind, python in rings.items():
            worker = stack.enter_context(run.worker("parts", python))
            for members in RINGS:
                arms["ring", str(members), kind] = _ring(worker, kind, members)
        trees = _trees(run, checkout)
        for kind, (name, python) in trees.items():
            worker = stack.enter_context(run.worker("parts", python))
            arms["tree", "", name] = worker_arm(
                worker,
                "match",
                kind=kind,
                count=run.size.chats,
                tokens=TOKENS,
                checkout=checkout,
            )
        own = stack.enter_context(run.worker("calls", sys.executable))
        own.ask("start", places={"json": {ROUTED: [f"{root}/v1" for root in run.up.json]}})
        arms["tree", "", f"{ROUTED}, a whole decision"] = worker_arm(
            own, "decide", form="bytes", count=run.size.chats, tokens=TOKENS
        )
        run.measure("parts", arms)
    _memory(run, trees, checkout)


def _ring(worker: Worker, kind: str, members: int) -> Arm:
    return lambda _: {"us": worker.ask("ring", kind=kind, members=members, keys=KEYS)}


def _trees(run: Run, checkout: str | None) -> dict[str, tuple[str, Path]]:
    """Return the names of the trees that can be had, and their environments."""
    trees = {}
    with run.leaving_out("Ray's PrefixTree"):
        python = python_with("ray", ("ray[serve]",))
        run.versions["ray"] = version(python, "ray")
        trees["ray"] = ("Ray's PrefixTree", python)
    run.left_out["production-stack's router"] = _NOT_PUBLISHED
    trie = "production-stack's HashTrie"
    if checkout is None:
        run.left_out[trie] = f"{_NOT_PUBLISHED}; --production-stack CHECKOUT measures it"
        return trees
    with run.leaving_out(trie):
        trees["hashtrie"] = (trie, python_with("xxhash", (_XXHASH,)))
    return trees


def _memory(run: Run, trees: Mapping[str, tuple[str, Path]], checkout: str | None) -> None:
    """Measure once what is remembered; each in a process of its own."""
    print("memory", file=sys.stderr, flush=True)
    prompts = run.size.prompts
    for kind, (name, python) in trees.items():
        with run.leaving_out(f"memory, {name}"), run.worker("parts", python) as worker:
            grown = worker.ask(
                "memory", kind=kind, prompts=prompts, tokens=TOKENS, checkout=checkout
            )
            run.found["memory", str(prompts), name] = [{"mb": grown}]
    grown = memory.in_process("nested", 0, prompts=prompts)
    run.found["memory", str(prompts), ROUTED] = [{"mb": grown}]


# -- the whole -------------------------------------------------------------------------------------


def report(run: Run) -> Report:
    """Return all that is told of a run."""
    own = packages("prefixroute", "httpx", "openai")
    names = [gateway.name for gateway in GATEWAYS]
    return Report(
        rows=rows(run.found, names, ROUTED),
        figures=figures(run.found),
        left_out={**run.left_out, **hidden(run.found, names, ROUTED)},
        packages={**own, **run.versions},
        settings={"tokens": TOKENS, "servers": SERVERS, **asdict(run.size)},
    )


def options() -> argparse.Namespace:
    """Return the arguments."""
    made = parser(__doc__, repeats=9)
    made.add_argument("--quick", action="store_true", help="a look whether all works: no figures")
    made.add_argument("--production-stack", metavar="CHECKOUT", help="measures its HashTrie, too")
    return made.parse_args()


def main() -> int:
    """Run the benchmark and print tables, or one JSON object; 1 without the servers."""
    chosen = options()
    size = Size(repeats=chosen.repeats, rounds=6, chats=4, prompts=10_000)
    if chosen.quick:
        size = Size(repeats=2, rounds=1, chats=4, prompts=200)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            up = stack.enter_context(servers(Path(folder)))
        except PeerError as error:
            print(f"nothing was measured: {error}", file=sys.stderr)
            return 1
        run = Run(folder=Path(folder), up=up, size=size)
        gateways(run)
        litellm(run)
        parts(run, chosen.production_stack)
    show(report(run), as_json=chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
