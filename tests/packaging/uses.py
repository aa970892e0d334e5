"""What the base install and each extra promise, used: ``python -I tests/packaging/uses.py redis``.

Runs in an environment that has the wheel and what one extra needs, and nothing of the checkout. In
one without the extra the same use must fail, with an error that names the extra.
"""

from __future__ import annotations

import asyncio
import json
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import httpx

import prefixroute
from prefixroute import Endpoint, Router

__all__ = ["USES"]

_URLS: Final = ("http://gpu-0:8000/v1", "http://gpu-1:8000/v1")
_BODY: Final[dict[str, Any]] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Which books on ships? " * 100}],
}
_EVENTS: Final = (
    b'data: {"choices":[{"delta":{"content":"Ships"}}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":500,"completion_tokens":1,'
    b'"prompt_tokens_details":{"cached_tokens":400}}}\n\n',
    b"data: [DONE]\n\n",
)


# -- the base install --------------------------------------------------------------------


def use_base() -> None:
    """Route, send and stream, sync and async; simulate; import every module."""
    router = Router([*_URLS, Endpoint("http://gpu-2:8000", weight=2.0)])
    decision = router.route(_BODY)
    assert decision.reason.value == "home"
    assert router.explain(_BODY).decision.endpoint.id == decision.endpoint.id
    with router.acquire(_BODY) as lease:
        lease.first_token(cached_tokens=3)
    _send(router, httpx)
    asyncio.run(_send_async(router, httpx))
    assert router.stats().cached_tokens >= 4 * 400
    _configure()
    _simulate()
    _import_all()


def _send(router: Router, library: Any) -> None:
    """Send a request that is retried elsewhere, and a stream."""
    refused: list[str] = []

    def answer(request: Any) -> Any:
        if not refused:
            refused.append(str(request.url))
            return library.Response(503)
        return _reply(library, request, library.ByteStream(b"".join(_EVENTS)))

    inner = library.MockTransport(answer)
    with library.Client(base_url=router.base_url, transport=router.transport(inner)) as http:
        response = http.post("/chat/completions", json=_BODY)
        assert response.json()["usage"]["prompt_tokens"] == 500
        assert response.extensions["prefixroute"].endpoint.id not in refused[0]
        assert "trace" not in response.request.extensions  # it is the caller's
        with http.stream("POST", "/chat/completions", json={**_BODY, "stream": True}) as reply:
            assert b"".join(reply.iter_bytes()) == b"".join(_EVENTS)
    assert router.stats().in_flight == 0


async def _send_async(router: Router, library: Any) -> None:
    async def answer(request: Any) -> Any:
        return _reply(library, request, library.ByteStream(b"".join(_EVENTS)))

    inner = router.async_transport(library.MockTransport(answer))
    async with library.AsyncClient(base_url=router.base_url, transport=inner) as http:
        assert (await http.post("/chat/completions", json=_BODY)).is_success
        body = {**_BODY, "stream": True}
        async with http.stream("POST", "/chat/completions", json=body) as reply:
            assert [part async for part in reply.aiter_bytes()]
    assert router.stats().in_flight == 0


def _reply(library: Any, request: Any, stream: Any) -> Any:
    if json.loads(request.content).get("stream"):
        return library.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)
    usage = {"prompt_tokens": 500, "prompt_tokens_details": {"cached_tokens": 400}}
    return library.Response(200, json={"choices": [], "usage": usage})


def _configure() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefixroute.toml"
        file.write_text(f"endpoints = {json.dumps(_URLS)}\n", encoding="utf-8")
        assert len(Router.from_file(file).endpoints) == 2
    assert len(Router.from_env({"PREFIXROUTE_ENDPOINTS": ",".join(_URLS)}).endpoints) == 2


def _simulate() -> None:
    from prefixroute.simulator import TraceError, chats, read_requests, simulate

    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "log.jsonl").write_text("{\n", encoding="utf-8")
        try:
            list(read_requests(file))
        except TraceError:
            pass
        else:
            raise AssertionError("half an object is no request")
    trace = chats(requests_per_s=5.0, duration_s=4.0)
    simulation = simulate(trace, policies=["nested", "random"], replicas=2)
    assert "<table" in simulation.to_html()


def _import_all() -> None:
    """Import every module; what needs an extra must name it."""
    import_module("prefixroute_pytest") if _has("pytest") else None
    for module in pkgutil.walk_packages(prefixroute.__path__, "prefixroute."):
        if module.name == "prefixroute.__main__":
            continue
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            named = "pip install 'prefixroute[" in str(error)
            if not named and not module.name.startswith("prefixroute.cli."):
                raise


def _has(module: str) -> bool:
    try:
        import_module(module)
    except ModuleNotFoundError:
        return False
    return True


def use_trio() -> None:
    """Send, stream, wait for room and follow a source on trio."""
    import trio

    from prefixroute.signals import Discovery

    trio.run(_send_async, Router(_URLS), httpx)
    router = Router([Endpoint(_URLS[0], max_in_flight=1)])
    served: list[int] = []

    async def answer(request: Any) -> Any:
        served.append(router.stats().in_flight)
        await trio.sleep(0.01)
        return httpx.Response(200, json={})

    async def main() -> None:
        inner = router.async_transport(httpx.MockTransport(answer))
        client = httpx.AsyncClient(base_url=router.base_url, transport=inner)
        async with client as http, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(http.get, "/models")
        async with Discovery(router, lambda: _URLS):  # it ends in a thread of anyio's
            pass

    trio.run(main)
    assert served == [1, 1, 1]


# -- extras: what names the extra comes before anything of it is imported ------------------


def use_httpx2() -> None:
    """Send and stream through httpx2."""
    router = Router(_URLS)
    router.client("httpx2").close()
    import httpx2

    _send(router, httpx2)
    asyncio.run(_send_async(router, httpx2))


def use_cli() -> None:
    """Run the commands that need nothing else, as a module and as the installed script."""
    shown = _run(sys.executable, "-m", "prefixroute", "--help")
    for command in ("route", "simulate", "analyze", "check", "config", "demo"):
        assert command in shown, f"{command} is not in the help"
    script = Path(sys.executable).with_name("prefixroute")
    endpoints = [part for url in _URLS for part in ("-e", url)]
    said = _run(script, "route", "-", *endpoints, "--json", given=json.dumps(_BODY))
    assert json.loads(said)["reason"] == "home"
    assert "boundaries" in _run(script, "route", "-", *endpoints, given=json.dumps(_BODY))
    assert "endpoints" in _run(script, "config", "schema")
    small = ("--duration", "4", "--policy", "nested", "--routers", "1", "--jobs", "1")
    _run(script, "simulate", "chats", *small, "--json")


def use_demo() -> None:
    """Run a small demo."""
    sizes = ("--assistants", "2", "--chats", "2", "--turns", "2", "--system-tokens", "200")
    said = _run(sys.executable, "-m", "prefixroute", "demo", *sizes, "--rate", "50", "--json")
    assert len(json.loads(said)) == 2


def use_prometheus() -> None:
    """Export a count, and read an engine's metrics."""
    from prefixroute.metrics import PrometheusObserver
    from prefixroute.signals import EngineMetrics, read_load

    from prometheus_client import CollectorRegistry, generate_latest  # isort: skip

    registry = CollectorRegistry()
    router = Router(_URLS, observers=[PrometheusObserver(registry)])
    router.acquire(_BODY).release()
    assert b"prefixroute_requests_total" in generate_latest(registry)
    assert EngineMetrics(router) is not None
    load = read_load(b"vllm:num_requests_running 3.0\nvllm:num_requests_waiting 2.0\n")
    assert load is not None
    assert (load.running, load.waiting) == (3, 2)


def use_dns() -> None:
    """Ask for a name that resolves to nothing, at a port where nobody answers."""
    from prefixroute.signals import DnsSource

    assert DnsSource("gpu.example", port=8000).record == "A"
    from dns.resolver import Resolver

    resolver = Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], 9
    source = DnsSource("gpu.example.", port=8000, resolver=resolver, timeout_s=0.2)
    _is_unavailable(source)


def use_kubernetes() -> None:
    """Ask an API server that is not there."""
    from prefixroute.signals import KubernetesSource

    assert KubernetesSource("engine").scheme == "http"
    from kubernetes.client import ApiClient, Configuration

    api = ApiClient(Configuration(host="http://127.0.0.1:9"))
    _is_unavailable(KubernetesSource("engine", namespace="default", api=api))


def _is_unavailable(source: Any) -> None:
    from prefixroute import SourceUnavailable

    try:
        source.endpoints()
    except SourceUnavailable:
        return
    raise AssertionError(f"{source} has an answer that nobody gave")


def use_redis() -> None:
    """Join a fleet whose server is not there: routing goes on."""
    from prefixroute.signals import RedisFleet

    router = Router(_URLS)
    with RedisFleet(router, "redis://127.0.0.1:9/0", timeout_s=0.2) as fleet:
        router.acquire(_BODY).release()
        assert fleet.stats() is not None


def use_yaml() -> None:
    """Read settings in YAML."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefixroute.yaml"
        file.write_text("endpoints: [http://gpu-0:8000/v1]\n", encoding="utf-8")
        assert len(Router.from_file(file).endpoints) == 1


def use_otel() -> None:
    """Watch a router, with the API alone."""
    from prefixroute.telemetry import OpenTelemetryObserver

    router = Router(_URLS, observers=[OpenTelemetryObserver()])
    router.acquire(_BODY).release()


def use_tiktoken() -> None:
    """Count by an encoding that is made here: no vocabulary is fetched."""
    from prefixroute.tokenizers import TiktokenTokenizer

    TiktokenTokenizer("o200k_base", download_timeout_s=0)
    from tiktoken import Encoding

    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = Encoding("bytes", pat_str=r".+", mergeable_ranks=ranks, special_tokens={})
    _counts(TiktokenTokenizer(encoding))


def use_transformers() -> None:
    """Count by a tokenizer that is made here, with a chat template."""
    from prefixroute.tokenizers import HuggingFaceTokenizer

    HuggingFaceTokenizer("there/is-no-such-folder")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "ships": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    kind: Any = PreTrainedTokenizerFast
    fast = kind(tokenizer_object=made, unk_token="[UNK]")
    fast.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    _counts(HuggingFaceTokenizer(fast))


def _counts(tokenizer: Any) -> None:
    router = Router(_URLS, tokenizer=tokenizer)
    assert router.route(_BODY).tokens > 100
    assert router.route(_BODY).key == router.route(json.dumps(_BODY).encode()).key


def use_plot() -> None:
    """Draw a ring, without a window."""
    from prefixroute.plot import plot_ring

    router = Router(_URLS)
    axes: Any = plot_ring(router)
    with tempfile.TemporaryDirectory() as folder:
        axes.figure.savefig(Path(folder) / "ring.png")


def use_all() -> None:
    """Use every extra beside the others, but for the commands, which take long."""
    for name, use in USES.items():
        if name not in ("all", "cli", "demo", "trio"):
            use()


def _run(*command: str | Path, given: str = "") -> str:
    done = subprocess.run(
        [str(part) for part in command], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


USES: Final[dict[str, Callable[[], None]]] = {
    name.removeprefix("use_"): use
    for name, use in list(globals().items())
    if name.startswith("use_")
}
"""By extra; ``base`` is what is there without any, and ``trio`` is another event loop."""


if __name__ == "__main__":
    USES[sys.argv[1]]()
