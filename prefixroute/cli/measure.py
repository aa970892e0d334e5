"""One long prompt sent twice to one endpoint: what its cache saves."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from itertools import product
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

from prefixroute.core.reply import ReplyReader
from prefixroute.core.usage import Usage
from prefixroute.router import Router

if TYPE_CHECKING:
    import httpx

__all__ = ["Measured", "MeasuringFailed", "measure"]

_TEXT: Final = (
    "account answer brief careful check claim clear detail document draft email exact explain "
    "format guide help history index issue item language limit list manual market note order page "
    "plan policy price product project reason record report review rule sales section source step"
)
_WORDS: Final = tuple(_TEXT.split())
_TOKENS_PER_WORD: Final = 1.1
_SHORTEST_TOKENS: Final = 100
_ANSWER_TOKENS: Final = 4
_PATHS: Final = ("/chat/completions", "/completions")
_OK: Final = 200
_WORTH_IT: Final = 0.5
"""A cache that saves less of the time to first token than this share cannot be told by time."""


class MeasuringFailed(Exception):  # noqa: N818 - says what is missing in a report
    """The endpoint does not generate; says what it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the prompt took the first time and the second.

    Args:
        cold_s: Time to first token of a prompt that nobody has sent before, seconds.
        warm_s: The same of the same prompt right after, seconds.
        usage: What the second reply said of its prompt.
    """

    cold_s: float
    warm_s: float
    usage: Usage

    @property
    def caching(self) -> bool | None:
        """Whether the prompt was found again; ``None``: that cannot be told."""
        if self.usage.cached_tokens is not None:
            return self.usage.cached_tokens > 0
        return True if self.warm_s < _WORTH_IT * self.cold_s else None


def measure(router: Router, model: str, *, tokens: int, timeout_s: float) -> Measured:
    """Send a prompt of random words twice, after a short one that wakes everything up.

    An endpoint whose context is too short for it is given a shorter one; one that has no chat
    template is asked for completions.

    Args:
        router: Its only endpoint is measured.
        model: What to ask for.
        tokens: About how long the prompt is.
        timeout_s: For each step of each request.

    Raises:
        MeasuringFailed: It does not generate.
    """
    import httpx  # noqa: PLC0415 - not for other commands

    refused = ""
    lengths = [tokens]
    while lengths[-1] // 2 >= _SHORTEST_TOKENS:
        lengths.append(lengths[-1] // 2)
    with router.client() as client:
        for length, path in product(lengths, _PATHS):
            ask = _Asking(client, path, model, timeout_s)
            try:
                ask(_text(_SHORTEST_TOKENS // 4))
                prompt = _text(length)
                cold_s, _ = ask(prompt)
                warm_s, usage = ask(prompt)
            except _Refused as error:
                refused = refused or str(error)
                continue
            except httpx.HTTPError as error:
                raise MeasuringFailed(f"{type(error).__name__} in {path}: {error}") from None
            return Measured(cold_s=cold_s, warm_s=warm_s, usage=usage)
    raise MeasuringFailed(refused)


class _Refused(Exception):  # noqa: N818 - may be another length or path that is wanted
    """The endpoint cannot serve this request."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """Sends prompts and takes the time until their first token."""

    client: httpx.Client
    path: str
    model: str
    timeout_s: float

    def __call__(self, prompt: str) -> tuple[float, Usage]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": _ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.path.startswith("/chat"):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        reader = ReplyReader(events=True)
        first_s: float | None = None
        sent = time.perf_counter()
        with self.client.stream("POST", self.path, json=body, timeout=self.timeout_s) as response:
            if response.status_code != _OK:
                self._refuse(response)
            for chunk in response.iter_bytes():
                reader.feed(chunk)
                if first_s is None and reader.first_token:
                    first_s = time.perf_counter() - sent
        if reader.error is not None or first_s is None:
            raise _Refused(f"answers {reader.error or 'no token'} to {self.path}")
        usage, _ = reader.close()
        return first_s, usage or Usage()

    def _refuse(self, response: httpx.Response) -> None:
        status = response.status_code
        said = f"answers {status} to {self.path}"
        if status in (401, 403, 429) or status >= 500:
            raise MeasuringFailed(said)
        raise _Refused(said)


def _text(tokens: int) -> str:
    """Return random words that start as nothing else ever sent did."""
    words = SystemRandom().choices(_WORDS, k=max(1, round(tokens / _TOKENS_PER_WORD)))
    return f"{secrets.token_hex(8)} {' '.join(words)}"
