"""``Router.wrap``: an SDK's client, copied to send through the router."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prefixroute.core.router import RouterCore
from prefixroute.errors import UnsupportedClientError
from prefixroute.transports.library import library_of
from prefixroute.transports.pools import Pools
from prefixroute.transports.transport import AsyncRoutedTransport, RoutedTransport

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["wrap"]

C = TypeVar("C")

_OPENAI: Final = frozenset({"OpenAI", "AsyncOpenAI"})
_ANTHROPIC: Final = frozenset({"Anthropic", "AsyncAnthropic"})
_BY_HAND: Final = (
    "give it an HTTP client instead: base_url=router.base_url, http_client=router.client() "
    "(or router.async_client())"
)


def wrap(core: RouterCore, pools: Pools, client: C, *, base_url: str, root_url: str) -> C:
    """Return a copy of an SDK's client that sends through the router; see ``Router.wrap``."""
    url = base_url if _sdk_of(client) == "openai" else root_url
    old_http: Any = client._client  # type: ignore[attr-defined]  # noqa: SLF001 - no public access
    new_http = _routed_client(core, pools, old_http)
    try:
        copied: C = client.copy(base_url=url, http_client=new_http)  # type: ignore[attr-defined]
    except TypeError as error:
        raise _refuse(client, f"its copy() failed ({error})") from error
    return copied


def _sdk_of(client: object) -> str:
    """Return the SDK of a client that can be copied.

    Raises:
        UnsupportedClientError: It is another thing, with the way that works.
    """
    kind = type(client)
    names = [(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__]
    for module, classes in (("openai", _OPENAI), ("anthropic", _ANTHROPIC)):
        at = next((i for i, (m, n) in enumerate(names) if m == module and n in classes), None)
        if at is None:
            continue
        if any(m == module for m, _ in names[:at]):
            raise _refuse(
                client, "it signs or rewrites requests for one service, which routing would undo"
            )
        if any("__init__" in vars(base) for base in kind.__mro__[:at]):
            raise _refuse(client, "its class has a constructor of its own, so it cannot be copied")
        return module
    if "httpx" in {names[0][0][:5]} or any(module.startswith("httpx") for module, _ in names):
        raise UnsupportedClientError(
            f"Router.wrap({_name(client)}): it is an HTTP client, not an SDK's; use "
            "router.client() or httpx.Client(base_url=router.base_url, "
            "transport=router.transport())"
        )
    raise _refuse(client, "it is not an OpenAI, AsyncOpenAI, Anthropic or AsyncAnthropic")


def _refuse(client: object, why: str) -> UnsupportedClientError:
    return UnsupportedClientError(f"Router.wrap({_name(client)}): {why}; {_BY_HAND}")


def _name(client: object) -> str:
    kind = type(client)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def _routed_client(core: RouterCore, pools: Pools, client: Any) -> Any:
    """Return a copy of an HTTP client whose transport is the router's.

    The copy shares timeouts, headers, hooks, cookies and whatever a subclass added; requests to
    endpoints go through what the client itself would use for their URLs: its TLS settings, limits,
    proxies and mounts.
    """
    copied = copy.copy(client)
    asynchronous = hasattr(client, "aclose")
    transport: Callable[..., Any] = AsyncRoutedTransport if asynchronous else RoutedTransport
    inner = _AsyncThrough(client) if asynchronous else _SyncThrough(client)
    routed = transport(core, pools, inner, keep=client, library=library_of(type(client)))
    copied._transport = routed  # noqa: SLF001 - there is no public way to set it
    copied._mounts = {}  # noqa: SLF001 - they match real URLs: the inner transport asks them
    return copied


class _SyncThrough:
    """Sends through the transport that a client would use for the request's URL."""

    def __init__(self, client: Any) -> None:
        self._pick = client._transport_for_url  # noqa: SLF001 - knows proxies and mounts

    def handle_request(self, request: Any) -> Any:
        return self._pick(request.url).handle_request(request)


class _AsyncThrough:
    """As :class:`_SyncThrough`, for async clients."""

    def __init__(self, client: Any) -> None:
        self._pick = client._transport_for_url  # noqa: SLF001 - knows proxies and mounts

    async def handle_async_request(self, request: Any) -> Any:
        return await self._pick(request.url).handle_async_request(request)
