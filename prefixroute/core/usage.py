"""What a reply says of its prompt: how many tokens, and how many of them were cached.

Knows the usage of OpenAI (chat, completions, responses), Anthropic, vLLM, SGLang, llama.cpp and
DeepSeek. What a reply does not say is unknown, not zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

__all__ = ["Usage", "find_id", "find_usage", "first_known", "read_reply", "read_usage"]

_NAMES: Final = (b'"usage"', b'"meta_info"', b'"timings"')
_OBJECT: Final = re.compile(rb"\s*:\s*\{")
_LOOKED_AT: Final = 32
"""Occurrences of a name that are looked at, from the end: some events carry an empty one."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a prompt as a reply reports them; ``None``: not reported."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def read_usage(reply: object) -> Usage | None:
    """Return the usage in a decoded reply or event; ``None``: it has none.

    Of a list (SGLang's replies to a batch) the sums, of what all of them report.
    """
    if isinstance(reply, list):
        return _total([read_usage(one) for one in reply])
    if not isinstance(reply, Mapping):
        return None
    for place in (reply, reply.get("response"), reply.get("message")):
        if isinstance(place, Mapping):
            found = first_known(_from_usage(place.get("usage")), _from_engine(place))
            if found is not None:
                return found
    return None


def first_known(*reports: Usage | None) -> Usage | None:
    """Return the first report with a count of cached tokens, else the first report."""
    known = [report for report in reports if report is not None]
    return next((r for r in known if r.cached_tokens is not None), known[0] if known else None)


def _total(reports: Iterable[Usage | None]) -> Usage | None:
    known = list(reports)
    if not known:
        return None
    prompt = [None if one is None else one.prompt_tokens for one in known]
    cached = [None if one is None else one.cached_tokens for one in known]
    if None in prompt and None in cached:
        return None
    return Usage(prompt_tokens=_sum(prompt), cached_tokens=_sum(cached))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _from_usage(usage: object) -> Usage | None:
    if not isinstance(usage, Mapping):
        return None
    prompt = _count(usage.get("prompt_tokens"))
    if prompt is not None:
        cached = _count(_detail(usage, "prompt_tokens_details"))
        if cached is None:
            cached = _count(usage.get("prompt_cache_hit_tokens"))
        return Usage(prompt_tokens=prompt, cached_tokens=cached)
    prompt = _count(usage.get("input_tokens"))
    if prompt is None:
        return None
    if "input_tokens_details" in usage:  # /v1/responses
        cached = _count(_detail(usage, "input_tokens_details"))
        return Usage(prompt_tokens=prompt, cached_tokens=cached)
    # Anthropic counts the cached tokens apart from input_tokens.
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    return Usage(prompt_tokens=prompt + (written or 0) + (read or 0), cached_tokens=read)


def _detail(usage: Mapping[Any, Any], name: str) -> object:
    details = usage.get(name)
    return details.get("cached_tokens") if isinstance(details, Mapping) else None


def _from_engine(reply: Mapping[Any, Any]) -> Usage | None:
    meta = reply.get("meta_info")  # SGLang's /generate
    if isinstance(meta, Mapping):
        prompt = _count(meta.get("prompt_tokens"))
        if prompt is not None:
            return Usage(prompt_tokens=prompt, cached_tokens=_count(meta.get("cached_tokens")))
    timings = reply.get("timings")  # llama.cpp
    if isinstance(timings, Mapping):
        computed, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
        if computed is not None and cached is not None:
            return Usage(prompt_tokens=computed + cached, cached_tokens=cached)
    return None


class _Reply(msgspec.Struct, gc=False):
    """The fields of a reply that are read; the rest is skipped while scanning."""

    id: Any = None
    usage: Any = None
    meta_info: Any = None
    timings: Any = None


_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_replies = msgspec.json.Decoder(list[_Reply]).decode
_decode_start = json.JSONDecoder().raw_decode
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]+)"')


def read_reply(body: bytes) -> tuple[Usage | None, str | None]:
    """Return the usage and the id of a whole JSON body; never raises."""
    with suppress(*_UNREADABLE):
        reply = _decode_reply(body)
        return read_usage(_fields(reply)), reply.id if isinstance(reply.id, str) else None
    with suppress(*_UNREADABLE):
        return read_usage([_fields(reply) for reply in _decode_replies(body)]), None
    return find_usage(body), find_id(body)


def _fields(reply: _Reply) -> dict[str, object]:
    return {"usage": reply.usage, "meta_info": reply.meta_info, "timings": reply.timings}


def find_usage(part: bytes) -> Usage | None:
    """Return the last usage in a part of a body, wherever that was cut; never raises.

    Quotes within a text are escaped, so that what a model writes about usage is not taken for one.
    """
    return first_known(*[_find(part, name) for name in _NAMES])


def _find(part: bytes, name: bytes) -> Usage | None:
    end = len(part)
    for _ in range(_LOOKED_AT):
        at = part.rfind(name, 0, end)
        if at < 0:
            return None
        match = _OBJECT.match(part, at + len(name))
        if match is not None:
            text = part[match.end() - 1 :].decode("utf-8", "replace")
            try:
                value = _decode_start(text)[0]
            except (ValueError, RecursionError):
                value = None
            found = read_usage({name[1:-1].decode(): value})
            if found is not None:
                return found
        end = at
    return None


def find_id(part: bytes) -> str | None:
    """Return the first id in the start of a body."""
    match = _ID.search(part)
    return match[1].decode("utf-8", "replace") if match else None
