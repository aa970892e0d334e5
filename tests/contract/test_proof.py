"""A holdout and a shadow see what really happens, whichever way requests are sent."""

from __future__ import annotations

from typing import Any

from prefixroute import Nested, RoundRobin, Router
from prefixroute.testing import EngineModel, FakeCluster
from tests.contract.flavours import CHAT, Flavour


def bodies(conversations: int) -> list[dict[str, Any]]:
    made = []
    for number in range(conversations):
        said = [{"role": "system", "content": f"You are assistant {number % 4}. " * 60}]
        for turn in range(3):
            said.append({"role": "user", "content": f"Question {number}, {turn}? " * 10})
            usage = {"include_usage": True}
            made.append(
                {"model": "m", "messages": [*said], "stream": True, "stream_options": usage}
            )
            said.append({"role": "assistant", "content": f"Answer {number}, {turn}. " * 10})
    return made


def test_groups_and_shadow(flavour: Flavour) -> None:
    cluster = FakeCluster(4, model=EngineModel(output_tokens=4), time_scale=0)
    router = Router(cluster.urls, holdout=0.5, shadow=RoundRobin(), seed=0)

    async def main() -> None:
        inner = cluster.transport() if flavour.is_sync else cluster.async_transport()
        async with flavour.client(router, inner) as client:
            for at, body in enumerate(bodies(40)):
                async with client.streaming(CHAT, json=body) as response:
                    if at % 10:
                        await client.read(response)  # the others are closed unread

    flavour.run(main)
    stats = router.stats()
    assert stats.in_flight == 0
    assert stats.holdout is not None
    assert stats.shadow is not None
    routed, held_out = stats.holdout.routed, stats.holdout.held_out
    assert routed.requests + held_out.requests == 120 == stats.shadow.requests
    assert routed.reports + held_out.reports == 108
    assert routed.prompt_tokens + held_out.prompt_tokens == stats.prompt_tokens
    assert routed.ttft_count + held_out.ttft_count == 108
    assert routed.hit_rate is not None
    assert held_out.hit_rate is not None
    assert routed.hit_rate > held_out.hit_rate
    assert 0 < stats.shadow.moved < 120


def test_the_body_stays_as_it_is(flavour: Flavour) -> None:
    """Neither changes a byte of what is sent."""
    cluster = FakeCluster(2, model=EngineModel(output_tokens=2), time_scale=0)
    router = Router(cluster.urls, holdout=0.5, shadow=Nested(block_bytes=64), seed=0)
    content = b'{ "model":"m",  "messages":[{"role":"user","content":"hi"}]}'

    async def main() -> None:
        inner = cluster.transport() if flavour.is_sync else cluster.async_transport()
        async with flavour.client(router, inner) as client:
            headers = {"content-type": "application/json"}
            await client.post(CHAT, content=content, headers=headers)

    flavour.run(main)
    [received] = cluster.requests
    assert received.body == content
