"""Which event loop is running: asyncio, trio, or trio as a guest of asyncio."""

from __future__ import annotations

import asyncio

import pytest
import trio

from prefixroute.transports.waiting import async_sleep, current_loop


def test_asyncio_is_told_although_trio_is_imported() -> None:
    async def main() -> None:
        await async_sleep(0.0)
        assert current_loop() is asyncio.get_running_loop()

    asyncio.run(main())


def test_trio_is_told() -> None:
    async def main() -> None:
        await async_sleep(0.0)
        assert current_loop() is trio.lowlevel.current_trio_token()

    trio.run(main)


def test_a_guest_and_its_host_are_told_apart() -> None:
    told: list[bool] = []

    async def guest() -> None:
        await async_sleep(0.0)
        told.append(current_loop() is trio.lowlevel.current_trio_token())

    async def host() -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda _: over.set(),
        )
        told.append(current_loop() is loop)
        await over.wait()
        told.append(current_loop() is loop)

    asyncio.run(host())
    assert told == [True, True, True]


def test_an_old_trio_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trio.lowlevel, "in_trio_task", raising=False)  # there from 0.29 on

    async def main() -> None:
        await async_sleep(0.0)
        assert current_loop() is not None

    asyncio.run(main())
    trio.run(main)
