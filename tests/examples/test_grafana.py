"""The dashboard and the rules for Prometheus, on a real Prometheus that scrapes the example."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client import CollectorRegistry

from prefixroute import Router
from prefixroute.core.events import GroupReply
from prefixroute.metrics import FleetMetrics, PrometheusObserver, RouterMetrics
from prefixroute.signals.fleet import FleetStats
from prefixroute.testing import EngineModel, FakeCluster, RateLimited, Refuse
from tests.examples.support import EXAMPLES, environment_of

pytestmark = pytest.mark.checkout

HERE = Path(__file__).parent
GRAFANA = EXAMPLES / "grafana"
DASHBOARD: Final[dict[str, Any]] = json.loads(
    (GRAFANA / "prefixroute.json").read_text(encoding="utf-8")
)
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not installed (apt install prometheus)",
)

VARIABLES: Final = {"$__rate_interval": "10s", "$job": ".*", "$instance": ".*"}
"""What Grafana would put in: all jobs and processes, and a short window."""

CONFIGURATION: Final = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - {{job_name: museum, static_configs: [{{targets: ["{target}"]}}]}}
"""


def queries() -> list[str]:
    found = []
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            found.append(query)
    return found


@contextmanager
def serving(cluster: FakeCluster) -> Iterator[str]:
    """Run the example; give the URL of its metrics."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLES / "service_with_metrics.py"],
        env={**environment_of(cluster), "METRICS_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "routed" in out


@contextmanager
def scraping(metrics: str, folder: Path) -> Iterator[httpx.Client]:
    """Run a Prometheus that scrapes this; give a client of its API."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    file, log = folder / "prometheus.yml", folder / "log"
    target = httpx.URL(metrics)
    file.write_text(
        CONFIGURATION.format(target=f"{target.host}:{target.port}", rules=GRAFANA / "rules.yml"),
        encoding="utf-8",
    )
    command = [
        "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with (
        log.open("wb") as written,
        subprocess.Popen(command, stdout=written, stderr=written) as run,
    ):
        try:
            with httpx.Client(base_url=f"http://{address}/api/v1", timeout=30) as client:
                _wait_until_ready(client, run, log)
                yield client
        finally:
            run.terminate()
            run.wait(30)


def _wait_until_ready(client: httpx.Client, run: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert run.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline
        try:
            if client.get("/status/buildinfo").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)


def values(prometheus: httpx.Client, query: str) -> list[float]:
    """What a query has now, without what is no number."""
    answer = prometheus.post("/query", data={"query": query})
    assert answer.status_code == 200, f"{query}: {answer.text}"
    found = [float(one["value"][1]) for one in answer.json()["data"]["result"]]
    return [one for one in found if math.isfinite(one)]


@pytest.mark.timeout(180)
def test_the_example_tells_how_its_chats_are_routed(cluster: FakeCluster) -> None:
    wanted = {"prefixroute_hit_rate", "prefixroute_hot_prefix_tokens", "prefixroute_engine_waiting"}
    with serving(cluster) as metrics:
        deadline = time.monotonic() + 120
        told: set[str] = set()
        while not wanted <= told:
            assert time.monotonic() < deadline, wanted - told
            lines = httpx.get(metrics).text.splitlines()
            told = {line.partition("{")[0] for line in lines if not line.startswith("#")}
            time.sleep(0.1)
    assert len({request.replica for request in cluster.requests}) > 1


@needs_prometheus
@pytest.mark.timeout(300)
def test_every_query_of_the_dashboard_has_data(tmp_path: Path) -> None:
    engine = EngineModel(prefill_tokens_per_s=8000, cache_blocks=1024)
    cluster = FakeCluster(3, model=engine, time_scale=0.2)
    with (
        cluster.serve(),
        serving(cluster) as metrics,
        scraping(metrics, tmp_path) as prometheus,
    ):
        cluster.fail(0, Refuse())
        ejected = "prefixroute_ejected == 1"
        left = {ejected}
        deadline = time.monotonic() + 240
        while left:
            assert time.monotonic() < deadline, f"no data: {left}"
            done = {query for query in left if values(prometheus, query)}
            left -= done
            if ejected in done:
                cluster.heal(0)
                cluster.fail(1, RateLimited(retry_after_s=1), times=1)
                left |= set(queries())
                left |= set(re.findall(r"record: (\S+)", (GRAFANA / "rules.yml").read_text()))
            time.sleep(0.2)
        rates = values(prometheus, next(q for q in queries() if "cached_tokens_total" in q))
        assert 0.0 < rates[0] <= 1.0
        (balance,) = values(prometheus, next(q for q in queries() if q.startswith("max(sum")))
        assert 1.0 <= balance <= 3.0


@needs_prometheus
def test_rules_are_what_they_say(tmp_path: Path) -> None:
    for name in ("rules.yml", "rules_test.yml"):
        source = GRAFANA if name == "rules.yml" else HERE
        shutil.copy(source / name, tmp_path)
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_can_be_imported() -> None:
    """What Grafana needs: unique ids, a place for each panel, the datasource as a variable."""
    panels = DASHBOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        used = re.findall(r"\$(\w+)", " ".join(target["expr"] for target in panel["targets"]))
        assert {"job", "instance"} <= set(used) <= {"job", "instance", "__rate_interval"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        squares = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not squares & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= squares


def exposed() -> set[str]:
    """The names of all metrics that there are."""

    class Fleet:
        def stats(self) -> FleetStats:
            return FleetStats()

    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    observer.on_event(
        GroupReply(held_out=True, failed=False, prompt_tokens=1, cached_tokens=1, ttft_s=1.0)
    )
    FleetMetrics(Fleet(), registry)
    with Router(["http://gpu-0:8000/v1"]) as router:
        RouterMetrics(router, registry, hot_prefixes=1)
        return {family.name for family in registry.collect()}


def test_every_metric_is_one_that_there_is() -> None:
    """Of a name that is wrong an alert would never fire."""
    rules = (GRAFANA / "rules.yml").read_text(encoding="utf-8")
    text = " ".join([rules, json.dumps(DASHBOARD), (GRAFANA / "README.md").read_text("utf-8")])
    used = {
        re.sub("_(total|bucket|count)$", "", name)
        for name in re.findall(r"(?<![:\w])prefixroute_\w+", text)
    }
    assert len(used) > 20
    assert used <= exposed()
