"""``Router(ask_load=True)``: a header more on each request, one less on each reply."""

from __future__ import annotations

import pytest

from prefixroute import Endpoint, EngineLoad, Router
from prefixroute.testing import EngineModel, FakeCluster
from tests.contract.flavours import BODY, STREAM, Flavour, Inner, urls

ASK, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"
VALUE = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=4"


def answering(flavour: Flavour, value: str = VALUE, status: int = 200) -> Inner:
    def answer(_: object) -> object:
        return flavour.module.Response(status, headers={REPORT: value, "x-own": "1"}, json={})

    return Inner(flavour, answer)


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "streamed"])
def test_it_is_asked_for_heeded_and_taken_out(flavour: Flavour, body: object) -> None:
    router, inner = Router(urls(2), ask_load=True), answering(flavour)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post(json=body)
            assert REPORT not in response.headers
            assert response.headers["x-own"] == "1"

    flavour.run(main)
    [received] = inner.received
    assert received.headers[ASK] == "TEXT"
    loads = [endpoint.load for endpoint in router.stats().endpoints]
    assert EngineLoad(waiting=4, kv_usage=0.25) in loads
    assert router.stats().in_flight == 0


def test_off_by_default(flavour: Flavour) -> None:
    router, inner = Router(urls(1)), answering(flavour)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post()
            assert response.headers[REPORT] == VALUE  # whoever sent it

    flavour.run(main)
    assert ASK not in inner.received[0].headers
    assert router.stats().endpoints[0].load is None


def test_who_asks_themselves_gets_it(flavour: Flavour) -> None:
    value = 'JSON {"named_metrics": {"num_requests_waiting": 2}}'
    router, inner = Router(urls(1), ask_load=True), answering(flavour, value)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post(headers={"Endpoint-Load-Metrics-Format": "JSON"})
            assert response.headers[REPORT] == value

    flavour.run(main)
    assert inner.received[0].headers[ASK] == "JSON"
    assert router.stats().endpoints[0].load == EngineLoad(waiting=2)


def test_an_endpoints_own_header_stays(flavour: Flavour) -> None:
    endpoint = Endpoint("http://a:1/v1", headers={ASK: "json"})
    router, inner = Router([endpoint], ask_load=True), answering(flavour)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()

    flavour.run(main)
    assert inner.received[0].headers.get_list(ASK) == ["json"]


@pytest.mark.parametrize(
    "value", ["", "TEXT", "BIN AAAA", "JSON {", "TEXT num_requests_waiting=-1"]
)
def test_nonsense_is_ignored(flavour: Flavour, value: str) -> None:
    router, inner = Router(urls(1), ask_load=True), answering(flavour, value, 429)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()

    flavour.run(main)
    assert router.stats().endpoints[0].load is None
    assert router.stats().in_flight == 0


def test_simulated_engines_answer_it(flavour: Flavour) -> None:
    model = EngineModel(output_tokens=2, load_header_on_streams=True)
    cluster = FakeCluster(1, model=model, time_scale=0)
    router = Router(cluster.urls, ask_load=True)

    async def main() -> None:
        inner = cluster.transport() if flavour.is_sync else cluster.async_transport()
        async with flavour.client(router, inner) as client:
            await client.post(json=STREAM)

    flavour.run(main)
    load = router.stats().endpoints[0].load
    assert load is not None
    assert load.kv_usage is not None
