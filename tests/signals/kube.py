"""A Kubernetes API server on a socket, as far as EndpointSlices go: lists, and watches.

Writes what the API reference and `kubectl get endpointslices -o json` show, with all that routing
does not need: managed fields, owners, zones, hints.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import ApiClient, Configuration

__all__ = ["CUT", "ENDED", "KubeServer", "address", "serving_kube", "slice_of"]

CUT: Final = "CUT"
"""In place of an event: the connection breaks."""
ENDED: Final = "ENDED"
"""In place of an event: the watch ends as one whose time is over."""


def address(
    ip: str,
    *,
    ready: bool | None = True,
    terminating: bool | None = False,
    hostname: str | None = None,
    pod: str | None = "",
) -> dict[str, Any]:
    """An endpoint of a slice; its pod is named after its address by default, or is none at all."""
    made: dict[str, Any] = {
        "addresses": [ip],
        "conditions": {
            "ready": ready,
            "serving": ready or bool(terminating),
            "terminating": terminating,
        },
        "nodeName": "node-1",
        "zone": "zone-a",
    }
    if pod is not None:
        name = pod or f"pod-{ip}"
        made["targetRef"] = {
            "kind": "Pod", "namespace": "default", "name": name, "uid": f"uid-of-{name}",
        }  # fmt: skip
    if hostname is not None:
        made["hostname"] = hostname
    return made


def slice_of(
    name: str,
    *addresses: dict[str, Any],
    ports: dict[str, int] | None = None,
    family: str = "IPv4",
    version: int = 1,
) -> dict[str, Any]:
    """An EndpointSlice of the service ``gpu``."""
    owner = {
        "apiVersion": "v1", "kind": "Service", "name": "gpu", "uid": "0b0c6c24",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {
        "metadata": {
            "name": name,
            "generateName": "gpu-",
            "namespace": "default",
            "uid": f"uid-of-{name}",
            "resourceVersion": str(version),
            "generation": version,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": "gpu",
                "service.kubernetes.io/headless": "",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01"},
            "ownerReferences": [owner],
            "managedFields": [
                {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {}}
            ],
        },
        "addressType": family,
        "endpoints": list(addresses) or None,
        "ports": [
            {"name": port, "port": number, "protocol": "TCP"}
            for port, number in ({"": 8000} if ports is None else ports).items()
        ],
    }


class KubeServer:
    """Holds slices; every change is an event for the watches that are open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 1
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.watches: list[queue.SimpleQueue[Any]] = []
        self.oldest = 0  # versions before that are gone
        self.status = 200  # of every answer
        self.asked: list[dict[str, str]] = []  # the queries
        self.paths: list[str] = []
        self.tokens: list[str | None] = []
        self.url = ""

    @property
    def api(self) -> ApiClient:
        """A client of the official library, as a kubeconfig would give."""
        settings = Configuration()
        settings.host = self.url
        settings.api_key = {"authorization": "bearer a-token"}
        settings.retries = False
        return ApiClient(settings)

    def put(self, *slices: dict[str, Any]) -> None:
        """Make or change slices."""
        for one in slices:
            kind = "MODIFIED" if one["metadata"]["name"] in self.slices else "ADDED"
            self._change(kind, one)

    def delete(self, name: str) -> None:
        self._change("DELETED", self.slices[name])

    def bookmark(self) -> None:
        """Tell how far the watches have come, without a change to the slices."""
        with self.lock:
            self.version += 1
        shape = {"metadata": {"resourceVersion": str(self.version), "creationTimestamp": None}}
        self.tell("BOOKMARK", {**shape, "endpoints": None, "addressType": "", "ports": None})

    def tell(self, kind: str, shape: Any) -> None:
        """Send an event to every open watch."""
        with self.lock:
            for watch in self.watches:
                watch.put({"type": kind, "object": _kind(shape)})

    def break_watches(self, how: str = CUT) -> None:
        with self.lock:
            for watch in self.watches:
                watch.put(how)

    def forget(self) -> None:
        """Let no watch go on from before now."""
        with self.lock:
            self.version += 10
            self.oldest = self.version

    def _change(self, kind: str, one: dict[str, Any]) -> None:
        with self.lock:
            self.version += 1
            one = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self.version)}}
            if kind == "DELETED":
                del self.slices[one["metadata"]["name"]]
            else:
                self.slices[one["metadata"]["name"]] = one
            event = {"type": kind, "object": _kind(one)}
            self.events.append((self.version, event))
            for watch in self.watches:
                watch.put(event)

    def begin(self, since: int) -> queue.SimpleQueue[Any] | None:
        """Return the events after a version, those to come too; ``None``: it is gone."""
        with self.lock:
            if since < self.oldest:
                return None
            watch: queue.SimpleQueue[Any] = queue.SimpleQueue()
            for version, event in self.events:
                if version > since:
                    watch.put(event)
            self.watches.append(watch)
            return watch


def _kind(shape: dict[str, Any]) -> dict[str, Any]:
    """A slice with its kind, which the items of a list do not have."""
    if shape.get("kind") == "Status":
        return shape
    return {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", **shape}


def _status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": f"says {reason}", "reason": reason, "code": code,
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kube: KubeServer

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        kube, parts = self.kube, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with kube.lock:
            kube.asked.append(query)
            kube.paths.append(parts.path)
            kube.tokens.append(self.headers["authorization"])
        if kube.status != 200:
            self._send(kube.status, _status(kube.status, "Failed"))
        elif query.get("watch") in ("true", "True"):
            self._watch(int(query["resourceVersion"]))
        else:
            with kube.lock:
                shape = {
                    "kind": "EndpointSliceList",
                    "apiVersion": "discovery.k8s.io/v1",
                    "metadata": {"resourceVersion": str(kube.version)},
                    "items": list(kube.slices.values()),
                }
            self._send(200, shape)

    def _send(self, status: int, shape: dict[str, Any]) -> None:
        text = json.dumps(shape).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _watch(self, since: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        watch = self.kube.begin(since)
        if watch is None:
            self._event({"type": "ERROR", "object": _status(410, "Expired")})
            self.wfile.write(b"0\r\n\r\n")
            return
        try:
            while (event := watch.get()) not in (CUT, ENDED):
                self._event(event)
            if event == ENDED:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True
        except OSError:
            pass
        finally:
            with self.kube.lock:
                self.kube.watches.remove(watch)

    def _event(self, event: dict[str, Any]) -> None:
        """Write a line, in two pieces."""
        line = json.dumps(event).encode() + b"\n"
        for part in (line[:40], line[40:]):
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()


@contextmanager
def serving_kube() -> Iterator[KubeServer]:
    kube = KubeServer()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"kube": kube, "timeout": 60})
    )
    server.daemon_threads = True
    kube.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield kube
    finally:
        kube.break_watches()
        server.shutdown()
        server.server_close()
        thread.join()
