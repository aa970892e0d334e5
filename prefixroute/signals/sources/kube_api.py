"""The two calls that discovery makes of the Kubernetes API, through the official client.

The client has the address, the credentials and TLS; its models are not used, for they differ from
version to version where the JSON does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from prefixroute.errors import SourceUnavailable
from prefixroute.signals.sources.slices import SliceList

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

__all__ = ["Gone", "SliceApi", "lines_of", "shown"]

_WATCH_S: Final = 240
"""After which the API server is asked to end a watch, so that one that went dead is found out."""
_CONNECT_S: Final = 5.0
_LIST_S: Final = 30.0
_GONE: Final = 410
_FORBIDDEN: Final = (401, 403)
_LONGEST_MESSAGE: Final = 200


class Gone(Exception):  # noqa: N818 - the API's own name for it
    """The API server no longer knows what has changed since: list again."""


class SliceApi:
    """Lists and watches the EndpointSlices of one service.

    Args:
        api: A client; ``None``: made when it is first needed, with the service account in a pod,
            else as the kubeconfig says.
        namespace: The service's.
        service: Its name.
    """

    def __init__(self, api: ApiClient | None, *, namespace: str, service: str) -> None:
        self.name = f"endpointslices of {namespace}/{service}"
        self._client = api
        self._api: Any = None
        self._namespace, self._service = namespace, service

    def list(self, version: str) -> SliceList:
        """Return the slices; of version "0": as the server has them at hand, "": the newest.

        Raises:
            SourceUnavailable: The server refuses, or there are no credentials.
            urllib3.exceptions.HTTPError: It does not answer.
            msgspec.MsgspecError: The answer is something else.
        """
        response = self._call(resource_version=version, _request_timeout=_LIST_S)
        return msgspec.json.decode(response.data, type=SliceList)

    def watch(self, version: str | None) -> Any:
        """Return a response whose lines tell what changes after a version.

        Raises:
            Gone: That version is too old.
            SourceUnavailable: As :meth:`list`, and so the next.
            urllib3.exceptions.HTTPError: It does not answer.
        """
        return self._call(
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,
            _request_timeout=(_CONNECT_S, _WATCH_S + _LIST_S),
        )

    def _call(self, **query: Any) -> Any:
        from kubernetes.client import ApiException, DiscoveryV1Api  # noqa: PLC0415 - an extra

        if self._api is None:
            self._api = DiscoveryV1Api(self._client or _configured())
        try:
            return self._api.list_namespaced_endpoint_slice(
                self._namespace,
                label_selector=f"kubernetes.io/service-name={self._service}",
                _preload_content=False,
                **query,
            )
        except ApiException as error:
            if error.status == _GONE:
                raise Gone from None
            remedy = (
                ": let its service account list and watch endpointslices of discovery.k8s.io"
                if error.status in _FORBIDDEN
                else ""
            )
            raise SourceUnavailable(
                f"{self.name}: the API server answers {error.status} {error.reason}{remedy}"
            ) from None


def lines_of(response: Any) -> Iterator[bytes]:
    """Yield the lines of a response as they come."""
    rest = b""
    for chunk in response.stream(amt=None):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def shown(error: Exception) -> str:
    """Return what a message may show of an error, not too long."""
    return f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]


def _configured() -> ApiClient:
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
            why = f"no service account and no kubeconfig: {error}"
            raise SourceUnavailable(f"KubernetesSource: {why}") from None
    return client.ApiClient(settings)
