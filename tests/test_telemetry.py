"""OpenTelemetry: attributes on the caller's span, and metrics, as an exporter gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from prefixroute import Endpoint, Failover, Fixed, Router
from prefixroute.telemetry import OpenTelemetryObserver
from prefixroute.testing import FakeCluster, Refuse, Status
from tests.core.support import FakeClock, blocks, make_router, urls

A, B = urls(2)
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello " * 100}], "max_tokens": 2}
WAIT_S = 30.0


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    made = InMemoryMetricReader()
    yield made
    made.shutdown()


@pytest.fixture
def observer(reader: InMemoryMetricReader) -> OpenTelemetryObserver:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    return OpenTelemetryObserver(provider)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def points(reader: InMemoryMetricReader) -> dict[tuple[str, str], Any]:
    """The data points, by the metric's name and the endpoint."""
    data = reader.get_metrics_data()
    return {
        (metric.name, str((point.attributes or {}).get("prefixroute.endpoint", ""))): point
        for resource in (data.resource_metrics if data is not None else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_a_request_is_on_the_span_that_sent_it(
    tracer: Tracer, exporter: InMemorySpanExporter, observer: OpenTelemetryObserver
) -> None:
    cluster = FakeCluster(2, time_scale=0)
    router = Router(cluster.urls, observers=[observer])
    transport = router.transport(cluster.transport())
    with httpx.Client(base_url=router.base_url, transport=transport) as http:
        http.post("/chat/completions", json=BODY)
        with tracer.start_as_current_span("chat"):
            response = http.post("/chat/completions", json=BODY)
        http.post("/chat/completions", json=BODY)
    (span,) = exporter.get_finished_spans()  # no spans are made
    decision, usage = response.extensions["prefixroute"], response.json()["usage"]
    assert attributes(span) == {
        "server.address": httpx.URL(decision.endpoint.url).host,
        "server.port": 80,
        "prefixroute.endpoint": decision.endpoint.id,
        "prefixroute.home": decision.home.id,
        "prefixroute.reason": decision.reason.value,
        "prefixroute.key": decision.key,
        "prefixroute.depth": decision.depth,
        "prefixroute.spread": decision.spread,
        "prefixroute.retry": False,
        "prefixroute.expected_cached_tokens": decision.expected_cached_tokens,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert not observer._spans._young


def test_a_stream_tells_its_first_token_and_its_usage_while_the_span_lasts(
    tracer: Tracer, exporter: InMemorySpanExporter, observer: OpenTelemetryObserver
) -> None:
    cluster = FakeCluster(1, time_scale=0)
    router = Router(cluster.urls, observers=[observer])
    transport = router.transport(cluster.transport())
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.Client(base_url=router.base_url, transport=transport) as http:
        with (
            tracer.start_as_current_span("chat"),
            http.stream("POST", "/chat/completions", json=body) as response,
            tracer.start_as_current_span("reading"),  # what is current then is no matter
        ):
            response.read()
        with tracer.start_as_current_span("short"):
            response = http.send(
                http.build_request("POST", "/chat/completions", json=body), stream=True
            )
        response.read()
        response.close()
    reading, chat, short = exporter.get_finished_spans()
    assert attributes(reading) == {}
    assert attributes(chat)["prefixroute.time_to_first_token"] >= 0
    assert attributes(chat)["gen_ai.usage.input_tokens"] > 100
    assert "prefixroute.endpoint" in attributes(short)
    assert "gen_ai.usage.input_tokens" not in attributes(short)


def test_concurrent_tasks_keep_their_spans_apart(
    tracer: Tracer, exporter: InMemorySpanExporter, observer: OpenTelemetryObserver
) -> None:
    cluster = FakeCluster(3, time_scale=0)
    router = Router(cluster.urls, placement=Fixed(), observers=[observer])
    seen: dict[str, str] = {}

    async def chat(http: httpx.AsyncClient, name: str) -> None:
        with tracer.start_as_current_span(name):
            body = {**BODY, "messages": [{"role": "user", "content": name * 100}]}
            response = await http.post("/chat/completions", json=body)
            seen[name] = response.extensions["prefixroute"].endpoint.id

    async def main() -> None:
        transport = router.async_transport(cluster.async_transport())
        async with (
            httpx.AsyncClient(base_url=router.base_url, transport=transport) as http,
            anyio.create_task_group() as group,
        ):
            for number in range(20):
                group.start_soon(chat, http, f"chat {number} ")

    anyio.run(main)
    spans = exporter.get_finished_spans()
    assert {span.name: attributes(span)["prefixroute.endpoint"] for span in spans} == seen
    assert len(set(seen.values())) == 3


def test_a_failover_is_told(
    tracer: Tracer,
    exporter: InMemorySpanExporter,
    observer: OpenTelemetryObserver,
    reader: InMemoryMetricReader,
) -> None:
    cluster = FakeCluster(2, time_scale=0)
    router = Router(cluster.urls, observers=[observer])
    home = router.route(BODY).endpoint.id
    index = next(i for i, one in enumerate(router.endpoints) if one.id == home)
    cluster.fail(index, Refuse())
    transport = router.transport(cluster.transport())
    with (
        httpx.Client(base_url=router.base_url, transport=transport) as http,
        tracer.start_as_current_span("chat"),
    ):
        response = http.post("/chat/completions", json=BODY)
    other = response.extensions["prefixroute"].endpoint.id
    assert other != home
    (span,) = exporter.get_finished_spans()
    assert attributes(span)["prefixroute.endpoint"] == other
    assert attributes(span)["prefixroute.retry"] is True
    (event,) = span.events
    assert (event.name, dict(event.attributes or {})) == (
        "prefixroute.failed", {"prefixroute.endpoint": home},
    )  # fmt: skip
    found = points(reader)
    assert found["prefixroute.requests", home].value == 1
    assert found["prefixroute.failures", home].value == 1
    assert found["prefixroute.failovers", other].value == 1
    assert ("prefixroute.requests", other) not in found


def test_a_call_that_waited_is_on_its_own_span(
    tracer: Tracer, exporter: InMemorySpanExporter, observer: OpenTelemetryObserver
) -> None:
    """Room is made in another thread, with another span: that one gets nothing of it."""
    cluster = FakeCluster(1, time_scale=0)
    endpoint = Endpoint(cluster.urls[0], max_in_flight=1)
    failover = Failover(queue_timeout_s=WAIT_S)
    router = Router([endpoint], failover=failover, observers=[observer])
    held = router.acquire(BODY)

    def call() -> None:
        transport = router.transport(cluster.transport())
        with (
            httpx.Client(base_url=router.base_url, transport=transport) as http,
            tracer.start_as_current_span("waited"),
        ):
            assert http.post("/chat/completions", json=BODY).status_code == 200

    queued = threading.Event()
    queue = router.queue

    def noted(*args: Any, **kwargs: Any) -> Any:
        waiter = queue(*args, **kwargs)
        queued.set()
        return waiter

    router.queue = noted  # type: ignore[method-assign]
    thread = threading.Thread(target=call)
    thread.start()
    assert queued.wait(WAIT_S)
    with tracer.start_as_current_span("releasing"):
        held.release()
        thread.join(WAIT_S)
    spans = {span.name: attributes(span) for span in exporter.get_finished_spans()}
    assert spans["releasing"] == {}
    assert spans["waited"]["prefixroute.endpoint"] == endpoint.id


def test_the_metrics_of_one_request(
    observer: OpenTelemetryObserver, reader: InMemoryMetricReader
) -> None:
    clock = FakeClock()
    router = make_router([A, B], clock=clock, observers=[observer])
    lease = router.acquire(blocks(1, block_tokens=100))
    name = lease.endpoint.id
    assert points(reader)["prefixroute.in_flight", name].value == 1
    clock.tick(0.2)
    lease.first_token()
    clock.tick(0.3)
    lease.usage(prompt_tokens=100, cached_tokens=40)
    lease.release()
    found = points(reader)
    for metric, value in (
        ("requests", 1), ("attempts", 1), ("in_flight", 0), ("prompt_tokens", 100),
        ("cached_tokens", 40), ("expected_cached_tokens", lease.decision.expected_cached_tokens),
    ):  # fmt: skip
        assert found[f"prefixroute.{metric}", name].value == value, metric
    first, whole = (
        found[f"prefixroute.{metric}", name]
        for metric in ("time_to_first_token", "request.duration")
    )
    assert (first.count, first.sum) == (1, pytest.approx(0.2))
    assert (whole.count, whole.sum) == (1, pytest.approx(0.5))
    assert 0.1 in first.explicit_bounds
    assert found["prefixroute.decision.duration", ""].count == 1
    assert ("prefixroute.failures", name) not in found


def test_what_becomes_of_endpoints_is_counted(
    observer: OpenTelemetryObserver, reader: InMemoryMetricReader
) -> None:
    router = make_router([A, B], observers=[observer])
    router.eject(A)
    router.readmit(A)
    with router.acquire({}, exclude=[B]) as lease:
        lease.failed(status=503)
    found = points(reader)
    for metric in ("ejections", "readmissions", "cooldowns", "failures"):
        assert found[f"prefixroute.{metric}", A].value == 1, metric


def test_spills_have_their_reason(
    observer: OpenTelemetryObserver, reader: InMemoryMetricReader
) -> None:
    router = make_router([A, B], placement=Fixed(), observers=[observer])
    leases = [router.acquire("hello " * 100) for _ in range(8)]
    spilled = {one.decision.endpoint.id for one in leases if one.decision.reason.is_spill}
    for lease in leases:
        lease.release()
    (name,) = spilled
    point = points(reader)["prefixroute.spills", name]
    assert point.value == sum(one.decision.reason.is_spill for one in leases)
    assert point.attributes["prefixroute.reason"] == "bound"


def test_spans_may_be_left_alone(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    router = make_router([A], observers=[OpenTelemetryObserver(spans=False)])
    with tracer.start_as_current_span("chat"):
        router.acquire("hello").release()
    assert attributes(exporter.get_finished_spans()[0]) == {}


def test_nothing_secret_is_told(
    tracer: Tracer,
    exporter: InMemorySpanExporter,
    observer: OpenTelemetryObserver,
    reader: InMemoryMetricReader,
) -> None:
    secret = "sk-secret-4711"
    endpoint = Endpoint(f"http://user:{secret}@gpu-0:8000/v1?key={secret}", api_key=secret)
    router = make_router([endpoint], observers=[observer])
    with tracer.start_as_current_span("chat"), router.acquire(secret * 100) as lease:
        lease.failed(status=500)
    (span,) = exporter.get_finished_spans()
    assert attributes(span)["server.address"] == "gpu-0"
    assert attributes(span)["server.port"] == 8000
    assert secret not in span.to_json()
    data = reader.get_metrics_data()
    assert data is not None
    assert secret not in data.to_json()


def test_without_an_sdk_nothing_happens() -> None:
    cluster = FakeCluster(1, time_scale=0)
    cluster.fail(0, Status(code=500), times=1)
    router = Router(cluster.urls, observers=[OpenTelemetryObserver()])
    transport = router.transport(cluster.transport())
    with httpx.Client(base_url=router.base_url, transport=transport) as http:
        assert http.post("/chat/completions", json=BODY).status_code == 500
        assert http.post("/chat/completions", json=BODY).status_code == 200
