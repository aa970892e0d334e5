"""Forks with a router and wrapped clients in use; run by ``test_fork``, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from typing import Any

from openai import AsyncOpenAI, OpenAI

from prefixroute import Router

_CHILDREN = 4


def messages(name: str) -> Any:
    return [{"role": "user", "content": f"{name} says hello " * 50}]


def answer(client: OpenAI, name: str) -> str:
    reply = client.chat.completions.create(model="m", messages=messages(name))
    return str(reply.choices[0].message.content)


async def answer_async(client: AsyncOpenAI, name: str) -> str:
    reply = await client.chat.completions.create(model="m", messages=messages(name))
    return str(reply.choices[0].message.content)


def work(router: Router, clients: list[OpenAI], other: AsyncOpenAI, name: str, url: str) -> None:
    """Ask through every client, and compare with one that knows of no router."""
    with OpenAI(api_key="-", base_url=url) as plain:
        for turn in range(3):
            expected = answer(plain, f"{name} {turn}")
            for client in clients:
                assert answer(client, f"{name} {turn}") == expected
            assert asyncio.run(answer_async(other, f"{name} {turn}")) == expected
    assert router.stats().in_flight == 0


def child(*args: Any) -> None:
    try:
        work(*args)
    except Exception:  # noqa: BLE001 - the child of a fork must not return
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main(urls: list[str], *, used: bool) -> None:
    router = Router(urls)
    own = OpenAI(base_url=router.base_url, api_key="-", http_client=router.client("httpx2"))
    clients = [router.wrap(OpenAI(api_key="-")), own]
    other = router.wrap(AsyncOpenAI(api_key="-"))
    open_stream = None
    if used:
        work(router, clients, other, "parent", urls[0])
        ask = clients[0].chat.completions.create
        open_stream = ask(model="m", messages=messages("stream"), stream=True)
        next(iter(open_stream))
        assert router.stats().in_flight == 1
    pids = []
    for number in range(_CHILDREN):
        pid = os.fork()
        if pid == 0:
            child(router, clients, other, f"child {number}", urls[0])
        pids.append(pid)
    if open_stream is not None:
        assert len(list(open_stream)) > 1
    work(router, clients, other, "parent again", urls[0])
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * _CHILDREN, codes
    for client in clients:
        client.close()


if __name__ == "__main__":
    main(sys.argv[2:], used=sys.argv[1] == "used")
