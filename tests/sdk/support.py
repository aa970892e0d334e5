"""What the scenarios share: a case runs once through a router and once without, and is compared.

Importable wherever prefixroute and its dependencies are; no SDK, no pytest.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from prefixroute import Endpoint, Router
from prefixroute.testing import EngineModel, FakeCluster, ReceivedRequest

__all__ = [
    "COLUMNS",
    "FIRST",
    "MODEL",
    "OTHER",
    "OTHER_SYSTEM",
    "SECOND",
    "SYSTEM",
    "Cases",
    "Column",
    "Mismatch",
    "Target",
    "check",
    "outcomes",
    "refusal",
]

C = TypeVar("C")

Column = Literal["sync", "async", "stream", "tools", "refuses"]
COLUMNS: Final[tuple[Column, ...]] = get_args(Column)

MODEL: Final = "simulated-model"
SYSTEM: Final = "You keep the log of a lighthouse. " * 60
FIRST: Final = "Conversation A: what did the keeper see at dawn?"
SECOND: Final = "Conversation A: and at noon?"
OTHER_SYSTEM: Final = "You are the cook of a research vessel. " * 60
OTHER: Final = "Conversation B: what is for dinner?"

_CONVERSATIONS: Final = (b"Conversation A", b"Conversation B")
_REPLICAS: Final = 4
_KEY: Final = "the-endpoint's-key"
_CALLERS_KEY: Final = "the-caller's-key"
_KEY_HEADERS: Final = frozenset({"authorization", "x-api-key", "api-key"})
_ENGINE: Final = EngineModel(
    prefill_tokens_per_s=1e9,
    request_overhead_s=0.0,
    decode_s_per_token=0.0,
    output_tokens=8,
    api_key=_KEY,
)


class Mismatch(AssertionError):
    """A case that ran, but not as it does without the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an SDK is pointed at: the router, or one replica without it.

    Attributes:
        base_url: For SDKs that add paths like ``/chat/completions``.
        root_url: For SDKs that add ``/v1`` themselves.
        api_key: What the SDK is given as key.
        router: None: the SDK is to talk to the replica as it does without prefixroute.
    """

    base_url: str
    root_url: str
    api_key: str
    router: Router | None

    def wrap(self, client: C) -> C:
        """Return the client, routed if there is a router."""
        return client if self.router is None else self.router.wrap(client)

    def http(self, library: Literal["httpx", "httpx2"]) -> Any:
        """Return a routed HTTP client, or None: the SDK then makes its own."""
        return None if self.router is None else self.router.client(library)

    def async_http(self, library: Literal["httpx", "httpx2"]) -> Any:
        """Return a routed async HTTP client, or None: the SDK then makes its own."""
        return None if self.router is None else self.router.async_client(library)


Case = Callable[[Target], Awaitable[None] | None]
"""Calls an SDK. Conversation A takes at least two turns; B is another; both are optional words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """What one SDK can do.

    Attributes:
        distributions: Whose versions the table shows; the first is the SDK's own.
        sync: Cases of plain calls; empty where the SDK has none, as in all columns.
        asynchronous: The same, awaited.
        stream: Cases that read a stream, sync and async.
        tools: Cases with tools and with structured output.
        refuses: Checks that need no router's traffic: what ``wrap`` must not take.
    """

    distributions: tuple[str, ...]
    sync: tuple[Case, ...] = ()
    asynchronous: tuple[Case, ...] = ()
    stream: tuple[Case, ...] = ()
    tools: tuple[Case, ...] = ()
    refuses: tuple[Callable[[], None], ...] = ()


def outcomes(cases: Cases) -> dict[Column, str | None]:
    """Run all cases.

    Returns:
        For each column what is wrong, "" if nothing is; None where the SDK has no such thing.
    """
    return {
        "sync": _outcome(cases.sync, check),
        "async": _outcome(cases.asynchronous, check),
        "stream": _outcome(cases.stream, check),
        "tools": _outcome(cases.tools, check),
        "refuses": _outcome(cases.refuses, lambda case: case()),
    }


def _outcome(cases: Iterable[C], run: Callable[[C], None]) -> str | None:
    wrong: list[str] | None = None
    for case in cases:
        wrong = wrong or []
        try:
            run(case)
        except Exception as error:  # noqa: BLE001 - whatever an SDK raises is the cell's reason
            name = getattr(case, "__name__", repr(case))
            detail = str(error) if isinstance(error, Mismatch) else traceback.format_exc()
            wrong.append(f"{name}: {detail}")
    return None if wrong is None else "\n".join(wrong)


def check(case: Case) -> None:
    """Run a case through a router over several replicas, then without it, and compare.

    Raises:
        Mismatch: What arrived is not what the SDK sends by itself, a conversation was split over
            replicas, or a request stayed counted.
    """
    with _cluster() as (cluster, urls):
        endpoints = [
            Endpoint(url, id=f"replica-{index}", api_key=_KEY) for index, url in enumerate(urls)
        ]
        router = Router(endpoints)
        try:
            _run(case, router, Target(
                base_url=router.base_url,
                root_url=router.root_url,
                api_key=_CALLERS_KEY,
                router=router,
            ))
        finally:
            router.close()
        routed = cluster.requests
        _check_conversations(routed)
        _check_counts(router, routed)
    with _cluster() as (cluster, urls):
        # The same replica, because ids that it makes up come back in later turns.
        url = urls[routed[0].replica]
        _run(case, None, Target(
            base_url=url, root_url=url.removesuffix("/v1"), api_key=_KEY, router=None
        ))
        _compare(routed, cluster.requests)
