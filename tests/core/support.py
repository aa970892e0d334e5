"""What the tests of the core share: a virtual clock, routers on it, prompts and conversations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import Observer
from prefixroute.core.fixed import Fixed, LeastLoaded, Random_, RoundRobin
from prefixroute.core.health import HealthPolicy
from prefixroute.core.lease import Lease
from prefixroute.core.load import EndpointState
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.prompt import Prompt
from prefixroute.core.router import RouterCore

EVERY_PLACEMENT: dict[str, Callable[[], Placement]] = {
    "Nested": Nested,
    "Fixed": Fixed,
    "LeastLoaded": LeastLoaded,
    "RoundRobin": RoundRobin,
    "Random": Random_,
}


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


def urls(count: int, first: int = 0) -> list[str]:
    return [f"http://gpu-{number}:8000/v1" for number in range(first, first + count)]


def make_router(
    endpoints: int | Iterable[Endpoint | str] = 4,
    *,
    placement: Placement | None = None,
    clock: Callable[[], float] | None = None,
    health: HealthPolicy | None = None,
    peers: int | None = None,
    seed: int | None = 0,
    observers: Iterable[Observer] = (),
) -> RouterCore:
    """A router on a clock that stands still unless one is given."""
    return RouterCore(
        urls(endpoints) if isinstance(endpoints, int) else endpoints,
        placement=placement,
        clock=clock if clock is not None else FakeClock(),
        wall_clock=lambda: 0.0,
        health=health,
        peers=peers,
        seed=seed,
        observers=observers,
    )


def states(router: RouterCore) -> dict[str, EndpointState]:
    """The accounting of each endpoint, by id."""
    return {state.endpoint.id: state for state in router._members.states}


def text(name: object, size: int) -> str:
    """``size`` characters that nothing else starts with."""
    block = hashlib.blake2b(repr(name).encode(), digest_size=32).hexdigest()
    return (block * (size // len(block) + 1))[:size]


def chat(
    *turns: str, system: str | None = None, model: str = "m", **fields: object
) -> dict[str, Any]:
    """A chat body whose turns alternate, the user's first."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    for at, content in enumerate(turns):
        messages.append({"role": ("user", "assistant")[at % 2], "content": content})
    return {"model": model, "messages": messages, **fields}


def conversation(
    name: object, turns: int, *, first: int = 400, system: str | None = None
) -> list[dict[str, Any]]:
    """The bodies of a chat: turn n+1 extends turn n by an answer and a question."""
    said = [text((name, 0), first)]
    bodies = []
    for turn in range(turns):
        bodies.append(chat(*said, system=system))
        said += [text((name, turn, "answer"), 900), text((name, turn + 1), 300)]
    return bodies


def blocks(*ids: int, block_tokens: int = 512) -> Prompt:
    return Prompt.from_blocks(ids, block_tokens=block_tokens)


def serve(
    router: RouterCore,
    body: Any,
    *,
    clock: FakeClock | None = None,
    ttft_s: float = 0.2,
    decode_s: float = 0.5,
    cached_tokens: int | None = None,
) -> str:
    """Send one request, let it be answered at once, and return where it went."""
    lease = router.acquire(body)
    answer(lease, clock=clock, ttft_s=ttft_s, decode_s=decode_s, cached_tokens=cached_tokens)
    return lease.endpoint.id


def answer(
    lease: Lease,
    *,
    clock: FakeClock | None = None,
    ttft_s: float = 0.2,
    decode_s: float = 0.5,
    cached_tokens: int | None = None,
) -> None:
    """Let a request be answered."""
    if clock is not None:
        clock.tick(ttft_s)
    lease.first_token(cached_tokens)
    if clock is not None:
        clock.tick(decode_s)
    lease.release()


def homes(router: RouterCore, prompts: Sequence[Any]) -> list[str | None]:
    """The home of each prompt for a router as it is."""
    found = []
    for prompt in prompts:
        home = router.route(prompt).home
        found.append(home.id if home is not None else None)
    return found
