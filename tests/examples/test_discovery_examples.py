"""The examples of discovery: a file that is rewritten; the app and the manifests for Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefixroute.signals import KubernetesSource
from prefixroute.testing import FakeCluster
from tests.examples.support import EXAMPLES, environment_of, run
from tests.signals.kube import address, serving_kube, slice_of
from tests.signals.support import port_of

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(180)]  # a busy machine

KUBERNETES = EXAMPLES / "kubernetes"


def test_a_rewritten_file_is_followed(cluster: FakeCluster) -> None:
    lines = [line.split() for line in run("discovery_from_file.py", cluster).splitlines()]
    urls = [f"http://127.0.0.1:{port_of(replica)}/v1" for replica in cluster.replicas]
    served = {when: {url for name, url, _ in lines if name == when} for when in ("before", "after")}
    assert urls[-1] not in served["before"]
    assert urls[0] not in served["after"]
    assert urls[-1] in served["after"]
    assert served["before"] | served["after"] <= set(urls)


def manifests(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a file, by kind."""
    objects = list(yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")))
    by_kind = {made["kind"]: made for made in objects}
    assert len(by_kind) == len(objects)
    return by_kind


def container(workload: dict[str, Any]) -> dict[str, Any]:
    [only] = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_names_agree_between_the_manifests() -> None:
    engine, app = manifests("engine.yaml"), manifests("app.yaml")
    service, engines, deployment = engine["Service"], engine["StatefulSet"], app["Deployment"]
    for workload in (engines, deployment):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    labels = engines["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"
    assert engines["spec"]["serviceName"] == service["metadata"]["name"]
    [port] = service["spec"]["ports"]
    assert {p["name"]: p["containerPort"] for p in container(engines)["ports"]} == {
        port["name"]: port["port"]
    }
    env = {one["name"]: one["value"] for one in container(deployment)["env"]}
    assert env["ENGINE_SERVICE"] == service["metadata"]["name"]
    assert env["ENGINE_PORT"] == port["name"]
    assert f"--model={env['MODEL']}" in container(engines)["args"]
    assert f"--port={port['port']}" in container(engines)["args"]


def test_the_app_may_do_what_it_does_and_no_more() -> None:
    app = manifests("app.yaml")
    account = app["ServiceAccount"]["metadata"]["name"]
    assert app["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert app["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert app["RoleBinding"]["roleRef"]["name"] == app["Role"]["metadata"]["name"]
    [rule] = app["Role"]["rules"]
    with serving_kube() as kube:
        kube.put(slice_of("engine-a", address("10.0.0.1")))
        KubernetesSource("engine", namespace="default", api=kube.api).endpoints()
        _, _, group, _, _, _, resource = kube.paths[0].split("/")
    assert (rule["apiGroups"], rule["resources"]) == ([group], [resource])
    assert rule["verbs"] == ["list", "watch"]


def test_pods_have_time_to_drain() -> None:
    engines = manifests("engine.yaml")["StatefulSet"]
    [_, seconds] = container(engines)["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) < engines["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    text = (KUBERNETES / "app.py").read_text(encoding="utf-8")
    assert f"drain_timeout_s={seconds}.0" in text


def test_the_kustomization_takes_every_file() -> None:
    found = manifests("kustomization.yaml")["Kustomization"]
    [code] = found["configMapGenerator"]
    files = {path.name for path in KUBERNETES.iterdir() if path.is_file()}
    assert {*found["resources"], *code["files"], "kustomization.yaml"} == files
    [volume] = manifests("app.yaml")["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == code["name"]


def test_the_app_runs_against_an_api_server(cluster: FakeCluster, tmp_path: Path) -> None:
    with serving_kube() as kube:
        for number, replica in enumerate(cluster.replicas):
            pod = address("127.0.0.1", pod=f"engine-{number}", hostname=f"engine-{number}")
            kube.put(slice_of(f"engine-{number}", pod, ports={"http": port_of(replica)}))
        config = tmp_path / "kubeconfig"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "clusters": [{"name": "it", "cluster": {"server": kube.url}}],
                    "users": [{"name": "it", "user": {"token": "a-token"}}],
                }
            ),
            encoding="utf-8",
        )
        done = subprocess.run(
            [sys.executable, KUBERNETES / "app.py"],
            env={**environment_of(cluster), "KUBECONFIG": str(config), "QUESTIONS": "5"},
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
        assert "done: <Router 4 endpoints, 0 in flight>" in done.stdout
        assert len(cluster.requests) == 5
        assert kube.tokens[0] == "Bearer a-token"
        assert {query["labelSelector"] for query in kube.asked} == {
            "kubernetes.io/service-name=engine"
        }
