"""``prefixroute watch`` on an application's metrics: a real router, engines and HTTP endpoint."""

from __future__ import annotations

import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from typer.testing import CliRunner, Result

from prefixroute import ConfigurationError, EngineLoad, Fixed, Router
from prefixroute.cli.app import app
from prefixroute.cli.watch import Wanted, source_of, until_interrupted
from prefixroute.cli.watch_metrics import MetricsSource
from prefixroute.cli.watch_scrape import quantile
from prefixroute.cli.watch_view import SourceLost
from prefixroute.metrics import FleetMetrics, PrometheusObserver, RouterMetrics
from prefixroute.signals.fleet import FleetStats
from prefixroute.testing import EngineModel, FakeCluster

FAST = EngineModel(prefill_tokens_per_s=1e6)
SYSTEM = "You are the guide of a museum. " * 400


class Application:
    """A router in front of simulated engines, and its metrics on a socket.

    Args:
        cluster: Is served.
        state: Whether it has RouterMetrics beside the PrometheusObserver.
        settings: The router's.
    """

    def __init__(self, cluster: FakeCluster, *, state: bool = True, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        urls = [replica.served_url or "" for replica in cluster.replicas]
        self.router = Router(
            urls, peers=1, observers=[PrometheusObserver(self.registry)], **settings
        )
        if state:
            RouterMetrics(self.router, self.registry, hot_prefixes=3)
        self.http = self.router.client()
        self.port = 0
        self.serve()

    def serve(self) -> None:
        """Serve the metrics, at the port they had before."""
        self._server, self._thread = start_http_server(
            self.port, addr="127.0.0.1", registry=self.registry
        )
        self.port = self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def ask(self, text: str = "When?") -> None:
        """Have one request answered, as a stream."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        body = {"model": "m", "messages": messages, "stream": True}
        body["stream_options"] = {"include_usage": True}
        self.http.post("/v1/chat/completions", json=body).raise_for_status()

    def vanish(self) -> None:
        """Take the metrics away."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def close(self) -> None:
        self.vanish()
        self.http.close()
        self.router.close()


@contextmanager
def application(*, state: bool = True, **settings: Any) -> Iterator[Application]:
    cluster = FakeCluster(2, model=FAST, time_scale=0.1)
    with cluster.serve():
        made = Application(cluster, state=state, **settings)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def service() -> Iterator[Application]:
    with application() as made:
        yield made


@contextmanager
def watching(
    url: str, *, window_s: float = 30.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[MetricsSource]:
    source = MetricsSource(url, namespace="prefixroute", window_s=window_s, clock=clock)
    try:
        yield source
    finally:
        source.close()


@contextmanager
def load(service: Application) -> Iterator[None]:
    """Keep requests coming meanwhile."""
    stopped = threading.Event()

    def go_on(number: int) -> None:
        while not stopped.is_set():
            service.ask(f"Question {number}?")

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(go_on, number) for number in range(4)]
        try:
            yield
        finally:
            stopped.set()
            for one in running:
                one.result()


def watch(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["watch", *arguments], env={"COLUMNS": "200"})


def seen(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = watch(*arguments, "--once", "--json")
    assert result.exit_code == exit_code, result.output
    (line,) = result.stdout.splitlines()
    return cast("dict[str, Any]", json.loads(line))


# -- what is told --------------------------------------------------------------------------------


def test_rates_are_of_what_came_between_two_scrapes(service: Application) -> None:
    now = 100.0
    with watching(service.url, clock=lambda: now) as source:
        for number in range(5):
            service.ask(f"{number}")
        first = source.read()
        before = service.router.stats()
        assert first.window_s is None
        assert first.total.requests_per_s is None
        assert first.total.hit_rate == pytest.approx(before.hit_rate)
        for number in range(8):
            service.ask(f"{number}, again")
        now += 4.0
        view, after = source.read(), service.router.stats()
    assert view.window_s == 4.0
    assert view.total.requests_per_s == 2.0
    assert sum(one.requests_per_s or 0.0 for one in view.endpoints) == 2.0
    cached, prompt = (
        after.cached_tokens - before.cached_tokens,
        after.prompt_tokens - before.prompt_tokens,
    )
    assert view.total.hit_rate == pytest.approx(cached / prompt)
    assert view.total.hit_rate != pytest.approx(before.hit_rate, abs=0.01)
    assert view.total.expected_hit_rate is not None
    assert view.total.ttft_p50_s is not None
    assert 0.0 < view.total.ttft_p50_s <= (view.total.ttft_p95_s or 0.0)
    assert view.decision_p99_s is not None
    assert [one.id for one in view.endpoints] == sorted(e.id for e in service.router.endpoints)


def test_a_window_is_as_long_as_asked_for_and_no_longer(service: Application) -> None:
    now = 0.0
    windows = []
    with watching(service.url, window_s=10.0, clock=lambda: now) as source:
        for _ in range(6):
            windows.append(source.read().window_s)
            now += 4.0
    assert windows == [None, 4.0, 8.0, 12.0, 12.0, 12.0]


def test_what_holds_now_is_told(service: Application) -> None:
    up, down = service.router.endpoints
    service.router.eject(down)
    service.router.report_load({up.id: EngineLoad(running=3, waiting=2)})
    held = [service.router.acquire({"prompt": "x" * 4000}) for _ in range(2)]
    with watching(service.url) as source:
        view = source.read()
    for lease in held:
        lease.release()
    told = {one.id: one for one in view.endpoints}
    assert (told[up.id].health, told[down.id].health) == ("healthy", "ejected")
    assert (told[up.id].in_flight, told[down.id].in_flight, view.total.in_flight) == (2, 0, 2)
    assert (told[up.id].waiting, told[down.id].waiting) == (2, None)
    assert (told[up.id].queued_tokens or 0) > 500
    assert (told[up.id].ejections, told[down.id].ejections) == (0, 1)
    assert view.waiting_calls == 0


def test_spills_and_failures_are_of_the_window() -> None:
    now = 0.0
    with (
        application(placement=Fixed()) as service,
        watching(service.url, clock=lambda: now) as source,
    ):
        source.read()
        router = service.router
        held = [router.acquire({"prompt": "y" * 40_000}) for _ in range(40)]
        spilled = [one.decision for one in held if one.decision.reason.is_spill]
        assert spilled
        held[0].failed(status=500)
        for lease in held:
            lease.release()
        now += 1.0
        view = source.read()
        now += 40.0
        source.read()
        now += 40.0
        later = source.read()
    for one in view.endpoints:
        ours = [decision.reason.value for decision in spilled if decision.endpoint.id == one.id]
        assert one.spills == {reason: ours.count(reason) for reason in sorted(set(ours))}
    assert view.total.failures == 1
    assert (later.total.failures, later.total.spills) == (0, {})
    assert later.total.hit_rate is None


def test_the_hottest_prefixes_are_told_with_their_sizes(service: Application) -> None:
    for number in range(12):
        service.ask(f"{number}")
    with watching(service.url) as source:
        hottest = source.read().hottest
    assert hottest is not None
    assert round(hottest[0].requests) == 12
    assert hottest[0].share == pytest.approx(1.0)
    assert hottest[0].endpoints == 2
    body = {"model": "m", "messages": [{"role": "system", "content": SYSTEM}]}
    boundaries = {one.key: one.tokens for one in service.router.explain(body).boundaries}
    assert hottest[0].tokens == pytest.approx(boundaries[hottest[0].digest], rel=0.2)
    assert len({one.digest for one in hottest}) == len(hottest) <= 3


def test_an_application_that_starts_anew_counts_from_nothing() -> None:
    now = 0.0
    with application() as service:
        for number in range(6):
            service.ask(f"{number}")
        port = service.port
        with watching(service.url, clock=lambda: now) as source:
            source.read()
            service.vanish()
            with application() as other:
                other.vanish()
                other.port = port
                other.serve()
                other.ask()
                now += 2.0
                assert source.read().total.requests_per_s == 0.5
            service.port = 0
            service.serve()


def test_endpoints_come_and_go(service: Application) -> None:
    with watching(service.url) as source:
        service.ask()
        gone = service.router.endpoints[0]
        assert gone.id in {one.id for one in source.read().endpoints}
        service.router.remove(gone)
        service.router.add("http://gpu-9:8000/v1")
        assert {one.id for one in source.read().endpoints} == {
            endpoint.id for endpoint in service.router.endpoints
        }


def test_what_the_metrics_do_not_tell_is_a_dash_and_said() -> None:
    with application(state=False) as service:
        service.ask()
        with watching(service.url) as source:
            view = source.read()
        shown = watch(service.url, "--once", "--interval", "0.05").stdout
    (one,) = view.endpoints  # the other has had no request
    assert (one.health, one.waiting, one.queued_tokens, view.hottest) == (None, None, None, None)
    assert view.waiting_calls is None
    row = next(line for line in shown.splitlines() if line.startswith("127.0.0.1"))
    assert row.split()[1:5] == ["-", "0", "-", "-"]
    assert "RouterMetrics(router) tells them" in shown
    assert "RouterMetrics(router, hot_prefixes=8)" in shown


def test_replies_without_streams_and_counts_are_told_so() -> None:
    cluster = FakeCluster(1, model=EngineModel(reports_cached_tokens=False), time_scale=0)
    with cluster.serve():
        service = Application(cluster)
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        service.http.post("/v1/chat/completions", json=body).raise_for_status()
        shown = watch(service.url, "--once", "--interval", "0.05").stdout
        service.close()
    assert "no reply has told its cached tokens" in shown
    assert "TTFT is not known" in shown


def test_counts_are_unknown_without_an_observer() -> None:
    registry = CollectorRegistry()
    with Router(["http://gpu-0:8000/v1"]) as router:
        RouterMetrics(router, registry)
        server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        with watching(f"http://127.0.0.1:{server.server_port}") as source:
            (one,) = (view := source.read()).endpoints
        server.shutdown()
        server.server_close()
        thread.join()
    assert (one.health, one.in_flight, one.failures, one.spills) == ("healthy", None, None, None)
    assert (view.total.ejections, view.failovers, view.decision_p99_s) == (None, None, None)
    assert any("PrometheusObserver tells them" in note for note in view.notes)


def test_other_routers_are_counted_where_they_are_told(service: Application) -> None:
    class Fleet:
        def stats(self) -> FleetStats:
            return FleetStats(connected=True, peers=7)

    FleetMetrics(Fleet(), service.registry)
    with watching(service.url) as source:
        assert source.read().routers == 8


def test_quantiles_are_those_of_prometheus() -> None:
    buckets = {0.1: 10.0, 0.5: 30.0, 1.0: 40.0, math.inf: 40.0}
    assert quantile(0.5, buckets) == pytest.approx(0.3)
    assert quantile(0.25, buckets) == pytest.approx(0.1)
    assert quantile(1.0, buckets) == pytest.approx(1.0)
    assert quantile(0.99, {0.1: 0.0, math.inf: 5.0}) == 0.1
    assert quantile(0.5, {0.1: 0.0, math.inf: 0.0}) is None
    assert quantile(0.5, {}) is None
    assert quantile(0.0, {0.1: 0.0, 0.2: 4.0, math.inf: 4.0}) == pytest.approx(0.1)


# -- the command ---------------------------------------------------------------------------------


def test_once_under_load(service: Application) -> None:
    service.ask()
    with load(service):
        got = seen(service.url, "--interval", "1")
        shown = watch(service.url, "--once", "--interval", "1").stdout
    assert got["source"] == service.url
    assert got["error"] is None
    assert 0.5 < got["window_s"] < 60.0
    assert got["total"]["requests_per_s"] > 0.0
    assert 0.5 < got["total"]["hit_rate"] <= 1.0
    assert got["total"]["ttft_p50_s"] > 0.0
    assert {one["health"] for one in got["endpoints"]} == {"healthy"}
    assert got["hottest"][0]["tokens"] > 1000
    assert "hit rate" in shown
    assert got["hottest"][0]["digest"] in shown
    assert sum(line.startswith("127.0.0.1") for line in shown.splitlines()) == 2


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"", "it answers 404"),
        (302, b"", "it answers 302"),
        (200, b"prefixroute_attempts_total{endpoint=", "are no Prometheus metrics"),
        (200, b"prefixroute_attempts_total{} many", "are no Prometheus metrics"),
        (200, b'prefixroute_ttft_seconds_bucket{le="x"} 1', "are no Prometheus metrics"),
    ],
)
def test_what_cannot_be_read_is_told(status: int, body: bytes, said: str) -> None:
    with answering(status, body) as url:
        result = watch(url, "--once")
    assert result.exit_code == 1
    assert said in result.stdout
    assert "nothing was read yet" in result.stdout


@pytest.mark.parametrize("body", [b"", b"<html>prefixroute</html>", b"up 1\n"])
def test_metrics_of_somebody_else_are_told(body: bytes) -> None:
    with answering(200, body) as url:
        result = watch(url, "--once")
    assert result.exit_code == 0
    assert "there are no prefixroute_ series: the application needs Prometh" in result.stdout


def test_nobody_there() -> None:
    got = seen("http://127.0.0.1:9", exit_code=1)
    assert got["error"].startswith("ConnectError")
    assert (got["age_s"], got["source"]) == (None, "http://127.0.0.1:9/metrics")


@pytest.mark.parametrize(
    "url", ["ftp://host", "gpu-0:9100", "http://", "http://host:port/", "redis://h:x", "", "//["]
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    result = watch(url, "--once")
    assert result.exit_code == 2
    assert "must be" in result.output


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wanted = Wanted(
        interval_s=1, window_s=1, namespace="x", cluster=False, once=True, as_json=False
    )
    for url, extra in (("http://host", "prometheus"), ("redis://host", "redis")):
        with pytest.raises(ConfigurationError, match=rf"prefixroute\[{extra}\]"):
            source_of(url, wanted)


def test_no_secret_is_shown() -> None:
    for url in (
        "http://user:hunter2@127.0.0.1:9/metrics?token=hunter3",
        "redis://user:hunter2@127.0.0.1:9/0?password=hunter3",
        "http://user:hunter2@127.0.0.1:port/?token=hunter3",
        "redis://user:hunter2@127.0.0.1:port/?token=hunter3",
        "ftp://user:hunter2@127.0.0.1/?token=hunter3",
    ):
        for more in ((), ("--json",)):
            result = watch(url, "--once", *more)
            assert result.exit_code in (1, 2)
            assert "hunter" not in result.output, url


def test_a_password_is_sent() -> None:
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["authorization"])
            self.send_error(401)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        watch(f"http://user:hunter2@127.0.0.1:{server.server_port}", "--once")
        thread.join()
    assert asked == ["Basic " + b64encode(b"user:hunter2").decode()]


# -- again and again -----------------------------------------------------------------------------


COMMAND = [sys.executable, "-W", "error", "-m", "prefixroute", "watch"]


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


@pytest.mark.timeout(120)
def test_a_source_that_is_lost_leaves_its_last_view_and_comes_back(service: Application) -> None:
    service.ask()
    with subprocess.Popen(
        [*COMMAND, service.url, "--json", "--interval", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        views = lines_of(process)
        good = next(views)
        assert good["error"] is None
        service.vanish()
        lost = [next(one for one in views if one["error"] is not None), next(views)]
        assert [one["endpoints"] for one in lost] == [good["endpoints"]] * 2
        assert lost[0]["age_s"] < lost[1]["age_s"]
        service.serve()
        back = next(one for one in views if one["error"] is None)
        assert back["age_s"] < lost[1]["age_s"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


@pytest.mark.timeout(120)
def test_on_a_terminal_it_is_drawn_anew_until_interrupted(service: Application) -> None:
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    service.ask()
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, service.url, "--interval", "0.1"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "COLUMNS": "180", "LINES": "50", "TERM": "xterm"},
    )
    os.close(follower)
    screen = _Screen(leader)
    screen.wait_for(r"healthy")
    screen.wait_for(r"the last \d")
    service.vanish()
    screen.wait_for(r"Cannot be read: ConnectError.*what is shown is \d+ s old")
    screen.wait_for(r"healthy")  # the last view stays
    process.send_signal(signal.SIGINT)
    screen.read_to_the_end()
    os.close(leader)
    assert process.wait(30) == 0
    assert "Traceback" not in screen.text
    assert screen.text.rstrip().endswith("\x1b[?25h")  # the cursor is back
    service.serve()


class _Screen:
    def __init__(self, terminal: int) -> None:
        self._terminal, self._at, self.text = terminal, 0, ""

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
        assert ready, self.text
        try:
            piece = os.read(self._terminal, 65_536)
        except OSError:  # its other side has closed
            return False
        self.text += piece.decode("utf-8", "replace")
        return bool(piece)

    def wait_for(self, pattern: str) -> None:
        """Wait for something new that has this."""
        deadline = time.monotonic() + 60
        while not (found := re.compile(pattern).search(self.text, self._at)):
            assert self._more(deadline), self.text
        self._at = found.end()

    def read_to_the_end(self) -> None:
        deadline = time.monotonic() + 60
        while self._more(deadline):
            pass


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_is_interrupted_while_it_waits(end: signal.Signals) -> None:
    with (
        answering(200, b"") as url,
        subprocess.Popen(
            [*COMMAND, url, "--interval", "3600"], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            assert "prefixroute watch" in process.stdout.readline()
            process.send_signal(end)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_an_interrupt_that_is_lost_in_a_finalizer_ends_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: lost.append(info.exc_type))

    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    ends = []
    with until_interrupted() as pause:
        one = Collected()
        del one
        ends.append("lost")
        pause(3600.0)
        ends.append("never")
    assert ends == ["lost"]
    assert lost == [KeyboardInterrupt]


def test_a_source_that_was_lost_is_read_again(service: Application) -> None:
    with watching(service.url) as source:
        source.read()
        service.vanish()
        with pytest.raises(SourceLost, match="ConnectError"):
            source.read()
        service.serve()
        assert source.read().endpoints
