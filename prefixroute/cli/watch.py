"""``prefixroute watch``: endpoints as they are now, again and again."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from prefixroute.cli.watch_screen import draw
from prefixroute.cli.watch_view import Source, SourceLost, View
from prefixroute.core.checks import need
from prefixroute.core.urls import shown_url
from prefixroute.errors import ConfigurationError

__all__ = ["Wanted", "run_watch", "source_of", "until_interrupted"]

_HTTP: Final = ("http", "https")
_REDIS: Final = ("redis", "rediss", "unix")
_DRAWN_PER_S: Final = 4
_WIDE: Final = 200
_NOTICED_S: Final = 0.5
"""After which an interrupt is noticed that came at a bad moment."""
_OTHER_LINES: Final = 18
"""Of the screen: title, sums, headings, hottest prefixes, notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a source is watched.

    Args:
        interval_s: Between two reads.
        window_s: What rates are made of.
        namespace: First part of the names of metrics, or of keys.
        cluster: The Redis server is one of a cluster.
        once: One view, and no more.
        as_json: Each view as a line of JSON.
    """

    interval_s: float
    window_s: float
    namespace: str
    cluster: bool
    once: bool
    as_json: bool


def source_of(url: str, wanted: Wanted) -> Source:
    """Return what reads this URL.

    Raises:
        ConfigurationError: It is neither an application's metrics nor a server of a fleet, or what
            reads it is not installed.
    """
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:
        scheme = ""
    if scheme in _HTTP:
        need("prefixroute watch", "prometheus_client", "prometheus-client", "prometheus")
        from prefixroute.cli.watch_metrics import MetricsSource  # noqa: PLC0415 - an extra

        return MetricsSource(url, namespace=wanted.namespace, window_s=wanted.window_s)
    if scheme in _REDIS:
        need("prefixroute watch", "redis", "redis", "redis")
        from prefixroute.cli.watch_fleet import FleetSource  # noqa: PLC0415 - an extra

        return FleetSource(url, namespace=wanted.namespace, cluster=wanted.cluster)
    raise ConfigurationError(
        f"{shown_url(url)!r} must be an application's metrics, such as "
        "http://127.0.0.1:9100/metrics, or a fleet's server, such as redis://cache-0:6379/0"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What is known now."""

    view: View | None = None
    read_at_s: float
    error: str | None = None


class _Watched:
    """A source, with what was last read of it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.moment = _Moment(read_at_s=time.monotonic())

    def read(self) -> _Moment:
        """Read, and keep the last view where that fails."""
        try:
            view = self._source.read()
        except SourceLost as error:
            last = self.moment
            self.moment = _Moment(view=last.view, read_at_s=last.read_at_s, error=str(error))
        else:
            self.moment = _Moment(view=view, read_at_s=time.monotonic())
        return self.moment

    def draw(self, width: int, most: int | None = None) -> RenderableType:
        """Return what is shown now; see :func:`prefixroute.cli.watch_screen.draw`."""
        moment = self.moment  # whole, whatever the other thread does
        age_s = time.monotonic() - moment.read_at_s
        return draw(
            self._source.shown,
            moment.view,
            age_s=age_s,
            error=moment.error,
            width=width,
            most=most,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the same as what JSON can say."""
        moment = self.moment
        said = {
            "source": self._source.shown,
            "at": datetime.now(UTC).isoformat(),
            "age_s": None if moment.view is None else time.monotonic() - moment.read_at_s,
            "error": moment.error,
        }
        return said | (moment.view.to_dict() if moment.view is not None else {})


def run_watch(url: str, wanted: Wanted) -> None:
    """Watch until interrupted, or once.

    Raises:
        ConfigurationError: As :func:`source_of`.
        typer.Exit: With status 1: it was to be read once, and cannot be.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, _WIDE))
    with closing(source_of(url, wanted)) as source, until_interrupted() as pause:
        watched = _Watched(source)
        if wanted.once:
            _once(watched, console, wanted, pause)
        elif console.is_terminal and not wanted.as_json:
            _live(watched, console, wanted, pause)
        else:
            _plain(watched, console, wanted, pause)


@contextmanager
def until_interrupted() -> Iterator[Callable[[float], None]]:
    """End quietly on Ctrl-C and when told to terminate: the terminal's cursor comes back.

    Gives a function that sleeps. What a signal raises is lost if it comes while a finalizer runs;
    that function then raises it.
    """
    told: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        told.append(number)
        raise KeyboardInterrupt

    def pause(seconds: float) -> None:
        until = time.monotonic() + seconds
        while not told and (left := until - time.monotonic()) > 0.0:
            time.sleep(min(left, _NOTICED_S))
        if told:
            raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(one, interrupt) for one in signals]
    try:
        with suppress(KeyboardInterrupt):
            yield pause
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler if handler is not None else signal.SIG_DFL)


def _once(
    watched: _Watched, console: Console, wanted: Wanted, pause: Callable[[float], None]
) -> None:
    """Read twice, for rates, if the first time shows that there may be some."""
    moment = watched.read()
    if moment.view is not None and moment.view.total.failures is not None:
        pause(wanted.interval_s)
        moment = watched.read()
    _print(watched, console, as_json=wanted.as_json)
    if moment.error is not None:
        raise typer.Exit(1)


def _plain(
    watched: _Watched, console: Console, wanted: Wanted, pause: Callable[[float], None]
) -> None:
    """Write one view after the other: to a file, a pipe, another program."""
    while True:
        watched.read()
        _print(watched, console, as_json=wanted.as_json)
        pause(wanted.interval_s)


def _live(
    watched: _Watched, console: Console, wanted: Wanted, pause: Callable[[float], None]
) -> None:
    """Draw it anew, also while a read takes long: its age is seen to grow."""

    def shown() -> RenderableType:
        return watched.draw(console.width, max(3, console.height - _OTHER_LINES))

    with Live(get_renderable=shown, console=console, refresh_per_second=_DRAWN_PER_S):
        while True:
            watched.read()
            pause(wanted.interval_s)


def _print(watched: _Watched, console: Console, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(watched.to_dict()), flush=True)
    else:
        console.print(watched.draw(console.width))
        if not console.is_terminal:
            console.print()
