"""Where tiktoken's encodings get their vocabulary from, without tiktoken's own download.

That one has no timeout: with a host that never answers it hangs, and all threads behind it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from prefixroute.errors import ConfigurationError

if TYPE_CHECKING:
    import tiktoken

__all__ = ["MissingVocabulary", "Source", "build_encoding", "download", "find"]

_GZIP: Final = b"\x1f\x8b"
_LARGEST: Final = 2**26
_SAME: Final = {"gpt2": "r50k_base"}  # whose vocabulary is one file rather than two
_LOADER: Final = "load_tiktoken_bpe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A vocabulary: where it is published, and what its SHA-256 must be."""

    url: str
    sha256: str | None

    @property
    def cached(self) -> Path | None:
        """Where tiktoken keeps its copy; ``None``: it is told to keep none."""
        folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
        if folder == "":
            return None
        name = hashlib.sha1(self.url.encode(), usedforsecurity=False).hexdigest()
        return Path(folder or Path(tempfile.gettempdir()) / "data-gym-cache") / name

    def check(self, data: bytes, what: str) -> bytes:
        """Return the data, unzipped, if it is this vocabulary.

        Raises:
            MissingVocabulary: It is another one.
        """
        plain = gzip.decompress(data) if data.startswith(_GZIP) else data
        if self.sha256 is not None and hashlib.sha256(plain).hexdigest() != self.sha256:
            raise MissingVocabulary(f"{what} is not the vocabulary that is published at {self.url}")
        return plain


class MissingVocabulary(Exception):  # noqa: N818 - a state
    """There is no vocabulary here; ``source`` says where it is published, if that may help."""

    def __init__(self, message: str, source: Source | None = None) -> None:
        super().__init__(message)
        self.source = source


Vocabulary: TypeAlias = "bytes | str | os.PathLike[str] | None"


def find(source: Source, given: Vocabulary) -> bytes:
    """Return a vocabulary from what was given, else from tiktoken's cache.

    Raises:
        MissingVocabulary: It is not there, or is another one.
    """
    if isinstance(given, bytes):
        return source.check(given, "vocabulary= given as bytes")
    path = source.cached if given is None else Path(given)
    try:
        if path is None:
            raise FileNotFoundError
        return source.check(path.read_bytes(), str(path))
    except (OSError, EOFError) as error:
        remedy = "give vocabulary= a file or its bytes, or set TIKTOKEN_CACHE_DIR to where it is"
        text = f"no vocabulary in {path} ({type(error).__name__}): {remedy}"
    except MissingVocabulary as error:
        text = str(error)
    raise MissingVocabulary(text, source if given is None else None)


def download(source: Source, timeout_s: float) -> bytes:
    """Fetch a vocabulary, within ``timeout_s`` altogether, and keep it where tiktoken does.

    Raises:
        Exception: Whatever went wrong; the HTTP library's own errors among it.
    """
    import httpx  # noqa: PLC0415 - only who downloads needs it

    deadline, chunks, size = time.monotonic() + timeout_s, [], 0
    with httpx.stream("GET", source.url, timeout=timeout_s, follow_redirects=True) as response:
        response.raise_for_status()
        for chunk in response.iter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if time.monotonic() > deadline or size > _LARGEST:
                raise TimeoutError(f"{source.url}: {size} bytes came within {timeout_s} s")
    data = source.check(b"".join(chunks), source.url)
    _keep(source.cached, data)
    return data


def _keep(path: Path | None, data: bytes) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        Path(file.name).replace(path)  # at once: another process may be reading
    except OSError:
        pass  # the next start fetches it again


def build_encoding(name: str, read: Callable[[Source], bytes]) -> tiktoken.Encoding:
    """Return an encoding of tiktoken's, whose vocabulary is read by ``read``.

    tiktoken's recipe for the encoding is run with another loader in place of its own.

    Raises:
        ConfigurationError: tiktoken knows no encoding of this name, or it is not made like its own.
    """
    import tiktoken  # noqa: PLC0415 - an extra
    import tiktoken.registry  # noqa: PLC0415

    names = tiktoken.list_encoding_names()
    recipes: Mapping[str, Any] = tiktoken.registry.ENCODING_CONSTRUCTORS or {}
    recipe = recipes.get(_SAME.get(name, name))
    if recipe is None:
        raise ConfigurationError(
            f"TiktokenTokenizer({name!r}): tiktoken knows no such encoding; it knows "
            f"{', '.join(sorted(names))}, and any other can be given as a tiktoken.Encoding"
        )
    scope = dict(getattr(recipe, "__globals__", {}))
    if not callable(scope.get(_LOADER)):
        raise ConfigurationError(
            f"TiktokenTokenizer({name!r}): this encoding is not made by {_LOADER}(); give the "
            "tiktoken.Encoding itself"
        )

    def load(url: str, expected_hash: str | None = None) -> dict[bytes, int]:
        return _ranks(read(Source(url=url, sha256=expected_hash)))

    scope[_LOADER] = load
    for other, function in recipes.items():  # some recipes start from another one
        if getattr(function, "__globals__", None) is recipe.__globals__:
            scope[other] = FunctionType(function.__code__, scope)
    return tiktoken.Encoding(**FunctionType(recipe.__code__, scope)())


def _ranks(data: bytes) -> dict[bytes, int]:
    lines = (line.split() for line in data.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}
