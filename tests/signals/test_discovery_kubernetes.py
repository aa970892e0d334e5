"""Kubernetes as a source: an API server on a socket whose slices change; lists, watches, breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from prefixroute import ConfigurationError, Router, SourceUnavailable
from prefixroute.signals import Discovery, DnsSource, KubernetesSource, Listing
from prefixroute.signals.sources.kubernetes import _Watch
from prefixroute.testing import EngineModel, FakeCluster
from tests.signals.kube import CUT, ENDED, KubeServer, address, serving_kube, slice_of
from tests.signals.nameserver import serving_names
from tests.signals.support import CHAT, port_of, until


@pytest.fixture
def kube() -> Iterator[KubeServer]:
    with serving_kube() as made:
        yield made


def source(kube: KubeServer, **changes: Any) -> KubernetesSource:
    return replace(KubernetesSource("gpu", namespace="default", api=kube.api), **changes)


def urls(found: KubernetesSource) -> list[str]:
    return [endpoint.url for endpoint in found.endpoints()]


def opened(found: KubernetesSource) -> _Watch:
    reader = found.open()
    assert isinstance(reader, _Watch)
    return reader


def hosts(listing: Listing) -> list[str]:
    return [endpoint.url.removeprefix("http://").split(":")[0] for endpoint in listing.endpoints]


# -- what slices mean --------------------------------------------------------------------


def test_ready_pods_of_all_slices_are_endpoints(kube: KubeServer) -> None:
    kube.put(
        slice_of("gpu-a", address("10.0.0.1"), address("10.0.0.2", ready=False)),
        slice_of("gpu-b", address("10.0.0.3", ready=None, terminating=None)),  # unknown is ready
        slice_of("gpu-c", address("10.0.0.4", ready=False, terminating=True)),
        slice_of("gpu-d"),
    )
    found = source(kube, settings={"api_key": "its-own", "weight": 2.0})
    listing = found.open().read()
    assert hosts(listing) == ["10.0.0.1", "10.0.0.3"]
    assert [e.url for e in listing.resting] == ["http://10.0.0.2:8000/v1"]
    assert {(e.api_key, e.weight) for e in found.endpoints()} == {("its-own", 2.0)}
    assert kube.paths[0] == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    assert kube.asked[0]["labelSelector"] == "kubernetes.io/service-name=gpu"
    assert kube.tokens[0] == "bearer a-token"


def test_a_terminating_pod_leaves_although_it_still_serves(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1"), address("10.0.0.2", terminating=True)))
    listing = source(kube).open().read()
    assert (hosts(listing), listing.resting) == (["10.0.0.1"], ())


def test_a_pod_in_two_slices_is_one_endpoint(kube: KubeServer) -> None:
    kube.put(
        slice_of("gpu-a", address("10.0.0.1", ready=False), address("10.0.0.2")),
        slice_of("gpu-b", address("10.0.0.1"), address("10.0.0.2", terminating=True)),
        slice_of("gpu-c", address("10.0.0.1", ready=False), address("10.0.0.2")),
    )
    assert hosts(source(kube).open().read()) == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("prefer", "url"),
    [("IPv4", "http://10.0.0.1:8000/v1"), ("IPv6", "http://[fd00::1]:8000/v1")],
)
def test_a_pod_with_two_families_is_one_endpoint(kube: KubeServer, prefer: str, url: str) -> None:
    kube.put(
        slice_of("gpu-6", address("fd00::1", pod="gpu"), family="IPv6"),
        slice_of("gpu-4", address("10.0.0.1", pod="gpu")),
        slice_of("gpu-n", address("gpu.example"), family="FQDN"),
    )
    assert urls(source(kube, prefer=prefer)) == [url]


def test_ports_go_by_name_or_number(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1"), ports={"http": 8000, "metrics": 9000}))
    assert urls(source(kube, port="http")) == ["http://10.0.0.1:8000/v1"]
    assert urls(source(kube, port=8001)) == ["http://10.0.0.1:8001/v1"]
    with pytest.raises(SourceUnavailable, match=r"there are: 'http' \(8000\), 'metrics' \(9000\)"):
        urls(source(kube))
    with pytest.raises(SourceUnavailable, match="port='grpc' is none of its pods' ports"):
        urls(source(kube, port="grpc"))
    kube.put(slice_of("gpu-b", address("10.0.0.2"), ports={"grpc": 9001}))  # a rollout
    assert urls(source(kube, port="http")) == ["http://10.0.0.1:8000/v1"]
    assert urls(source(kube, port="grpc")) == ["http://10.0.0.2:9001/v1"]
    kube.put(slice_of("gpu-a", address("10.0.0.1"), ports={}))
    kube.delete("gpu-b")
    with pytest.raises(SourceUnavailable, match="the service names none: give the number"):
        urls(source(kube))


def test_a_pod_with_a_hostname_is_known_by_it_as_in_dns(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1", hostname="gpu-0"), address("10.0.0.2")))
    found = source(kube).endpoints()
    assert [e.id for e in found] == [
        "http://gpu-0.gpu.default.svc.cluster.local:8000/v1",
        "http://10.0.0.2:8000/v1",
    ]
    assert found[0].url == "http://10.0.0.1:8000/v1"
    secure = source(kube, scheme="https").endpoints()[0]
    assert secure.url == "https://gpu-0.gpu.default.svc.cluster.local:8000/v1"


def test_routers_that_use_dns_and_kubernetes_agree(kube: KubeServer) -> None:
    kube.put(slice_of("a", *(address(f"10.0.0.{i}", hostname=f"gpu-{i}") for i in (1, 2))))
    domain = "gpu.default.svc.cluster.local"
    with serving_names() as names:
        names.set(domain, "SRV", *(f"0 50 8000 gpu-{i}.{domain}." for i in (2, 1)))
        for i in (1, 2):
            names.set(f"gpu-{i}.{domain}", "A", f"10.0.0.{i}")
        by_name = DnsSource(f"{domain}.", record="SRV", resolver=names.resolver)
        with Router(by_name.endpoints()) as one, Router(source(kube).endpoints()) as other:
            assert one.fingerprint == other.fingerprint


# -- watching --------------------------------------------------------------------------------


def test_changes_come_as_they_are_made(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    reader = opened(source(kube))
    assert hosts(reader.read()) == ["10.0.0.1"]
    kube.put(slice_of("gpu-b", address("10.0.0.2")))
    assert hosts(reader.read()) == ["10.0.0.1", "10.0.0.2"]
    kube.put(slice_of("gpu-a", address("10.0.0.1", ready=False)))
    assert hosts(reader.read()) == ["10.0.0.2"]
    kube.delete("gpu-a")
    listing = reader.read()
    assert (hosts(listing), listing.resting) == (["10.0.0.2"], ())
    assert len(kube.asked) == 2  # one list, one watch
    reader.close()


@pytest.mark.parametrize("how", [ENDED, CUT])
def test_a_watch_that_ends_goes_on_from_the_last_bookmark(kube: KubeServer, how: str) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    reader = opened(source(kube))
    reader.read()
    kube.put(slice_of("gpu-b", address("10.0.0.2")))
    reader.read()
    kube.bookmark()
    kube.break_watches(how)
    listing = reader.read()
    assert hosts(listing) == ["10.0.0.1", "10.0.0.2"]
    assert listing.again_in_s is not None
    assert listing.again_in_s > 0
    kube.put(slice_of("gpu-b", address("10.0.0.3")))  # while nobody watches
    assert hosts(reader.read()) == ["10.0.0.1", "10.0.0.3"]
    since = [query["resourceVersion"] for query in kube.asked if "watch" in query]
    assert since == ["2", "4"]
    assert sum("watch" not in query for query in kube.asked) == 1  # it never had to list again
    reader.close()


def test_what_is_gone_is_listed_again(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    reader = opened(source(kube))
    reader.read()
    kube.delete("gpu-a")
    kube.put(slice_of("gpu-b", address("10.0.0.2")))
    kube.forget()
    assert hosts(reader.read()) == ["10.0.0.2"]
    lists = [query for query in kube.asked if "watch" not in query]
    since = [query.get("resourceVersion", "") for query in lists]
    assert since == ["0", ""]  # the second not from a cache, which may be old, too
    kube.put(slice_of("gpu-c", address("10.0.0.3")))
    assert hosts(reader.read()) == ["10.0.0.2", "10.0.0.3"]
    reader.close()


def test_a_server_that_is_away_is_said_so_and_found_again(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    reader = opened(source(kube))
    kube.status = 403
    with pytest.raises(SourceUnavailable, match="403 Forbidden: let its service account list"):
        reader.read()
    kube.status = 200
    assert hosts(reader.read()) == ["10.0.0.1"]
    kube.status = 500
    with pytest.raises(SourceUnavailable, match=r"endpointslices of default/gpu: .* 500"):
        reader.read()
    kube.status = 200
    kube.put(slice_of("gpu-b", address("10.0.0.2")))
    assert hosts(reader.read()) == ["10.0.0.1", "10.0.0.2"]
    kube.tell("ERROR", {"kind": "Status", "code": 500, "message": "etcd has no leader"})
    with pytest.raises(SourceUnavailable, match="ends the watch: 500 etcd has no leader"):
        reader.read()
    kube.put(slice_of("gpu-b", address("10.0.0.3")))
    assert hosts(reader.read()) == ["10.0.0.1", "10.0.0.3"]
    reader.close()


def test_what_cannot_be_read_is_listed_again(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    reader = opened(source(kube))
    reader.read()
    kube.put(slice_of("gpu-b", address("10.0.0.2")))
    reader.read()
    kube.tell("MODIFIED", {"metadata": {"name": 5}})
    with pytest.raises(SourceUnavailable, match="ValidationError"):
        reader.read()
    assert hosts(reader.read()) == ["10.0.0.1", "10.0.0.2"]
    assert sum("watch" not in query for query in kube.asked) == 2
    reader.close()


def test_nobody_is_there(kube: KubeServer) -> None:
    nowhere = replace(source(kube))
    nowhere.api.configuration.host = "http://127.0.0.1:1"  # type: ignore[union-attr]
    with pytest.raises(SourceUnavailable, match="endpointslices of default/gpu: "):
        nowhere.endpoints()
    with pytest.raises(SourceUnavailable, match="the service has no pods"):
        source(kube).endpoints()
    kube.put(slice_of("gpu-a", address("10.0.0.1", ready=False)))
    with pytest.raises(SourceUnavailable, match="none of its 1 pods is ready"):
        source(kube).endpoints()


def test_a_read_that_waits_can_be_ended(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    reader = opened(source(kube))
    reader.read()
    waiting = threading.Thread(target=reader.read)
    waiting.start()
    until(lambda: kube.watches)
    until(lambda: reader._response is not None)
    reader.interrupt()
    waiting.join(20)
    assert not waiting.is_alive()
    reader.close()


# -- a router that follows ---------------------------------------------------------------------


def test_a_rolling_update_under_load_loses_nothing(kube: KubeServer) -> None:
    cluster = FakeCluster(4, model=EngineModel(output_tokens=24), time_scale=0.2)
    with cluster.serve():
        ports = [port_of(replica) for replica in cluster.replicas]

        def publish(**states: dict[str, bool]) -> None:
            for name, state in states.items():
                number = int(name.removeprefix("pod"))
                pod = address("127.0.0.1", pod=name, **state)  # type: ignore[arg-type]
                kube.put(slice_of(name, pod, ports={"": ports[number]}))

        publish(pod0={}, pod1={})
        found = source(kube)
        at = [f"http://127.0.0.1:{port}/v1" for port in ports]
        with Router(found.endpoints()) as router, Discovery(router, found):
            statuses: list[int] = []
            over = threading.Event()
            callers = [
                threading.Thread(target=call, args=(router, over, statuses)) for _ in range(4)
            ]
            for caller in callers:
                caller.start()
            try:
                for old, new in ((0, 2), (1, 3)):
                    publish(**{f"pod{new}": {"ready": False}})
                    publish(**{f"pod{new}": {"ready": True}})
                    until(lambda new=new: at[new] in states(router))  # type: ignore[misc]
                    publish(**{f"pod{old}": {"terminating": True}})
                    until(lambda old=old: at[old] not in states(router))  # type: ignore[misc]
                    kube.delete(f"pod{old}")
                    cluster.stop(old)
                count = len(statuses)
                until(lambda: len(statuses) > count + 10)
            finally:
                over.set()
                for caller in callers:
                    caller.join()
            assert set(statuses) == {200}
            assert set(states(router)) == {at[2], at[3]}
            assert router.stats().in_flight == 0


def call(router: Router, over: threading.Event, statuses: list[int]) -> None:
    with router.client() as client:
        while not over.is_set():
            with client.stream("POST", "/chat/completions", json={**CHAT, "stream": True}) as reply:
                whole = b"".join(reply.iter_bytes()).rstrip().endswith(b"data: [DONE]")
                statuses.append(reply.status_code if whole else 0)


def states(router: Router) -> dict[str, str]:
    return {endpoint.url: endpoint.state.value for endpoint in router.stats().endpoints}


def test_a_pod_that_is_not_ready_keeps_its_place(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", *(address(f"10.0.0.{i}") for i in range(3))))
    found = source(kube)
    with Router(found.endpoints()) as router, Discovery(router, found, drain_timeout_s=0.0):
        kept = router._members.find("http://10.0.0.1:8000")
        pods = [address(f"10.0.0.{i}", ready=i != 1) for i in range(3)]
        until(lambda: kube.watches)
        kube.put(slice_of("gpu-a", *pods))
        until(lambda: states(router)["http://10.0.0.1:8000/v1"] == "draining")
        kube.put(slice_of("gpu-a", *(address(f"10.0.0.{i}") for i in range(3))))
        until(lambda: states(router)["http://10.0.0.1:8000/v1"] == "healthy")
        assert router._members.find("http://10.0.0.1:8000") is kept


def test_no_ready_pod_is_believed_after_the_grace_time_though_nothing_more_comes(
    kube: KubeServer,
) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1"), address("10.0.0.2")))
    found = source(kube)
    with (
        Router(found.endpoints()) as router,
        Discovery(router, found, grace_s=0.3) as follow,
    ):
        until(lambda: kube.watches)
        kube.put(slice_of("gpu-a", *(address(f"10.0.0.{i}", ready=False) for i in (1, 2))))
        until(lambda: follow.trouble)
        until(lambda: set(states(router).values()) == {"draining"})
        assert router.route(CHAT).reason.value == "panic"  # for want of others
        kube.put(slice_of("gpu-a", *(address(f"10.0.0.{i}") for i in (1, 2))))
        until(lambda: set(states(router).values()) == {"healthy"})
        assert follow.trouble is None


def test_the_end_does_not_wait_for_the_watch(kube: KubeServer) -> None:
    kube.put(slice_of("gpu-a", address("10.0.0.1")))
    found = source(kube)
    with Router(found.endpoints()) as router:
        follow = Discovery(router, found)
        follow.start()
        until(lambda: kube.watches)
        thread = follow._thread
        assert thread is not None
        follow.stop()
        assert not thread.is_alive()  # and was not left behind
        kube.break_watches()


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"service": ""}, "service=''"),
        ({"service": "gpu.default"}, "without its domain"),
        ({"namespace": "a/b"}, "namespace='a/b'"),
        ({"port": 70000}, "port=70000"),
        ({"scheme": "grpc"}, "scheme='grpc'"),
        ({"path": ""}, "path=''"),
        ({"prefer": "IPv5"}, "prefer='IPv5'"),
        ({"settings": {"url": "http://a"}}, "'url', which no endpoint has"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        KubernetesSource(**{"service": "gpu", **settings})
    assert rule in str(refused.value)


def test_a_missing_extra_is_named(without: Callable[[str], None]) -> None:
    without("kubernetes")
    with pytest.raises(ConfigurationError, match=r"pip install 'prefixroute\[kubernetes\]'"):
        KubernetesSource("gpu")


def test_no_credentials_are_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SourceUnavailable, match="no service account and no kubeconfig"):
        KubernetesSource("gpu").endpoints()
