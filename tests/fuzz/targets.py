"""What is fuzzed, and what must hold of any input whatever."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import httpx
import msgspec

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load_header import read_load_header
from prefixroute.core.prompt import Prompt
from prefixroute.core.reply import ReplyReader
from prefixroute.core.request import read_prompt
from prefixroute.core.router import RouterCore
from prefixroute.errors import ConfigurationError
from prefixroute.transports.asked import retry_after_s
from prefixroute.transports.replies import Watch
from tests.core.support import make_router

PATHS: Final = (
    None, "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate",
    "/completion", "/v1/embeddings", "/tokenize",
)  # fmt: skip


def prompt(data: bytes) -> None:
    """A body never raises, is read alike twice, and alike as bytes and as a mapping."""
    path = PATHS[data[0] % len(PATHS)] if data else None
    body = data[1:]
    read = read_prompt(body, path=path)
    check(read)
    assert read_prompt(body, path=path) == read
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    if isinstance(decoded, dict):
        assert read_prompt(decoded, path=path).chain == read.chain
    try:  # what a client has in its hands, before it writes JSON in its own way
        again = json.dumps(decoded, ensure_ascii=len(body) % 2 == 0).encode(
            "utf-8", "surrogatepass"
        )
    except (ValueError, RecursionError):
        return
    if isinstance(decoded, dict) and not has_floats(decoded):
        assert read_prompt(again, path=path).chain == read.chain


def check(read: Prompt) -> None:
    """Hold a prompt to what every prompt promises."""
    assert len(read.chain) == len(read.ends)
    assert all(0 <= value < 2**64 for value in read.chain)
    assert list(read.ends) == sorted(read.ends)
    assert read.size >= 0


def has_floats(value: object) -> bool:
    """Return whether a value holds a number that may be written in several ways."""
    if isinstance(value, Mapping):
        return any(has_floats(one) for one in value.values())
    if isinstance(value, list):
        return any(has_floats(one) for one in value)
    return isinstance(value, float) or (isinstance(value, int) and abs(value) >= 2**63)


def reply(data: bytes) -> None:
    """A reply never raises, and means the same however it was cut into chunks."""
    if len(data) < 2:
        return
    events, step, body = data[0] % 2 == 0, data[1] % 64 + 1, data[2:]
    whole = outcome(events, [body])
    assert outcome(events, [body[at : at + step] for at in range(0, len(body), step)]) == whole
    usage = whole[3]
    if usage is not None:
        counts = (usage.prompt_tokens, usage.cached_tokens)
        assert all(count is None or count >= 0 for count in counts)


def outcome(events: bool, chunks: list[bytes]) -> tuple[bool, int | None, bool, Any, str | None]:
    """Return all that a reader tells of a body."""
    reader = ReplyReader(events=events)
    for chunk in chunks:
        reader.feed(chunk)
    ended = reader.ended
    usage, name = reader.close()
    return reader.first_token, reader.error, ended, usage, name


def headers(data: bytes) -> None:
    """Headers never raise; a wait is within its range; a watched body ends its lease once."""
    name, _, value = data.partition(b"\n")
    given = httpx.Headers(
        [(name or b"x", value), (b"retry-after", value), (b"x-session-id", value)]
    )
    seconds = retry_after_s(given, lambda: 1_700_000_000.0)
    assert seconds is None or (0.0 <= seconds <= 3600.0 and not math.isnan(seconds))
    router = one_router()
    read = router.read(b'{"prompt": "x"}', path=value.decode("latin-1"), headers=given)
    check(read)
    lease = router.lease(read)
    load = read_load_header(value.decode("latin-1"))
    assert load is None or (0 <= load.waiting <= 1e6 and 0 <= (load.running or 0) <= 1e6)
    assert load is None or load.kv_usage is None or 0.0 <= load.kv_usage <= 1.0
    lease.heard_load(value.decode("latin-1"))
    watch = Watch(
        lease,
        kind=given.get("content-type", value.decode("latin-1")).lower(),
        encoding=given.get("content-encoding", "gzip" if len(value) % 2 else ""),
        keep_id=True,
        digest=lambda: None,
        on_failure=lambda: None,
        closed=lambda: False,
    )
    watch.feed(value)
    watch.ended()
    assert router.stats().in_flight == 0


@cache
def one_router() -> RouterCore:
    """Return the router that all inputs share."""
    return make_router(2)


def url(data: bytes) -> None:
    """A URL is refused or normalised once and for all, and its path mapping stays below it."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        endpoint = Endpoint(text)
    except ConfigurationError:
        return
    assert Endpoint(endpoint.url).url == endpoint.url
    assert repr(endpoint)


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "prompt": prompt,
    "reply": reply,
    "headers": headers,
    "url": url,
}
