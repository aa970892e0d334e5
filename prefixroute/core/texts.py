"""Prompts that are no chat: a text, a list of token ids, a list of both, or a batch of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from prefixroute.core.content import (
    TOKEN_BYTES,
    Content,
    canonical_json,
    is_empty,
    media_part,
    size_of,
    text_part,
)
from prefixroute.core.hashing import Part
from prefixroute.core.pieces import pack_ids
from prefixroute.core.prompt import BYTES_PER_TOKEN, KeySource

__all__ = ["IDS_HEAD", "TEXT_STEPS", "read_prompts"]

IDS_HEAD: Final = b"I"
"""Head of a prompt of token ids alone."""

TEXT_STEPS: Final = (128, 256, 512)
"""Boundaries of a plain text before its first whole block: it has no messages to be cut at."""

_PER_TOKEN: Final = int(BYTES_PER_TOKEN)

Json: TypeAlias = Any


def read_prompts(prompt: Json, media: Iterable[Json] = ()) -> Content:
    """Return the content of ``"x"``, ``["a", "b"]``, ``[1, 2]``, ``[[1, 2], [3]]`` or ``[1, "a"]``.

    Args:
        prompt: One prompt or a batch; decoded from JSON, or any sequence of str or ints.
        media: What the request carries beside its text.

    Returns:
        Content whose source is ``NONE`` if no prompt of the batch can be read or all are empty.
    """
    batch = [parts for item in _batch(prompt) if (parts := _prompt_parts(item))]
    if not batch:
        return Content(source=KeySource.NONE)
    first, others, several = batch[0], sum(map(size_of, batch[1:])), len(batch) > 1
    first += [media_part(value) for value in media if not is_empty(value)]
    if any(kind != b"i" for kind, _, _ in first):
        return Content(
            source=KeySource.TEXT,
            rest=[(b"P", first)],
            steps=TEXT_STEPS,
            others=others,
            batch=several,
        )
    return Content(
        source=KeySource.TOKENS,
        rest=[(IDS_HEAD, [(kind, data, size // _PER_TOKEN) for kind, data, size in first])],
        steps=[step * TOKEN_BYTES // _PER_TOKEN for step in TEXT_STEPS],
        others=others // _PER_TOKEN,
        batch=several,
        counted=True,
    )


def _batch(prompt: Json) -> list[Json]:
    """Return the prompts of a batch; a list with a token id in it is one prompt."""
    if isinstance(prompt, str | dict):
        return [prompt]
    items = _as_list(prompt)
    return [items] if any(map(_is_id_type, set(map(type, items)))) else items


def _as_list(value: Json) -> list[Json]:
    if isinstance(value, list):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    to_list = getattr(value, "tolist", None)  # an array of NumPy's is no Sequence
    items = to_list() if to_list is not None else None
    return items if isinstance(items, list) else []


def _is_id_type(kind: type) -> bool:
    return kind is int or (kind is not bool and hasattr(kind, "__index__"))


def _prompt_parts(prompt: Json) -> list[Part]:
    """Return the parts of one prompt, sizes in bytes of text; none if it can't be read."""
    if isinstance(prompt, str):
        return [text_part(prompt)] if prompt else []
    if isinstance(prompt, dict):  # llama.cpp's
        text, media = prompt.get("prompt_string"), prompt.get("multimodal_data")
        parts = [text_part(text)] if isinstance(text, str) and text else []
        return parts if is_empty(media) else [*parts, media_part(media)]
    items = _as_list(prompt)
    return [_ids_part(items)] if set(map(type, items)) == {int} else _mixed_parts(items)


def _mixed_parts(items: list[Json]) -> list[Part]:
    parts: list[Part] = []
    run: list[int] = []
    for item in [*items, ""]:
        if not isinstance(item, str):
            if not _is_id_type(type(item)):
                return []
            run.append(item)
            continue
        if run:
            parts.append(_ids_part(run))
            run = []
        if item:
            parts.append(text_part(item))
    return parts


def _ids_part(ids: Sequence[int]) -> Part:
    size = len(ids) * _PER_TOKEN
    try:
        return (b"i", pack_ids(ids), size)
    except OverflowError:  # larger than any token id
        return (b"g", canonical_json([int(i) for i in ids]), size)
