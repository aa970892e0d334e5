"""``KubernetesSource``: the pods behind a service, watched through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from prefixroute.core.checks import refusal
from prefixroute.core.endpoint import Endpoint, normalise_url
from prefixroute.errors import SourceUnavailable
from prefixroute.signals.sources.listing import (
    EndpointSettings,
    Listing,
    Reader,
    Source,
    check_address,
    check_settings,
    need,
    url_of,
)
from prefixroute.signals.sources.slices import (
    Bookmark,
    Event,
    Found,
    Slice,
    SliceList,
    State,
    Status,
    found_in,
)

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

__all__ = ["KubernetesSource"]

_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_WATCH_S: Final = 240
"""After which the API server is asked to end a watch, so that one that went dead is found out."""
_CONNECT_S: Final = 5.0
_LIST_S: Final = 30.0
_REOPEN_S: Final = 1.0
"""Pause before a watch that has ended is begun again."""
_GONE: Final = 410
_FORBIDDEN: Final = (401, 403)
_LONGEST_MESSAGE: Final = 200


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
    port: int | str | None = None
    scheme: str = "http"
    path: str = "/v1"
    settings: EndpointSettings = field(default_factory=EndpointSettings, repr=False, hash=False)
    prefer: Literal["IPv4", "IPv6"] = "IPv4"
    cluster_domain: str = "cluster.local"
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


class _GoneError(Exception):
    """The API server no longer knows what has changed since: list again."""


class _Watch(Reader):
    """Lists once, then follows events from there; lists again when the server says so."""

    def __init__(self, source: KubernetesSource) -> None:
        self._source = source
        self._namespace = source.namespace or _own_namespace()
        self._api: Any = None
        self._slices: dict[str, Slice] = {}
        self._version: str | None = None  # up to which the slices are known; None: list first
        self._any_version = "0"  # what a first list may answer from: the server's cache
        self._response: Any = None
        self._lines: Iterator[bytes] | None = None
        self._breaks = 0  # in a row

    def read(self) -> Listing:
        import urllib3  # noqa: PLC0415 - comes with the extra

        try:
            return self._listing(self._advance())
        except urllib3.exceptions.HTTPError as error:
            self._drop()
            self._breaks += 1
            if self._version is None or self._breaks > 1:
                raise SourceUnavailable(f"{self._what}: {_short(error)}") from None
            return self._listing(_REOPEN_S)  # a watch may break, and has lost nothing
        except OSError as error:
            self._drop()
            raise SourceUnavailable(f"{self._what}: {_short(error)}") from None
        except msgspec.MsgspecError as error:
            self._drop()
            self._version = None
            raise SourceUnavailable(f"{self._what}: not what it should be: {error}") from None
        except LookupError as error:
            raise SourceUnavailable(f"{self._what}: {error}") from None

    @property
    def _what(self) -> str:
        return f"endpointslices of {self._namespace}/{self._source.service}"

    def _advance(self) -> float:
        """List, or wait for the next event; return when to come back."""
        if self._version is None:
            self._list()
            return 0.0
        try:
            return 0.0 if self._next() else _REOPEN_S
        except _GoneError:
            self._drop()
            self._version, self._any_version = None, ""
            self._list()
            return 0.0

    # -- what is known -----------------------------------------------------------

    def _listing(self, again_in_s: float) -> Listing:
        source = self._source
        found = found_in(self._slices.values(), port=source.port, prefer=source.prefer)
        ready = [self._endpoint(one) for one in found if one.state is State.READY]
        resting = [self._endpoint(one) for one in found if one.state is State.RESTING]
        note = f"none of its {len(found)} pods is ready" if found else "the service has no pods"
        return Listing(
            endpoints=tuple(ready), resting=tuple(resting), again_in_s=again_in_s, note=note
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
        response = self._call(resource_version=self._any_version, _request_timeout=_LIST_S)
        listed = msgspec.json.decode(response.data, type=SliceList)
        self._slices = {one.metadata.name: one for one in listed.items or ()}
        self._version, self._breaks = listed.metadata.resource_version, 0

    def _next(self) -> bool:
        """Take the next event; return whether there was one before the watch ended."""
        if self._lines is None:
            self._response = self._call(
                watch=True,
                resource_version=self._version,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_S,
                _request_timeout=(_CONNECT_S, _WATCH_S + _LIST_S),
            )
            self._lines = _lines(self._response)
        for line in self._lines:
            self._breaks = 0
            if self._take(msgspec.json.decode(line, type=Event)):
                return True
        self._drop()
        return False

    def _take(self, event: Event) -> bool:
        """Note an event; return whether it changes what is listed."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            if status.code == _GONE:
                raise _GoneError
            raise OSError(f"the API server ends the watch: {status.code} {status.message}")
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

    def _call(self, **query: Any) -> Any:
        """Return the response to a list or a watch, its body unread.

        Raises:
            _GoneError: What has changed since the version is no longer known.
            OSError: The server refuses.
        """
        from kubernetes.client import ApiException, DiscoveryV1Api  # noqa: PLC0415 - an extra

        if self._api is None:
            self._api = DiscoveryV1Api(self._source.api or _configured())
        try:
            return self._api.list_namespaced_endpoint_slice(
                self._namespace,
                label_selector=f"kubernetes.io/service-name={self._source.service}",
                _preload_content=False,
                **query,
            )
        except ApiException as error:
            if error.status == _GONE:
                raise _GoneError from None
            remedy = (
                ": let its service account list and watch endpointslices of discovery.k8s.io"
                if error.status in _FORBIDDEN
                else ""
            )
            raise OSError(f"the API server answers {error.status} {error.reason}{remedy}") from None

    def _drop(self) -> None:
        response, self._response, self._lines = self._response, None, None
        if response is not None:
            response.close()

    def close(self) -> None:
        response = self._response
        if response is not None:
            # Only this wakes a thread that reads; urllib3 before 2.3 has to wait for the server.
            getattr(response, "shutdown", lambda: None)()


def _lines(response: Any) -> Iterator[bytes]:
    """Yield the lines of a response as they come."""
    rest = b""
    for chunk in response.stream(amt=None):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _configured() -> ApiClient:
    """Return a client with the service account's settings, else with the kubeconfig's.

    Raises:
        OSError: There are neither.
    """
    from kubernetes import client  # noqa: PLC0415 - an extra

    config: Any = import_module("kubernetes.config")  # which has no types
    settings = client.Configuration()
    settings.retries = False  # whoever reads tries again by itself, and later
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=settings)
        except config.ConfigException as error:
            raise OSError(f"no service account and no kubeconfig: {_short(error)}") from None
    return client.ApiClient(settings)
