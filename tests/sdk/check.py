"""Runs a case through a router and once more without, and compares what arrived."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from prefixroute import Endpoint, Router
from prefixroute.testing import EngineModel, FakeCluster, ReceivedRequest
from tests.sdk.support import Case, Cases, Column, Target

__all__ = ["MismatchError", "check", "outcomes"]

T = TypeVar("T")

_CONVERSATIONS: Final = (b"Conversation A", b"Conversation B")
_REPLICAS: Final = 4
_KEY: Final = "the-key-of-the-endpoints"
_CALLERS_KEY: Final = "the-key-of-the-caller"
_KEY_HEADERS: Final = frozenset({"authorization", "x-api-key", "api-key"})
_ENGINE: Final = EngineModel(
    prefill_tokens_per_s=1e9,
    request_overhead_s=0.0,
    decode_s_per_token=0.0,
    output_tokens=8,
    api_key=_KEY,
)


class MismatchError(AssertionError):
    """A case that ran, but not as it does without the router."""


def outcomes(cases: Cases) -> dict[Column, str | None]:
    """Run all cases of an SDK.

    Returns:
        For each column what is wrong, "" if nothing is; None where the SDK has no such thing.
    """
    # One event loop for all: some SDKs keep one HTTP client for the whole process.
    with asyncio.Runner() as runner:
        compare = partial(check, runner)
        return {
            "sync": _outcome(cases.sync, compare),
            "async": _outcome(cases.asynchronous, compare),
            "stream": _outcome(cases.stream, compare),
            "tools": _outcome(cases.tools, compare),
            "refuses": _outcome(cases.refuses, lambda refuses: refuses()),
        }


def _outcome(cases: Sequence[T], run: Callable[[T], None]) -> str | None:
    if not cases:
        return None
    wrong = []
    for case in cases:
        try:
            run(case)
        except Exception as error:  # noqa: BLE001 - whatever an SDK raises is what is wrong
            wrong.append(f"{getattr(case, '__name__', repr(case))}: {_told(error)}")
    return "\n".join(wrong)


def _told(error: Exception) -> str:
    if isinstance(error, MismatchError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tests/sdk/scenarios/" in frame.filename]
    places = ", ".join(f"{frame.filename}:{frame.lineno}" for frame in (*ours[-1:], frames[-1]))
    return f"{type(error).__name__}: {error} ({places})"


def check(runner: asyncio.Runner, case: Case) -> None:
    """Run a case through a router over several replicas, then without it, and compare.

    Raises:
        MismatchError: What arrived is not what the SDK sends by itself, a conversation was split
            over replicas, or the router's counts are off.
    """
    with _cluster() as (cluster, urls):
        endpoints = [
            Endpoint(url, id=f"replica-{index}", api_key=_KEY) for index, url in enumerate(urls)
        ]
        router = Router(endpoints)
        _run(runner, case, Target(base_url=router.base_url, api_key=_CALLERS_KEY, router=router))
        routed = cluster.requests
        _check_conversations(routed)
        _check_counts(router, len(routed))
    with _cluster() as (cluster, urls):
        # At the same replica: ids that it makes up come back in later turns.
        _run(runner, case, Target(base_url=urls[routed[0].replica], api_key=_KEY, router=None))
        _compare(routed, cluster.requests)


@contextmanager
def _cluster() -> Iterator[tuple[FakeCluster, list[str]]]:
    cluster = FakeCluster(_REPLICAS, model=_ENGINE, time_scale=0)
    with cluster.serve() as urls:
        yield cluster, urls


def _run(runner: asyncio.Runner, case: Case, target: Target) -> None:
    if not inspect.iscoroutinefunction(case):
        case(target)
        if target.router is not None:
            target.router.close()
        return

    async def main() -> None:
        await case(target)
        if target.router is not None:
            await target.router.aclose()

    runner.run(main())


def _check_conversations(requests: Iterable[ReceivedRequest]) -> None:
    """Check that each conversation met one replica, and that one of them had a second turn."""
    turns = [[r.replica for r in requests if mark in r.body] for mark in _CONVERSATIONS]
    if len(turns[0]) < 2:
        raise MismatchError(f"conversation A has {len(turns[0])} turns: nothing was continued")
    for mark, replicas in zip(_CONVERSATIONS, turns, strict=True):
        if len(set(replicas)) > 1:
            raise MismatchError(f"{mark.decode()} was split over replicas {replicas}")


def _check_counts(router: Router, arrived: int) -> None:
    stats = router.stats()
    if stats.in_flight:
        gc.collect()  # some SDKs leave a finished stream to the collector
        stats = router.stats()
    if (stats.in_flight, stats.failures, stats.requests) != (0, 0, arrived):
        raise MismatchError(
            f"{stats.in_flight} in flight, {stats.failures} failures and {stats.requests} requests"
            f" counted at the end, of {arrived} that arrived"
        )


def _compare(routed: Sequence[ReceivedRequest], direct: Sequence[ReceivedRequest]) -> None:
    """Check that requests are the same, byte for byte, but for URL, Host and place of the key."""
    for number, (one, other) in enumerate(itertools.zip_longest(routed, direct)):
        if one is None or other is None:
            raise MismatchError(
                f"{len(routed)} requests were sent, and {len(direct)} without a router"
            )
        for what, ours, own in (
            ("target", f"{one.method} {one.target}", f"{other.method} {other.target}"),
            ("body", one.body, other.body),
            ("headers", _headers(one), _headers(other)),
            ("key", _keys(one), _keys(other)),
        ):
            if ours != own:
                raise MismatchError(f"request {number}: {what} {_apart(ours, own)}")


def _headers(request: ReceivedRequest) -> list[tuple[str, str]]:
    return [pair for pair in request.headers if pair[0].lower() not in {"host", *_KEY_HEADERS}]


def _keys(request: ReceivedRequest) -> list[tuple[str, str]]:
    return sorted(pair for pair in request.headers if pair[0].lower() in _KEY_HEADERS)


def _apart(ours: Any, own: Any) -> str:
    """What differs of two values; of two lists only what the other one lacks."""
    if isinstance(ours, list) and sorted(ours) != sorted(own):
        ours, own = (
            [one for one in ours if one not in own],
            [one for one in own if one not in ours],
        )
    return f"{ours!r}, without a router {own!r}"
