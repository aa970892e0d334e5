"""What engine is behind a URL, and what it says of itself: GETs that change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load import EngineLoad
from prefixroute.router import Router

__all__ = ["Engine", "Found", "look"]

_OK: Final = 200
_ERRORS: Final = range(400, 600)
_CACHE_CONFIG: Final = re.compile(
    rb'^vllm:cache_config_info\{.*?enable_prefix_caching="(\w+)"', re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of engine, and what turns on what is missing.

    Args:
        name: As people call it.
        caching: What turns prefix caching on.
        cached_tokens: What makes replies tell their cached tokens; ``None``: nothing does.
        load: What makes ``/metrics`` tell the load.
    """

    name: str
    caching: str
    cached_tokens: str | None
    load: str


_VLLM: Final = Engine(
    name="vLLM",
    caching="start it with --enable-prefix-caching",
    cached_tokens="start it with --enable-prompt-tokens-details",
    load="leave out --disable-log-stats",
)
_SGLANG: Final = Engine(
    name="SGLang",
    caching="start it without --disable-radix-cache",
    cached_tokens="start it with --enable-cache-report",
    load="start it with --enable-metrics",
)
_LLAMA: Final = Engine(
    name="llama.cpp",
    caching="start it without --no-cache-prompt",
    cached_tokens="use a newer llama-server: it always tells",
    load="start it with --metrics",
)
_TGI: Final = Engine(
    name="TGI",
    caching="start it with the environment variable PREFIX_CACHING=1",
    cached_tokens=None,
    load="its /metrics are at the port of --prometheus-port",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an endpoint says of itself.

    Args:
        error: Why nothing can be said; ``None``: it answers.
        engine: ``None``: none that is known.
        version: ``None``: it does not say.
        models: What it serves.
        caching: Whether it says that prefix caching is on; ``None``: it does not say.
        load: What its metrics say; ``None``: they do not.
        note: What kept the metrics from being read.
    """

    error: str | None = None
    engine: Engine | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    caching: bool | None = None
    load: EngineLoad | None = None
    note: str | None = None


def look(router: Router, endpoint: Endpoint, *, timeout_s: float) -> Found:
    """Ask an endpoint what it is; never raises for what it answers, or that it does not.

    Args:
        router: Has the endpoint.
        endpoint: Who is asked.
        timeout_s: For each step of each request.
    """
    found: dict[str, Any] = {}

    def get(path: str) -> tuple[int, bytes]:
        return router.ask(endpoint, path, timeout_s=timeout_s)

    try:
        status, body = get("/v1/models")
        if status in _ERRORS:
            found["error"] = _refusal(status)
            return Found(**found)
        models = _table(body).get("data")
        listed = (
            [one for one in models if isinstance(one, dict)] if isinstance(models, list) else []
        )
        found["models"] = tuple(str(one.get("id")) for one in listed)
        owners = {str(one.get("owned_by")) for one in listed}
        metrics = get("/metrics")
        found.update(_read_metrics(*metrics))
        found.update(_identify(get, owners, metrics[1]))
    except Exception as error:  # noqa: BLE001 - whatever keeps it from answering
        return Found(error=f"{type(error).__name__}: {error}".removesuffix(": "))
    return Found(**found)


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"answers {status}: it wants a key, give --api-key-env"
    return f"answers {status} to /v1/models"


def _identify(
    get: Callable[[str], tuple[int, bytes]], owners: set[str], metrics: bytes
) -> dict[str, Any]:
    """Return engine, version and what it says of its cache."""
    if "vllm" in owners:
        says = _CACHE_CONFIG.search(metrics)
        caching = {b"True": True, b"False": False}.get(says[1]) if says else None
        return {
            "engine": _VLLM,
            "version": _text(_json(get, "/version"), "version"),
            "caching": caching,
        }
    if "llamacpp" in owners:
        return {"engine": _LLAMA, "version": _text(_json(get, "/props"), "build_info")}
    if "sglang" in owners:
        info = _json(get, "/server_info") or _json(get, "/get_server_info")
        off = info.get("disable_radix_cache")
        caching = not off if isinstance(off, bool) else None
        return {"engine": _SGLANG, "version": _text(info, "version"), "caching": caching}
    info = _json(get, "/info")
    if "model_id" in info and "max_total_tokens" in info:
        return {"engine": _TGI, "version": _text(info, "version")}
    return {}


def _read_metrics(status: int, body: bytes) -> dict[str, Any]:
    try:
        from prefixroute.signals.metrics import read_load  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError:
        return {"note": "to read metrics: pip install 'prefixroute[prometheus]'"}
    return {"load": read_load(body) if status == _OK else None}


def _json(get: Callable[[str], tuple[int, bytes]], path: str) -> Mapping[str, Any]:
    status, body = get(path)
    return _table(body) if status == _OK else {}


def _table(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) and value else None
