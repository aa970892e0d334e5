"""``prefixroute check``: what is behind each URL, and what turns on what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table

from prefixroute.cli.measure import Measured, MeasuringFailed, measure
from prefixroute.cli.probe import Found, look
from prefixroute.configuration import read_file
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.failover import Failover
from prefixroute.core.tables import from_environment
from prefixroute.core.urls import shown_url
from prefixroute.errors import ConfigurationError
from prefixroute.router import Router

__all__ = ["Checked", "Wanted", "endpoints_of", "run_check"]

_AT_ONCE: Final = 16
"""Endpoints that are asked at the same time what they are; prompts go to one after the other, so
that replicas of one machine do not slow each other down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How endpoints are checked.

    Args:
        model: What to ask for; ``None``: the first that each serves.
        tokens: About how long the prompt is.
        timeout_s: For each step of each request.
        generate: Whether prompts are sent at all.
    """

    model: str | None
    tokens: int
    timeout_s: float
    generate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is known of one endpoint.

    Args:
        endpoint: Which one.
        found: What it says of itself.
        measured: What a prompt took; ``None``: none was sent, or it failed.
        failure: Why none was answered.
    """

    endpoint: Endpoint
    found: Found
    measured: Measured | None = None
    failure: str | None = None

    @property
    def error(self) -> str | None:
        """Why it cannot be used as it is; ``None``: it can."""
        return self.found.error or self.failure

    @property
    def caching(self) -> bool | None:
        """Whether prefixes are found again, by its replies, by its own word or by its times."""
        if self.measured is None:
            return self.found.caching
        if self.measured.usage.cached_tokens is not None or self.found.caching is None:
            return self.measured.caching
        return self.found.caching

    @property
    def advice(self) -> tuple[str, ...]:
        """What turns on what is missing."""
        engine, measured = self.found.engine, self.measured
        said: list[str] = []
        if self.found.error is not None:
            return ()
        untold = measured is not None and measured.usage.cached_tokens is None
        if self.caching is False:
            said.append("prefixes are not cached" + (f": {engine.caching}" if engine else ""))
        if untold and engine is None:
            said.append("its replies do not tell cached tokens, and the engine is not known")
        elif untold and engine is not None and engine.cached_tokens is not None:
            said.append(f"its replies do not tell cached tokens: {engine.cached_tokens}")
        if self.found.note is not None:
            said.append(self.found.note)
        elif self.found.load is None and engine is not None:
            said.append(f"its /metrics do not tell its load: {engine.load}")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        found, measured = self.found, self.measured
        load = found.load
        return {
            "url": shown_url(self.endpoint.url),
            "reachable": found.error is None,
            "error": self.error,
            "engine": found.engine.name if found.engine else None,
            "version": found.version,
            "models": list(found.models),
            "prefix_caching": self.caching,
            "reports_cached_tokens": measured.usage.cached_tokens is not None if measured else None,
            "prompt_tokens": measured.usage.prompt_tokens if measured else None,
            "cached_tokens": measured.usage.cached_tokens if measured else None,
            "reports_load": load is not None,
            "running": load.running if load else None,
            "waiting": load.waiting if load else None,
            "ttft_cold_s": measured.cold_s if measured else None,
            "ttft_warm_s": measured.warm_s if measured else None,
            "advice": list(self.advice),
        }


def endpoints_of(
    urls: Sequence[str], *, config: Path | None, api_key_env: str | None
) -> list[Endpoint]:
    """Return whom to check: those of the command line, and those of a file.

    Raises:
        ConfigurationError: There are none, or something cannot work.
    """
    key = None
    if api_key_env is not None:
        key = from_environment(api_key_env, "--api-key-env", os.environ)
    found = [Endpoint(url, api_key=key) for url in urls]
    if config is not None:
        found += read_file(config).endpoints
    if not found:
        raise ConfigurationError("give at least one URL, or --config with a file that has some")
    return list(dict.fromkeys(found))


def run_check(endpoints: Sequence[Endpoint], wanted: Wanted, *, as_json: bool) -> None:
    """Check endpoints, and print a table or one JSON object.

    Raises:
        typer.Exit: With status 1: one cannot be reached, or does not generate.
    """
    routers = [Router([one], failover=Failover(max_attempts=1), peers=1) for one in endpoints]
    console = Console(stderr=True)
    try:
        with console.status("asking what they are"):
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                looks = [
                    threads.submit(look, router, one, timeout_s=wanted.timeout_s)
                    for router, one in zip(routers, endpoints, strict=True)
                ]
            found = [one.result() for one in looks]
        checked = []
        for router, endpoint, one in zip(routers, endpoints, found, strict=True):
            with console.status(f"sending prompts to {shown_url(endpoint.url)}"):
                checked.append(_checked(router, endpoint, one, wanted))
    finally:
        for router in routers:
            router.close()
    if as_json:
        print(json.dumps({"endpoints": [one.to_dict() for one in checked]}))
    else:
        _show(checked)
    if any(one.error is not None for one in checked):
        raise typer.Exit(1)


def _checked(router: Router, endpoint: Endpoint, found: Found, wanted: Wanted) -> Checked:
    if found.error is not None or not wanted.generate:
        return Checked(endpoint=endpoint, found=found)
    model = wanted.model or next(iter(found.models), None)
    if model is None:
        return Checked(endpoint=endpoint, found=found, failure="it lists no model: give --model")
    try:
        measured = measure(router, model, tokens=wanted.tokens, timeout_s=wanted.timeout_s)
    except MeasuringFailed as error:
        return Checked(endpoint=endpoint, found=found, failure=str(error))
    return Checked(endpoint=endpoint, found=found, measured=measured)


def _show(checked: Sequence[Checked]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)  # a URL in pieces cannot be copied
    for name in ("engine", "models", "prefix cache", "cached tokens", "load"):
        table.add_column(name, overflow="fold")
    for name in ("TTFT cold", "warm"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in checked:
        table.add_row(shown_url(one.endpoint.url), *_cells(one))
    console.print(table)
    for one in checked:
        for line in [one.error] if one.error is not None else []:
            console.print(f"{shown_url(one.endpoint.url)}: {line}", markup=False, soft_wrap=True)
        for line in one.advice:
            console.print(f"{shown_url(one.endpoint.url)}: {line}", markup=False, soft_wrap=True)


def _cells(one: Checked) -> list[str]:
    found, measured = one.found, one.measured
    if found.error is not None:
        return ["unreachable"]
    engine = f"{found.engine.name} {found.version or ''}".strip() if found.engine else "unknown"
    usage = measured.usage if measured else None
    if usage is None:
        cached = "-"
    elif usage.cached_tokens is None:
        cached = "not told"
    else:
        cached = f"{usage.cached_tokens} of {usage.prompt_tokens}"
    load = found.load
    return [
        engine,
        ", ".join(found.models) or "none",
        {True: "on", False: "off", None: "unknown"}[one.caching],
        cached,
        "not told" if load is None else f"{load.running} running, {load.waiting} waiting",
        "-" if measured is None else f"{measured.cold_s * 1e3:.0f} ms",
        "-" if measured is None else f"{measured.warm_s * 1e3:.0f} ms",
    ]
