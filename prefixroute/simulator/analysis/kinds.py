"""What it is that varies in a text: recognised by its look, and masked where it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

__all__ = ["PATTERN", "kind_of", "masked", "named", "placeholder", "remedy"]

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DAY: Final = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_TIME: Final = (
    r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?"
    r"(?:\s?(?:Z\b|UTC|GMT|[+-]\d{2}:?\d{2}\b))?"
)
_WRITTEN: Final = (
    rf"(?:{_DAY},?\s)?(?:{_MONTH}\s\s?\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s\d{{4}}\b)?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}(?:,?\s\d{{4}}\b)?)"
)
_NUMERIC: Final = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2}))"

PATTERN: Final = re.compile(
    r"(?<![\w])(?:"
    rf"(?P<timestamp>{_DAY},?\s{_MONTH}\s+\d{{1,2}}\s{_TIME}\s\d{{4}}"
    rf"|(?:{_NUMERIC}|{_WRITTEN})(?:T|,?\s(?:at\s)?|_){_TIME})"
    rf"|(?P<date>{_NUMERIC}(?![\w.-]\w)|{_WRITTEN}|{_DAY}\b)"
    rf"|(?P<time>{_TIME})"
    r"|(?P<uuid>[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})"
    r"|(?P<email>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,4})"
    r"|(?P<epoch>1\d{9}(?:\.\d{1,9})?|1\d{12}|1\d{15}|1\d{18})"
    r"|(?P<hex>(?:0x)?(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,128})"
    r"|(?P<id>(?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z])[A-Za-z0-9][\w-]{7,200})"
    r"|(?P<number>\d{1,64}(?:[.,]\d{1,9})*)"
    r")(?![\w])"
)
"""Every alternative is bounded: no text makes it slow."""

_NAMES: Final = {
    "timestamp": "a timestamp",
    "date": "a date",
    "time": "a time of day",
    "uuid": "a UUID",
    "email": "an e-mail address",
    "epoch": "an epoch timestamp",
    "hex": "a hex id",
    "id": "a random id",
    "number": "a number",
    "counter": "a counter",
    "user": "a user's name",
    "whitespace": "whitespace that differs",
    "text": "text that varies",
    "order": "tools in varying order",
    "keys": "tools with JSON keys in varying order",
    "field": "a value of its own in each request",
}

_TO_THE_END: Final = "move it to the end of the prompt: into the last user message"
_REMEDIES: Final = {
    "timestamp": _TO_THE_END + ", or let a tool tell the time",
    "epoch": _TO_THE_END + ", or let a tool tell the time",
    "time": _TO_THE_END + ", or let a tool tell the time",
    "date": _TO_THE_END + "; a date that changes once a day costs little, one of each user more",
    "uuid": "leave it out of the prompt (send it as a header), or " + _TO_THE_END,
    "hex": "leave it out of the prompt (send it as a header), or " + _TO_THE_END,
    "id": "leave it out of the prompt (send it as a header), or " + _TO_THE_END,
    "counter": "leave it out of the prompt, or " + _TO_THE_END,
    "whitespace": "build the prompt from one template, so that blanks and line ends are the same",
    "order": "sort the tools by name before each request",
    "keys": "serialise tool schemas in one way: the same code everywhere, or sorted keys",
    "field": "leave it out, or give it the same value wherever prompts may share a cache",
}
_USER: Final = re.compile(
    r"\b(?:user|name|customer|client|hello|hi|dear|assisting|helping|account|tenant|for)"
    r"(?:\s(?:is|are))?\W{0,4}$",
    re.IGNORECASE,
)
_WORDS: Final = 4
"""Words of a label that are shown in front of what varies."""


def kind_of(values: Sequence[str], before: str) -> str:
    """Return what values at one place are: a key for :func:`named`.

    Args:
        values: What stood there, in the order of the requests.
        before: The text in front of it.
    """
    if not any(value.strip() for value in values):
        return "whitespace"
    found = {_look(value) for value in values if value.strip()}
    if len(found) == 1 and (kind := next(iter(found))) is not None:
        return "counter" if kind == "number" and _counts_up(values) else kind
    if found <= {"timestamp", "date", "time"}:
        return "timestamp"
    if found <= {"hex", "id", "number", "epoch", "uuid"}:
        return "id"
    short = all(len(value.split()) <= _WORDS for value in values)
    return "user" if short and _USER.search(before.rstrip(" \"'*<[(")) else "text"


def _look(value: str) -> str | None:
    match = PATTERN.fullmatch(value.strip(" \t\n\"'.,;()[]"))
    return match.lastgroup if match is not None else None


def _counts_up(values: Sequence[str]) -> bool:
    numbers = [int(value) for value in values if value.strip().isdecimal()]
    steps = sum(after > before for before, after in pairwise(numbers))
    return len(numbers) > 2 and steps >= 0.9 * (len(numbers) - 1)


def named(kind: str) -> str:
    """Return a kind in words."""
    return _NAMES[kind]


def placeholder(kind: str) -> str:
    """Return what is shown in a value's place."""
    return f"<{named(kind).removeprefix('a ').removeprefix('an ')}>"


def remedy(kind: str) -> str:
    """Return what to do about a kind."""
    return _REMEDIES.get(kind, _TO_THE_END)


def masked(before: str, kind: str) -> str:
    """Return the label in front of a place, and what is there, without any literal value.

    Args:
        before: The text in front of it; only its last words of the last line are shown, with
            whatever looks like a value masked.
        kind: What varies.
    """
    line = before[-80:].rpartition("\n")[2]
    line = PATTERN.sub(lambda match: placeholder(match.lastgroup or "text"), line)
    words = line.split(" ")
    start = max(0, len(words) - _WORDS - (not words[-1]))
    return " ".join(words[start:])[-48:] + placeholder(kind)
