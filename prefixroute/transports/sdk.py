"""``Router.wrap``: an SDK's client, copied to send through the router."""

from __future__ import annotations

import copy
from functools import partial
from ssl import SSLContext
from typing import Any, Final, TypeVar

from prefixroute.core.router import RouterCore
from prefixroute.errors import UnsupportedClientError
from prefixroute.transports.breaking import can_break_off
from prefixroute.transports.library import library_or_none
from prefixroute.transports.pools import Pools
from prefixroute.transports.transport import AsyncRoutedTransport, RoutedTransport, refused_tls
from prefixroute.transports.twins import can_have_twin, twin_of
from prefixroute.transports.waiting import current_loop

__all__ = ["wrap"]

C = TypeVar("C")

_CLASSES: Final = {
    "openai": frozenset({"OpenAI", "AsyncOpenAI"}),
    "anthropic": frozenset({"Anthropic", "AsyncAnthropic"}),
}
_SDKS: Final = {"openai": ("OpenAI", "base_url"), "anthropic": ("Anthropic", "root_url")}


def wrap(core: RouterCore, pools: Pools, client: C, *, base_url: str, root_url: str) -> C:
    """Return a copy of an SDK's client that sends through the router; see ``Router.wrap``."""
    sdk = _sdk_of(client)
    http = _routed(core, pools, client._client)  # type: ignore[attr-defined]  # noqa: SLF001
    url = base_url if sdk == "openai" else root_url
    try:
        copied: C = client.copy(base_url=url, http_client=http)  # type: ignore[attr-defined]
    except Exception as error:
        raise _by_hand(client, sdk, f"its copy() failed ({type(error).__name__})") from error
    return copied


# -- what can be wrapped -----------------------------------------------------------------------


def _sdk_of(client: object) -> str:
    """Return the SDK of a client that can be copied.

    Raises:
        UnsupportedClientError: It is another thing, with the way that works.
    """
    kind = type(client)
    if isinstance(client, type):
        raise UnsupportedClientError(
            f"Router.wrap({client.__qualname__}): it is a class; give an instance, "
            f"router.wrap({client.__qualname__}(api_key=...))"
        )
    owners = [(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__]
    for sdk, classes in _CLASSES.items():
        at = next((i for i, (m, n) in enumerate(owners) if m == sdk and n in classes), None)
        own = [base for base, (m, _) in zip(kind.__mro__, owners, strict=True) if m != sdk]
        if at is None:
            if any(module == sdk for module, _ in owners):
                raise _for_one_service(client, sdk)
            continue
        if any(m == sdk for m, _ in owners[:at]) or getattr(client, "_provider", None) is not None:
            raise _for_one_service(client, sdk)
        if any("__init__" in vars(base) for base in own if base is not object):
            raise _by_hand(client, sdk, "its class has a constructor of its own")
        return sdk
    library = library_or_none(kind)
    if library is not None:
        transport = "async_transport" if hasattr(client, "aclose") else "transport"
        raise UnsupportedClientError(
            f"Router.wrap({_name(client)}): it is an HTTP client, not an SDK's; use "
            f"{kind.__name__}(base_url=router.base_url, transport=router.{transport}())"
        )
    raise UnsupportedClientError(
        f"Router.wrap({_name(client)}): it is not an OpenAI, AsyncOpenAI, Anthropic or "
        "AsyncAnthropic; give what you have router.base_url and router.client(), or "
        "router.async_client(), as its HTTP client, or send to router.acquire(body).endpoint"
    )


def _for_one_service(client: object, sdk: str) -> UnsupportedClientError:
    name = _SDKS[sdk][0]
    return UnsupportedClientError(
        f"Router.wrap({_name(client)}): it signs or rewrites requests for one service, which "
        f"routing would undo; wrap a plain client, router.wrap({name}(api_key=...)), and give "
        "each Endpoint its own api_key, headers, or prepare= to sign with"
    )


def _by_hand(client: Any, sdk: str, why: str) -> UnsupportedClientError:
    http = getattr(client, "_client", None)
    library = library_or_none(type(http))
    method = "async_client" if hasattr(http, "aclose") else "client"
    argument = f'"{library.name}"' if library is not None else ""
    return UnsupportedClientError(
        f"Router.wrap({_name(client)}): {why}, so it cannot be copied; construct it with "
        f"base_url=router.{_SDKS[sdk][1]} and http_client=router.{method}({argument})"
    )


def _name(client: object) -> str:
    kind = type(client)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


# -- its HTTP client ---------------------------------------------------------------------------


def _routed(core: RouterCore, pools: Pools, client: Any) -> Any:
    """Return a copy of an HTTP client whose transport is the router's.

    The copy shares timeouts, headers, hooks, cookies and whatever a subclass added. Requests to
    endpoints go out as the client itself would send them: by its TLS settings, limits, proxies and
    mounts, but over connections of the copy's own.
    """
    copied = copy.copy(client)
    routed: RoutedTransport | AsyncRoutedTransport
    if hasattr(client, "aclose"):
        asynchronous = _AsyncLike(client, pools.child())
        routed = AsyncRoutedTransport(core, pools, asynchronous, closes_inner=True)
    else:
        routed = RoutedTransport(core, pools, _Like(client, pools.child()), closes_inner=True)
    copied._transport = routed  # noqa: SLF001 - there is no public way to set it
    copied._mounts = {}  # noqa: SLF001 - they match real URLs: the inner transport asks them
    return copied


class _Like:
    """Sends as a client would: by twins of its transports, or by them where they have none."""

    def __init__(self, client: Any, pools: Pools) -> None:
        self._client, self._pools = client, pools

    def handle_request(self, request: Any) -> Any:
        return self.transport_of(request, None).handle_request(request)

    def transport_of(self, request: Any, tls: SSLContext | None) -> Any:
        transport = self._client._transport_for_url(request.url)  # noqa: SLF001 - knows mounts
        if can_have_twin(transport):
            return self._pools.sync((id(transport), tls), partial(twin_of, transport, tls))
        if tls is not None:
            raise refused_tls(transport)
        return transport

    def can_break_off(self) -> bool:
        """Answer for :func:`breaking.can_break_off`: whatever the client may send through."""
        every = (self._client._transport, *self._client._mounts.values())  # noqa: SLF001
        return all(one is None or can_break_off(one) for one in every)

    def close(self) -> None:
        self._pools.close()


class _AsyncLike:
    """As :class:`_Like`, for async clients."""

    def __init__(self, client: Any, pools: Pools) -> None:
        self._client, self._pools = client, pools

    async def handle_async_request(self, request: Any) -> Any:
        return await (await self.transport_of(request, None)).handle_async_request(request)

    async def transport_of(self, request: Any, tls: SSLContext | None) -> Any:
        transport = self._client._transport_for_url(request.url)  # noqa: SLF001 - knows mounts
        if can_have_twin(transport):
            make = partial(twin_of, transport, tls)
            return await self._pools.asynchronous((id(transport), tls), make, current_loop())
        if tls is not None:
            raise refused_tls(transport)
        return transport

    async def aclose(self) -> None:
        await self._pools.aclose(current_loop())
