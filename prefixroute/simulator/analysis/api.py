"""``analyze``: what the traffic of a log has to gain from routing by prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import Final, Literal

from prefixroute.core.checks import check_int, check_number
from prefixroute.core.hashing import utf8
from prefixroute.core.prompt import KeySource
from prefixroute.simulator.analysis.report import Analysis, Expected, TopPrefix
from prefixroute.simulator.analysis.segments import segments
from prefixroute.simulator.analysis.sharing import sharing_of, top_prefixes
from prefixroute.simulator.analysis.spoilers import Sample, find_spoilers
from prefixroute.simulator.analysis.verdict import Facts, verdict_on
from prefixroute.simulator.api import simulate
from prefixroute.simulator.reading import LOG_BLOCK_TOKENS, MOONCAKE_BLOCK_TOKENS, read_requests
from prefixroute.simulator.replica import ReplicaModel
from prefixroute.simulator.report import PolicyResult
from prefixroute.simulator.traces import Request, Trace

__all__ = ["analyze"]

MAX_REQUESTS: Final = 100_000
MAX_BLOCKS: Final = 3_000_000
"""Blocks of all prompts that are kept: about 300 MB."""

SEARCHED_REQUESTS: Final = 4_000
SEARCHED_BYTES: Final = 2**27
"""Texts are searched for what spoils prefixes in the first requests, up to both."""

SIMULATED_REQUESTS: Final = 20_000

_EVEN_LOAD: Final = 0.6
"""Where the log tells no times, the rate keeps replicas busy for so much of the time if nothing
were cached: moderate, and no placement is overrun."""

_SHOWN: Final = 80

Progress = Callable[[str], None]
"""Told what is being done."""


def analyze(
    log: str | Path,
    *,
    replicas: int = 4,
    routers: int = 1,
    cache_tokens: int = 500_000,
    prefill_tokens_per_s: float = 8000.0,
    max_requests: int = MAX_REQUESTS,
    format: Literal["mooncake", "bodies"] | None = None,  # noqa: A002 - as read_trace
    show_text: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Analysis:
    """Tell what the traffic of a log has to gain from routing by prefix.

    Reads one request after the other; memory stays bounded whatever the log's length: at most
    ``max_requests`` requests and 3 million blocks are kept, and text of the first 4,000 requests
    or 128 MB.

    Args:
        log: File with a JSON object a line; see :func:`read_requests`. Gzip and zstd are read.
        replicas: How many replicas are simulated.
        routers: Routers (processes) that share nothing; each request goes through a random one.
        cache_tokens: Size of a replica's prefix cache, tokens.
        prefill_tokens_per_s: How fast a replica computes what is not cached.
        max_requests: Requests that are read; the rest of a longer log is left alone.
        format: ``"mooncake"`` or ``"bodies"``; default: what the first request looks like.
        show_text: Lets the analysis hold and show prompt text.
        seed: Of the simulation.
        progress: Told what is being done.

    Raises:
        TraceError: A line that cannot be read, by its number; or no request at all.
        ConfigurationError: A setting out of its range.
        OSError: The file cannot be read.
    """
    check_int("analyze", "replicas", replicas, 1)
    check_int("analyze", "routers", routers, 1)
    check_int("analyze", "cache_tokens", cache_tokens, 0)
    check_int("analyze", "max_requests", max_requests, 1)
    check_number("analyze", "prefill_tokens_per_s", prefill_tokens_per_s, above=True)
    tell = progress or (lambda _: None)
    tell("reading")
    read = _read(Path(log), max_requests, format)
    requests = read.requests
    block = read.block_tokens
    model = ReplicaModel(
        cache_blocks=cache_tokens // block, prefill_tokens_per_s=prefill_tokens_per_s
    )
    sharing = sharing_of(requests)
    search = find_spoilers(read.samples, tell) if read.samples else None
    tell("simulating")
    trace, load = _timed(read, replicas, model)
    simulation = simulate(
        trace,
        policies=["random", "nested"],
        replicas=replicas,
        model=model,
        routers=routers,
        seed=seed,
    )
    random, routed = (_expected(result) for result in simulation.results)
    output_mean = sum(r.output_tokens for r in requests) / len(requests) if read.outputs else None
    distinct = sharing.tokens - sharing.repeated
    repeated_share = _share(sharing.repeated, sharing.tokens)
    facts = Facts(
        requests=len(requests),
        replicas=replicas,
        repeated_share=repeated_share,
        mean_tokens=sharing.tokens / len(requests),
        prefill_tokens_per_s=prefill_tokens_per_s,
        decode_mean_s=None if output_mean is None else output_mean * model.decode_s,
        distinct_tokens=distinct,
        cache_tokens=cache_tokens,
        random=random,
        routed=routed,
        search=search,
    )
    return Analysis(
        log=Path(log).name,
        requests=len(requests),
        complete=read.complete,
        timed=read.timed,
        duration_s=trace.duration_s,
        prompt_tokens=sharing.tokens,
        prompt_tokens_p50=median_low(round(request.prompt.tokens) for request in requests),
        output_tokens_mean=output_mean,
        counted=all(request.prompt.counted for request in requests),
        repeated_share=repeated_share,
        repeated_system_share=_system_share(requests, sharing.repeated_root, sharing.repeated),
        distinct_tokens=distinct,
        depths=sharing.summary(),
        prefixes=_prefixes(requests, read.samples, show_text=show_text),
        replicas=replicas,
        routers=routers,
        cache_tokens=cache_tokens,
        prefill_tokens_per_s=prefill_tokens_per_s,
        load=load,
        simulated=len(trace),
        pooled_hit_rate=simulation.pooled_hit_rate,
        random=random,
        routed=routed,
        search=search,
        verdict=verdict_on(facts),
        show_text=show_text,
    )


@dataclass(slots=True, kw_only=True)
class _Log:
    """What was read of a log."""

    name: str
    requests: list[Request] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    timed: bool = True
    outputs: bool = True
    complete: bool = True

    @property
    def block_tokens(self) -> int:
        blocks = any(r.prompt.source is KeySource.BLOCKS for r in self.requests[:1])
        return MOONCAKE_BLOCK_TOKENS if blocks else LOG_BLOCK_TOKENS


def _read(path: Path, most: int, format_: Literal["mooncake", "bodies"] | None) -> _Log:
    log = _Log(name=path.name.partition(".")[0])
    blocks = text = 0
    for logged in read_requests(path, format=format_):
        request = logged.request
        blocks += len(request.prompt.chain)
        if len(log.requests) >= most or (blocks > MAX_BLOCKS and log.requests):
            log.complete = False
            break
        text += len(logged.line)
        if request.body is not None:
            if len(log.samples) < SEARCHED_REQUESTS and text <= SEARCHED_BYTES:
                sample = Sample(body=request.body, path=request.path, prompt=request.prompt)
                log.samples.append(sample)
            request = replace(request, body=None)
        log.requests.append(request)
        log.timed = log.timed and logged.timed
        log.outputs = log.outputs and logged.told_output
    return log


def _timed(log: _Log, replicas: int, model: ReplicaModel) -> tuple[Trace, float]:
    """Return the requests to simulate, with the load that they are if nothing is cached."""
    requests = log.requests
    times = [request.at_s for request in requests]
    start, span_s = min(times), max(times) - min(times)
    work_s = sum(model.fixed_s + r.prompt.tokens / model.prefill_tokens_per_s for r in requests)
    log.timed = log.timed and span_s > 0
    if log.timed:
        moved = [replace(request, at_s=request.at_s - start) for request in requests]
    else:
        span_s = work_s / (replicas * _EVEN_LOAD)
        step_s = span_s / len(requests)
        moved = [replace(request, at_s=at * step_s) for at, request in enumerate(requests)]
    moved.sort(key=lambda request: request.at_s)
    trace = Trace.of(log.name, moved[:SIMULATED_REQUESTS], block_tokens=log.block_tokens)
    return trace, work_s / (replicas * span_s)


def _expected(result: PolicyResult) -> Expected:
    return Expected(
        policy=result.policy,
        hit_rate=result.hit_rate,
        ttft_mean_s=result.ttft_mean_s,
        ttft_p50_s=result.ttft_p50_s,
        ttft_p90_s=result.ttft_p90_s,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _system_share(requests: Sequence[Request], root: int, repeated: int) -> float | None:
    chats = any(request.prompt.root_blocks for request in requests)
    return root / repeated if chats and repeated else None


def _prefixes(
    requests: Sequence[Request], samples: Sequence[Sample], *, show_text: bool
) -> tuple[TopPrefix, ...]:
    found = []
    for prefix, index in top_prefixes(requests):
        text = None
        if show_text and index < len(samples):
            texts = [s.text for s in segments(samples[index].body) if s.role != "tools"]
            text = utf8(" ".join(" ".join(texts).split())[:_SHOWN]).decode("utf-8", "replace")
        found.append(replace(prefix, text=text))
    return tuple(found)
