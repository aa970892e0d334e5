"""``KubernetesSource``: the pods behind a service, watched through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from prefixroute.core.checks import need, refusal
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.urls import normalise_url
from prefixroute.errors import SourceUnavailable
from prefixroute.signals.sources.kube_api import Gone, SliceApi, lines_of, shown
from prefixroute.signals.sources.listing import (
    EndpointSettings,
    Listing,
    Reader,
    Source,
    check_address,
    check_settings,
    url_of,
)
from prefixroute.signals.sources.slices import (
    Bookmark,
    Event,
    Found,
    Slice,
    State,
    Status,
    found_in,
)

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

__all__ = ["KubernetesSource"]

_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REOPEN_S: Final = 1.0
"""Pause before a watch that has ended is begun again."""
_GONE: Final = 410


@dataclass(frozen=True, slots=True)
class KubernetesSource(Source):
    """The pods behind a service, from its EndpointSlices, as the API server tells of changes.

    A pod that is ready gets requests; one that is not keeps its place and gets none; one that is
    terminating is drained. A pod with a hostname (of a StatefulSet with a headless service) is
    known by its name, which outlives it: ``http://gpu-0.gpu.default.svc.cluster.local:8000/v1``, as
    :class:`DnsSource` has it for ``SRV``. Others are known by their URL, which has their address.

    The service account must be allowed to ``list`` and ``watch`` ``endpointslices`` of
    ``discovery.k8s.io`` in the namespace.

    Args:
        service: Its name; it need not be headless.
        namespace: Its namespace; ``None``: the one that this process runs in, else ``default``.
        port: The name or the number of the pods' port; ``None``: the only one.
        scheme: ``"http"`` or ``"https"``.
        path: Of every URL.
        settings: Of every endpoint, such as ``{"api_key": key}``.
        prefer: The address family to use of pods that have both.
        cluster_domain: The end of every name in the cluster.
        api: An ``ApiClient`` of the official client; ``None``: with the service account in a pod,
            else as the kubeconfig says.

    Raises:
        ConfigurationError: A value that cannot work, or the extra ``kubernetes`` is missing.
    """

    service: str
    _: KW_ONLY
    namespace: str | None = None
    port: int | str | None = field(default=None, repr=False)
    scheme: str = field(default="http", repr=False)
    path: str = field(default="/v1", repr=False)
    settings: EndpointSettings = field(default_factory=EndpointSettings, repr=False, hash=False)
    prefer: Literal["IPv4", "IPv6"] = field(default="IPv4", repr=False)
    cluster_domain: str = field(default="cluster.local", repr=False)
    api: ApiClient | None = field(default=None, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Check every field."""
        owner = "KubernetesSource"
        for name in ("service", "namespace"):
            value = getattr(self, name)
            if name == "namespace" and value is None:
                continue
            if not isinstance(value, str) or not value.replace("-", "").isalnum():
                raise refusal(owner, name, value, f"the name of a {name}, without its domain")
        number = self.port if not isinstance(self.port, str) else None
        check_address(owner, scheme=self.scheme, port=number, path=self.path)
        check_settings(owner, self.settings, scheme=self.scheme)
        if self.prefer not in ("IPv4", "IPv6"):
            raise refusal(owner, "prefer", self.prefer, "'IPv4' or 'IPv6'")
        need(f"KubernetesSource({self.service!r})", "kubernetes", "kubernetes", "kubernetes")

    def open(self) -> Reader:
        """Return what lists the slices, and then watches them."""
        return _Watch(self)


class _Watch(Reader):
    """Lists once, then follows events from there; lists again when the server says so."""

    def __init__(self, source: KubernetesSource) -> None:
        self._source = source
        self._namespace = source.namespace or _own_namespace()
        self._api = SliceApi(source.api, namespace=self._namespace, service=source.service)
        self._slices: dict[str, Slice] = {}
        self._version: str | None = None  # up to which the slices are known; None: list first
        self._any_version = "0"  # what a first list may answer from: the server's cache
        self._response: Any = None
        self._lines: Iterator[bytes] | None = None
        self._breaks = 0  # in a row
        self._interrupted = False

    def read(self) -> Listing:
        import urllib3  # noqa: PLC0415 - comes with the extra

        try:
            again_in_s = self._advance()
        except urllib3.exceptions.HTTPError as error:
            self.close()
            self._breaks += 1
            if self._version is None or self._breaks > 1:
                raise SourceUnavailable(f"{self._api.name}: {shown(error)}") from None
            again_in_s = _REOPEN_S  # a watch may break, and has lost nothing
        except SourceUnavailable:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise SourceUnavailable(f"{self._api.name}: {shown(error)}") from None
        except msgspec.MsgspecError as error:
            self.close()
            self._version = None  # it is not known what was missed
            raise SourceUnavailable(f"{self._api.name}: {shown(error)}") from None
        try:
            return self._listing(again_in_s)
        except LookupError as error:
            raise SourceUnavailable(f"{self._api.name}: {error}") from None

    def _advance(self) -> float:
        """List, or wait for the next event; return when to come back."""
        if self._version is None:
            self._list()
            return 0.0
        try:
            return 0.0 if self._next() else _REOPEN_S
        except Gone:
            self.close()
            self._version, self._any_version = None, ""
            self._list()
            return 0.0

    # -- what is known -----------------------------------------------------------

    def _listing(self, again_in_s: float) -> Listing:
        source = self._source
        found = found_in(self._slices.values(), port=source.port, prefer=source.prefer)
        ready = [self._endpoint(one) for one in found if one.state is State.READY]
        resting = [self._endpoint(one) for one in found if one.state is State.RESTING]
        why = f"none of its {len(found)} pods is ready" if found else "the service has no pods"
        return Listing(
            endpoints=tuple(ready),
            resting=tuple(resting),
            again_in_s=again_in_s,
            note="" if ready else why,
        )

    def _endpoint(self, found: Found) -> Endpoint:
        source = self._source
        url = url_of(source.scheme, found.address, found.port, source.path)
        if found.hostname is None:
            return Endpoint(url, **source.settings)
        domain = f"{source.service}.{self._namespace}.svc.{source.cluster_domain}"
        name = url_of(source.scheme, f"{found.hostname}.{domain}", found.port, source.path)
        known = normalise_url(name)
        return Endpoint(name if source.scheme == "https" else url, id=known, **source.settings)

    # -- the API -------------------------------------------------------------------

    def _list(self) -> None:
        listed = self._api.list(self._any_version)
        self._slices = {one.metadata.name: one for one in listed.items or ()}
        self._version, self._breaks = listed.metadata.resource_version, 0

    def _next(self) -> bool:
        """Take the next event; return whether there was one before the watch ended."""
        if self._lines is None:
            self._response = self._api.watch(self._version)
            self._lines = lines_of(self._response)
        if self._interrupted:
            return False
        for line in self._lines:
            self._breaks = 0
            if self._take(msgspec.json.decode(line, type=Event)):
                return True
        self.close()
        return False

    def _take(self, event: Event) -> bool:
        """Note an event; return whether it changes what is listed."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            if status.code == _GONE:
                raise Gone
            why = f"the API server ends the watch: {status.code} {status.message}"
            raise SourceUnavailable(f"{self._api.name}: {why}")
        if event.type == "BOOKMARK":
            mark = msgspec.json.decode(event.object, type=Bookmark).metadata
            self._version = mark.resource_version
            return False
        changed = msgspec.json.decode(event.object, type=Slice)
        self._version = changed.metadata.resource_version
        if event.type == "DELETED":
            self._slices.pop(changed.metadata.name, None)
        else:
            self._slices[changed.metadata.name] = changed
        return True

    def interrupt(self) -> None:
        self._interrupted = True
        response = self._response
        if response is not None:
            with suppress(AttributeError, ValueError, OSError):  # urllib3 before 2.3; just over
                response.shutdown()

    def close(self) -> None:
        response, self._response, self._lines = self._response, None, None
        if response is not None:
            response.close()


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
