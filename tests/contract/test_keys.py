"""An endpoint's own key, on the wire: fetched for each attempt, and again when it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from prefixroute import Endpoint, Failover, KeyUnavailable, Router
from tests.contract.flavours import BODY, Flavour, Inner, Received, urls


class Vault:
    """Gives the key that is valid now; one that has expired is noticed only when it is refused."""

    def __init__(self) -> None:
        self.valid, self.cached, self.asked = "key-1", "key-1", 0

    def __call__(self) -> str:
        self.asked += 1
        cached, self.cached = self.cached, self.valid
        return cached

    def answer(self, flavour: Flavour, received: Received) -> Any:
        ok = received.headers.get("authorization") == f"Bearer {self.valid}"
        return flavour.module.Response(200 if ok else 401, json={"ok": ok})


class Breakable(Inner):
    """May be hedged over: nothing has to be ended here."""

    def can_break_off(self) -> bool:
        return True


@pytest.mark.parametrize(
    "failover",
    [Failover(), Failover(hedge_after_s=10.0, replay_sent=True), Failover(deadline_s=10.0)],
    ids=["plain", "hedged", "deadline"],
)
def test_a_key_that_has_expired_is_replaced_unseen(flavour: Flavour, failover: Failover) -> None:
    vault = Vault()
    router = Router([Endpoint("http://h:8000/v1", api_key=vault)], failover=failover)
    inner = Breakable(flavour, lambda received: vault.answer(flavour, received))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            assert (await client.post()).status_code == 200
            vault.valid = "key-2"
            response = await client.post()
            assert response.status_code == 200
            assert response.json() == {"ok": True}
            assert (await client.post()).status_code == 200
        assert vault.asked == 4  # once for each attempt
        keys = [one.headers["authorization"][-1] for one in inner.received]
        assert keys == ["1", "1", "2", "2"]
        assert {one.body for one in inner.received} == {inner.received[0].body}
        assert json.loads(inner.received[2].body) == BODY
        stats = router.stats()
        assert (stats.requests, stats.failures, stats.in_flight) == (3, 0, 0)

    flavour.run(main)


def test_a_body_that_can_be_sent_once_is_sent_once(flavour: Flavour) -> None:
    vault = Vault()
    vault.valid = "key-2"
    router = Router([Endpoint("http://h:8000/v1", api_key=vault)])
    inner = Inner(flavour, lambda received: vault.answer(flavour, received))

    def sync() -> Iterator[bytes]:
        yield b"{}"

    async def asynchronous() -> Any:
        yield b"{}"

    async def main() -> None:
        content = sync() if flavour.is_sync else asynchronous()
        async with flavour.client(router, inner) as client:
            assert (await client.post(content=content)).status_code == 401
        assert len(inner.received) == 1

    flavour.run(main)


def test_a_refused_key_that_does_not_change_is_the_callers_to_see(flavour: Flavour) -> None:
    router = Router([Endpoint(url, api_key=lambda: "k") for url in urls(2)])
    inner = Inner(flavour, lambda _: flavour.module.Response(401, json={"error": "bad key"}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post()
        assert response.status_code == 401
        assert response.json() == {"error": "bad key"}
        assert len(inner.received) == 1

    flavour.run(main)


def test_a_function_that_raises_ends_the_call(flavour: Flavour) -> None:
    """Another endpoint would hide that the keys cannot be had."""

    def broken() -> str:
        raise PermissionError("the vault is sealed")

    router = Router(
        [Endpoint("http://a:8000/v1", api_key=broken), Endpoint("http://b:8000/v1", tier=1)]
    )
    inner = Inner(flavour, lambda _: flavour.module.Response(200, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            with pytest.raises(KeyUnavailable, match=r"'http://a:8000/v1'.* PermissionError"):
                await client.post()
        assert inner.received == []
        assert router.stats().in_flight == 0
        assert router.stats().failures == 0

    flavour.run(main)
