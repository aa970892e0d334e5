"""Endpoints from Python: a list, a function, or what an event loop waits for."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import anyio

from prefixroute.core.checks import refusal
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.membership import check_endpoints
from prefixroute.errors import ConfigurationError, SourceUnavailable
from prefixroute.signals.sources.listing import Listing, Reader, Source

__all__ = ["AsyncSource", "FunctionSource", "Given", "StaticSource", "source_of"]

Named: TypeAlias = Iterable[Endpoint | str] | Listing
"""What a function may give: a list of URLs and endpoints, or a whole listing."""

Given: TypeAlias = (
    Source
    | Callable[[], Named]
    | Callable[[], Awaitable[Named]]
    | Callable[[], AsyncIterator[Named]]
    | AsyncIterator[Named]
    | Iterable[Endpoint | str]
)
"""What a :class:`Discovery` takes for a source."""


def _listing(named: object) -> Listing:
    if isinstance(named, Listing):
        return named
    if isinstance(named, list | tuple | set | frozenset) and not named:
        return Listing(endpoints=(), note="an empty list")
    return Listing(endpoints=tuple(check_endpoints(named)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class StaticSource(Source):
    """A list that stays as it is.

    Args:
        named: URLs and endpoints.

    Raises:
        ConfigurationError: The list cannot work.
    """

    named: tuple[Endpoint | str, ...]

    def __post_init__(self) -> None:
        """Check the list."""
        object.__setattr__(self, "named", tuple(check_endpoints(self.named)))

    def open(self) -> Reader:
        """Return what gives the list, once and for all."""
        listing = Listing(endpoints=tuple(check_endpoints(self.named)), again_in_s=math.inf)
        return _Calls(lambda: listing)


@dataclass(frozen=True, slots=True)
class FunctionSource(Source):
    """A function that returns a list of URLs and endpoints, called again and again, in a thread.

    Args:
        function: Without arguments. It may block, and may return a :class:`Listing` to say more:
            ``again_in_s=0`` if it waits by itself for the next change. What it raises is no list:
            the last good one is kept.
    """

    function: Callable[[], Named]

    def open(self) -> Reader:
        """Return what calls it."""
        return _Calls(self.function)


class _Calls(Reader):
    def __init__(self, function: Callable[[], Named]) -> None:
        self._function = function

    def read(self) -> Listing:
        named: object = self._function()
        if inspect.isawaitable(named) or isinstance(named, AsyncIterator):
            if inspect.iscoroutine(named):
                named.close()  # else Python complains that nobody waited for it
            raise ConfigurationError(
                f"the function {self._function!r} returned something to await: make it an "
                "'async def', and use 'async with Discovery(...)'"
            )
        return _listing(named)


@dataclass(frozen=True, slots=True)
class AsyncSource(Source):
    """An async function that returns a list, or an async iterator of lists: needs an event loop.

    Args:
        given: ``async def f(): return [...]`` is called again and again. An async iterator gives a
            list whenever it likes; a function that makes one (``async def f(): yield [...]``) is
            called again if that raises. One that ends has said its last word: that list stays. A
            generator is closed at the end.
    """

    given: object = field(hash=False)

    def open(self) -> Reader:
        """Refuse: only ``async with`` can read it."""
        raise ConfigurationError(
            f"{self.given!r} is async: use 'async with Discovery(...)', or a function that blocks"
        )

    def aopen(self) -> AsyncReader:
        """Return what reads it on the running event loop."""
        return AsyncReader(self.given)


class AsyncReader:
    """Reads what is async, again and again; the twin of a :class:`Reader`."""

    def __init__(self, given: object) -> None:
        self._given = given
        self._lists: AsyncIterator[Named] | None = None
        self._last: Listing | None = None

    async def read(self) -> Listing:
        """Return the next list.

        Raises:
            SourceUnavailable: An iterator ended without any.
        """
        lists = self._lists
        if lists is None:
            made = self._given() if callable(self._given) else self._given
            if inspect.isawaitable(made):
                return _listing(await made)
            lists = self._lists = aiter(made)  # type: ignore[arg-type]
        try:
            named = _listing(await anext(lists))
        except StopAsyncIteration:
            if self._last is None:
                self._lists = None
                raise SourceUnavailable("it ended without naming an endpoint") from None
            return replace(self._last, again_in_s=math.inf)
        except ConfigurationError:
            raise  # this list cannot work; the next may
        except BaseException:
            await self.aclose()
            raise
        self._last = named
        return replace(named, again_in_s=0.0)

    async def aclose(self) -> None:
        """End the iterator, if it is a generator."""
        lists, self._lists = self._lists, None
        if isinstance(lists, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await lists.aclose()


def source_of(given: Given) -> Source:
    """Return the source that was given, or the one that reads what was given.

    Raises:
        ConfigurationError: Nothing that could name endpoints.
    """
    if isinstance(given, Source):
        return given
    if isinstance(given, type | str | bytes | Endpoint | Listing):
        rule = "a source such as FileSource(path), a function, or a list of URLs"
        raise refusal("Discovery", "source", type(given).__name__, rule)
    if isinstance(given, AsyncIterator) or hasattr(given, "__aiter__") or _is_async(given):
        return AsyncSource(given)
    if callable(given):
        return FunctionSource(given)  # type: ignore[arg-type]
    return StaticSource(tuple(check_endpoints(given)))


def _is_async(value: object) -> bool:
    """Return whether calling a value gives something for an event loop, as far as can be seen."""
    calls = (value, getattr(type(value), "__call__", None))  # noqa: B004 - an object's, if any
    return any(inspect.iscoroutinefunction(c) or inspect.isasyncgenfunction(c) for c in calls)
