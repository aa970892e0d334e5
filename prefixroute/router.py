"""The public ``Router``: the core with real clocks, and the methods that make clients of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar, overload

from prefixroute.core.bodies import Bodies
from prefixroute.core.checks import check_int
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import Observer
from prefixroute.core.failover import Failover
from prefixroute.core.health import HealthPolicy
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore
from prefixroute.core.tokens import Tokenizer

if TYPE_CHECKING:
    import httpx
    import httpx2

    from prefixroute.transports.pools import Pools
    from prefixroute.transports.priming import Primer
    from prefixroute.transports.probing import Prober
    from prefixroute.transports.transport import AsyncRoutedTransport, RoutedTransport

__all__ = ["Router"]

C = TypeVar("C")

_DRAIN_LOOK_EVERY_S: Final = 0.02


class Router(RouterCore):
    """Sends each request to the endpoint that already holds its prompt's prefix.

    One router may be shared by threads, event loops, and sync and async clients. Every process has
    its own; all of the same endpoints and settings agree without talking (:attr:`fingerprint`).

    Args:
        endpoints: URLs (as you would give an SDK as ``base_url``) and :class:`Endpoint` values;
            their order is irrelevant.
        placement: How prompts are placed: :class:`Nested` (default), :class:`Fixed`, or a baseline.
        failover: When a call is tried elsewhere.
        health: When endpoints are ejected.
        tokenizer: Counts prompts and cuts blocks in tokens: one of :mod:`prefixroute.tokenizers`,
            or anything with ``encode(text)``; default: bytes. All processes must have the same.
        inject_usage: Streamed chats and completions that say nothing of
            ``stream_options.include_usage`` ask for it, so that engines report their cached tokens;
            the chunk that this adds is hidden from the caller. Else no body is ever altered.
        ask_load: Every request asks its engine for its load (``endpoint-load-metrics-format``, a
            header of ORCA that vLLM answers on replies that are not streamed), and what the reply
            says is heeded and taken out of it. Off, no header is added to a request.
        peers: Routers in front of these endpoints, this one included, if that is known: 1 means
            that nobody else's requests have to be guessed.
        seed: Of the ring; all processes must have the same. If given, also of ties and jitter,
            which else start at random.
        holdout: Share of the conversations, above 0 and below 1, that is placed by a baseline:
            ``stats().holdout`` tells what both groups came to, side by side. The same
            conversations in every process. ``None``: none.
        holdout_placement: The baseline; default: :class:`RoundRobin`, which is what a Kubernetes
            service or a name with several addresses would do.
        shadow: A placement that decides for every request and influences none:
            ``stats().shadow`` tells what it would have done. A decision takes about twice as long.
        remember_bodies: Bytes of request bodies that may be remembered, in memory alone: an
            endpoint that joins is sent the hottest prefixes that it will own, one token each,
            before it takes its share. 0: none. Needs endpoints with keys of their own, if they ask
            for keys.
        observers: Told of events, outside the lock.
        clock: Returns monotonic seconds.
        wall_clock: Returns seconds since the epoch.

    Raises:
        ConfigurationError: A value that cannot work, with the rule and the remedy.

    Example::

        router = Router(["http://gpu-0:8000/v1", "http://gpu-1:8000/v1"])
        client = router.wrap(OpenAI(api_key="-"))
    """

    base_url: Final = "https://prefixroute.invalid/v1"
    """What clients get as base URL: a host that does not exist, so that a client without the
    router's transport fails at once, and https, so that no proxy could see a key or a prompt."""

    root_url: Final = "https://prefixroute.invalid"
    """:attr:`base_url` without ``/v1``, as Anthropic's clients want it."""

    def __init__(  # noqa: PLR0913 - all that can be said about a router
        self,
        endpoints: Iterable[Endpoint | str],
        *,
        placement: Placement | None = None,
        failover: Failover | None = None,
        health: HealthPolicy | None = None,
        tokenizer: Tokenizer | None = None,
        inject_usage: bool = False,
        ask_load: bool = False,
        peers: int | None = None,
        seed: int | None = None,
        holdout: float | None = None,
        holdout_placement: Placement | None = None,
        shadow: Placement | None = None,
        remember_bodies: int = 0,
        observers: Iterable[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            endpoints,
            placement=placement,
            failover=failover,
            health=health,
            tokenizer=tokenizer,
            peers=peers,
            seed=seed,
            holdout=holdout,
            holdout_placement=holdout_placement,
            shadow=shadow,
            observers=observers,
            clock=clock,
            wall_clock=wall_clock,
        )
        self.inject_usage, self.ask_load = inject_usage, ask_load
        self._pools: Pools | None = None
        self._prober: Prober | None = None
        self._primer: Primer | None = None
        check_int("Router", "remember_bodies", remember_bodies, 0)
        if remember_bodies:
            self._bodies = Bodies(remember_bodies)

    @classmethod
    def from_file(
        cls,
        path: Path | str,
        *,
        tokenizer: Tokenizer | None = None,
        observers: Iterable[Observer] = (),
    ) -> Self:
        """Return a router with the settings of a file of TOML, JSON or YAML.

        Args:
            path: The file; its suffix tells the format.
            tokenizer: As of the class.
            observers: As of the class.

        Raises:
            ConfigurationError: What cannot work in it: names file, key, value, rule and remedy.
        """
        from prefixroute.configuration import read_file  # noqa: PLC0415 - few need it

        return read_file(path).make(cls, tokenizer=tokenizer, observers=observers)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        prefix: str = "PREFIXROUTE_",
        tokenizer: Tokenizer | None = None,
        observers: Iterable[Observer] = (),
    ) -> Self:
        """Return a router with the settings of environment variables: ``PREFIXROUTE_ENDPOINTS``...

        Args:
            environ: The variables; ``None``: the process's own.
            prefix: Begins their names.
            tokenizer: As of the class.
            observers: As of the class.

        Raises:
            ConfigurationError: A variable or value that cannot work; names it, rule and remedy.
        """
        from prefixroute.configuration import read_environment  # noqa: PLC0415 - few need it

        found = read_environment(environ, prefix=prefix)
        return found.make(cls, tokenizer=tokenizer, observers=observers)

    # -- clients ---------------------------------------------------------------

    def transport(
        self, inner: httpx.BaseTransport | httpx2.BaseTransport | None = None
    ) -> RoutedTransport:
        """Return a transport for ``httpx.Client`` or ``httpx2.Client``.

        Args:
            inner: Sends the requests, in place of the router's own connection pool: a transport
                with your TLS settings, say, a ``MockTransport`` or a WSGI one. You close it.

        Raises:
            ConfigurationError: ``inner`` is no sync transport.
        """
        from prefixroute.transports.transport import RoutedTransport  # noqa: PLC0415 - loads httpx

        return RoutedTransport(self, self._shared_pools(), inner)

    def async_transport(
        self, inner: httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport | None = None
    ) -> AsyncRoutedTransport:
        """Return a transport for ``httpx.AsyncClient`` or ``httpx2.AsyncClient``.

        Args:
            inner: As for :meth:`transport`.

        Raises:
            ConfigurationError: ``inner`` is no async transport.
        """
        from prefixroute.transports.transport import (  # noqa: PLC0415 - loads httpx
            AsyncRoutedTransport,
        )

        return AsyncRoutedTransport(self, self._shared_pools(), inner)

    @overload
    def client(self, library: Literal["httpx"] = "httpx") -> httpx.Client: ...
    @overload
    def client(self, library: Literal["httpx2"]) -> httpx2.Client: ...
    def client(self, library: str = "httpx") -> Any:
        """Return an HTTP client whose base URL and transport are the router's.

        Args:
            library: ``"httpx"`` or ``"httpx2"``, whichever the SDK that gets it is built on.

        Raises:
            ConfigurationError: Another name, or the library is not installed.
        """
        from prefixroute.transports.library import library_named  # noqa: PLC0415 - loads httpx

        module = library_named(library).module
        return module.Client(
            base_url=self.base_url, transport=self.transport(), timeout=_timeout(module)
        )

    @overload
    def async_client(self, library: Literal["httpx"] = "httpx") -> httpx.AsyncClient: ...
    @overload
    def async_client(self, library: Literal["httpx2"]) -> httpx2.AsyncClient: ...
    def async_client(self, library: str = "httpx") -> Any:
        """Return an async HTTP client whose base URL and transport are the router's.

        Args:
            library: As for :meth:`client`.

        Raises:
            ConfigurationError: As :meth:`client`.
        """
        from prefixroute.transports.library import library_named  # noqa: PLC0415 - loads httpx

        module = library_named(library).module
        return module.AsyncClient(
            base_url=self.base_url, transport=self.async_transport(), timeout=_timeout(module)
        )

    def wrap(self, client: C) -> C:
        """Return a copy of an SDK's client that sends through this router.

        The copy keeps the client's settings: timeouts, headers, retries, organisation, and its HTTP
        client's TLS, proxies, hooks and limits. Its base URL becomes :attr:`base_url`.

        Args:
            client: An ``OpenAI``, ``AsyncOpenAI``, ``Anthropic`` or ``AsyncAnthropic``.

        Raises:
            UnsupportedClientError: A ``TypeError``: anything else, naming the way that works.
        """
        from prefixroute.transports.sdk import wrap  # noqa: PLC0415 - loads httpx

        return wrap(
            self, self._shared_pools(), client, base_url=self.base_url, root_url=self.root_url
        )

    def ask(
        self, endpoint: Endpoint | str, path: str, *, timeout_s: float = 5.0
    ) -> tuple[int, bytes]:
        """Return the status and the body of what one endpoint answers to a GET.

        With the endpoint's key, through the router's own pools; it counts as no request.

        Args:
            endpoint: It, its id, or any spelling of its URL.
            path: At its root, such as ``/metrics``; below its URL if it starts with ``/v1/``.
            timeout_s: For each step: connecting, sending, each read; for all, four times that.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
            RouterClosedError: The router is closed.
            httpx.TransportError: It does not answer, or without end.
        """
        from prefixroute.transports.asking import ask  # noqa: PLC0415 - loads httpx

        asked = self._find(endpoint).endpoint
        return ask(self._shared_pools(), asked, path, timeout_s=timeout_s)

    async def aask(
        self, endpoint: Endpoint | str, path: str, *, timeout_s: float = 5.0
    ) -> tuple[int, bytes]:
        """Do what :meth:`ask` does, on the running event loop."""
        from prefixroute.transports.asking import ask_async  # noqa: PLC0415 - loads httpx

        asked = self._find(endpoint).endpoint
        return await ask_async(self._shared_pools(), asked, path, timeout_s=timeout_s)

    def _shared_pools(self) -> Pools:
        if self._pools is None:
            from prefixroute.transports.library import library_named  # noqa: PLC0415
            from prefixroute.transports.pools import Pools  # noqa: PLC0415

            library_named("httpx")  # now: OpenAI's SDK fails where another thread half loaded it
            with self._change:
                if self._pools is None:
                    self._pools = Pools()
                    self._prober = self._new_prober(self._pools)
        return self._pools

    def _new_prober(self, pools: Pools) -> Prober | None:
        if self.health.probe_every_s is None:
            return None
        from prefixroute.transports.probing import Prober  # noqa: PLC0415 - loads httpx

        return Prober(self, pools, every_s=self.health.probe_every_s, path=self.health.probe_path)

    def _can_prime(self) -> bool:
        return self._pools is not None and not self._pools.closed

    def _prime(self, endpoints: Sequence[Endpoint]) -> None:
        from prefixroute.transports.priming import Primer  # noqa: PLC0415 - loads httpx

        if self._primer is None:
            self._primer = Primer(self, self._shared_pools())
        self._primer.start(endpoints)

    def count_call(self) -> None:
        """Note a call, which adds to the budget of further tries; the first one starts probes."""
        if self._prober is not None:
            self._prober.ensure()
        super().count_call()

    # -- life --------------------------------------------------------------------

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Router cannot be pickled or copied: it holds a lock, connections and counts of its "
            "own; pickle what it is made of (endpoints, placement, failover, health, seed) and "
            "make one in each process: they agree if their .fingerprint is equal"
        )

    def drain(self, endpoint: Endpoint | str, *, timeout_s: float = 0.0) -> bool:
        """Send an endpoint no new requests and wait for those in flight; then ``remove`` it.

        Args:
            endpoint: Its id, or any spelling of its URL.
            timeout_s: How long to wait, seconds; 0: do not wait.

        Returns:
            Whether no request of this router is in flight there any more.

        Raises:
            UnknownEndpointError: There is none of this id or URL.
        """
        self.start_drain(endpoint)
        deadline = time.monotonic() + timeout_s
        while self.in_flight(endpoint) > 0:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _DRAIN_LOOK_EVERY_S))
        return True

    def close(self) -> None:
        """Close the router's connection pools; clients made of it cannot send any more.

        Async pools are closed with their event loop at the latest; :meth:`aclose` closes those of
        the running one now. Whatever needs no connection, such as :meth:`route`, goes on working.
        """
        pools = self._shared_pools()
        pools.closed = True
        if self._prober is not None:
            self._prober.stop()
        if self._primer is not None:
            self._primer.stop()
        self.forget_bodies()
        pools.close()

    async def aclose(self) -> None:
        """Do what :meth:`close` does, also for the pools of the running event loop."""
        from prefixroute.transports.waiting import current_loop  # noqa: PLC0415 - loads httpx

        self.close()
        await self._shared_pools().aclose(current_loop())

    def __enter__(self) -> Self:
        """Return the router, open again if it was closed."""
        self._shared_pools().closed = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _timeout(module: Any) -> Any:
    """Return a timeout for generations: the libraries' own 5 s end many of them."""
    return module.Timeout(600, connect=5.0)  # the SDKs send it in a header, as 600
