"""``FileSource``: endpoints in a file of TOML, JSON or YAML, looked at again and again."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

from prefixroute.core.checks import refusal
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.membership import check_endpoints
from prefixroute.errors import ConfigurationError, SourceUnavailable
from prefixroute.signals.sources.listing import (
    EndpointSettings,
    Listing,
    Reader,
    Source,
    check_settings,
    need,
    suggestion,
)

__all__ = ["FileSource"]

_SETTLES_S: Final = 0.25
"""What has changed is believed when it is the same after so long: a file is not written at once,
and half a list is a list too."""
_LARGEST_BYTES: Final = 4 << 20
_KEYS: Final = (
    "url", "id", "weight", "models", "tier", "max_in_flight", "api_key", "auth_header", "headers",
    "draining",
)  # fmt: skip

_Parse: TypeAlias = Callable[[str], Any]


class _MalformedError(Exception):
    """The text is none of its format; says where, and nothing of what is there."""


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """Endpoints in a file, which may be rewritten, replaced by renaming, or be a ConfigMap's.

    The file is a list of URLs and tables, or has one under ``endpoints``. A table has a ``url`` and
    what :class:`Endpoint` takes; ``draining = true`` sends it no new requests. The whole file is
    read each time, and what is new is believed once it has stayed the same for a quarter of a
    second. A file that is missing, malformed or wrong in any place changes nothing.

    Args:
        path: Its suffix tells the format: ``.toml``, ``.json``, ``.yaml`` or ``.yml`` (YAML needs
            the extra ``yaml``).
        settings: Of every endpoint that does not say otherwise: a key that is not to be in the
            file, say.

    Raises:
        ConfigurationError: Another suffix, a missing extra, or settings that cannot work.
    """

    path: Path | str
    _: KW_ONLY
    settings: EndpointSettings = field(default_factory=EndpointSettings, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Check the settings; a relative path stays what it is now."""
        given: object = self.path
        if not isinstance(given, str | Path) or _suffix(given) not in _FORMATS:
            rule = f"a path that ends with one of {', '.join(_FORMATS)}"
            raise refusal("FileSource", "path", given, rule)
        if _FORMATS[_suffix(given)][1] is _yaml:
            need(f"FileSource({str(given)!r})", "yaml", "PyYAML", "yaml")
        check_settings("FileSource", self.settings, scheme="https")
        object.__setattr__(self, "path", str(Path(given).absolute()))

    def open(self) -> Reader:
        """Return what looks at the file."""
        return _File(self)


class _File(Reader):
    backs_off = False

    def __init__(self, source: FileSource) -> None:
        self._path, self._settings = Path(source.path), source.settings
        self._digest = self._seen = b""  # of what the listing was made of, and of what came since
        self._listing: Listing | None = None
        self._failed: SourceUnavailable | None = None

    def read(self) -> Listing:
        text = self._text()
        digest = blake2b(text).digest()
        last = self._listing
        if last is None or digest == self._seen:  # it is the first one, or has settled
            last = self._take(text)
            self._digest = digest
        elif digest != self._digest:
            self._seen = digest
            if self._failed is not None:
                raise self._failed
            return replace(last, again_in_s=_SETTLES_S)
        self._seen, self._failed = b"", None
        return last

    def _take(self, text: bytes) -> Listing:
        try:
            self._listing = listing = parsed(self._path, self._settings, text)
        except SourceUnavailable as error:
            self._failed = error
            raise
        return listing

    def _text(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                text = file.read(_LARGEST_BYTES + 1)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise SourceUnavailable(f"{self._path}: {why}") from None
        if len(text) > _LARGEST_BYTES:
            raise SourceUnavailable(f"{self._path}: larger than {_LARGEST_BYTES} bytes")
        return text


def _suffix(path: Path | str) -> str:
    return Path(path).suffix.lower()


def parsed(path: Path, settings: EndpointSettings, text: bytes) -> Listing:
    """Return what a file's content lists.

    Raises:
        SourceUnavailable: It cannot be read so; says where and which rule, and shows no value of a
            key or a header.
    """
    name, parse = _FORMATS[_suffix(path)]
    try:
        data = parse(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is not UTF-8"
        raise SourceUnavailable(f"{path}: {why}") from None
    except _MalformedError as error:
        raise SourceUnavailable(f"{path}: not {name}, {error}") from None
    try:
        return _listed(data, settings)
    except ConfigurationError as error:
        raise SourceUnavailable(f"{path}: {error}") from None


def _listed(data: object, settings: EndpointSettings) -> Listing:
    items = data
    if isinstance(data, Mapping):
        unknown = [key for key in data if key != "endpoints"]
        if unknown:
            raise ConfigurationError(
                f"{unknown[0]!r} is no key of the file; {suggestion(unknown[0], ['endpoints'])}"
            )
        items = data.get("endpoints", [])
    if items is None or items == []:
        return Listing(endpoints=(), note="the file has no endpoints")
    if not isinstance(items, list):
        raise ConfigurationError(
            f"endpoints is of type {type(items).__name__}; "
            "it must be a list of URLs or tables with a url"
        )
    made = [_made(item, f"endpoints[{at}]", settings) for at, item in enumerate(items)]
    check_endpoints([endpoint for endpoint, _ in made])
    staying = tuple(endpoint for endpoint, draining in made if not draining)
    return Listing(
        endpoints=staying,
        resting=tuple(endpoint for endpoint, draining in made if draining),
        note="" if staying else "every endpoint in the file is draining",
    )


def _made(item: object, where: str, settings: EndpointSettings) -> tuple[Endpoint, bool]:
    given = {"url": item} if isinstance(item, str) else item
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{where} is of type {type(item).__name__}; it must be a URL or a table with a url"
        )
    for key in given:
        if key not in _KEYS:
            raise ConfigurationError(f"{where} has no key {key!r}; {suggestion(key, _KEYS)}")
    rest: dict[str, Any] = {**settings, **given}
    draining = rest.pop("draining", False)
    if type(draining) is not bool:
        raise ConfigurationError(f"{where}.draining={draining!r} must be true or false")
    url = rest.pop("url", None)
    if not isinstance(url, str):
        kind = "missing" if url is None else f"of type {type(url).__name__}"
        raise ConfigurationError(f"{where}.url is {kind}; it must be one like 'http://gpu-0:8000'")
    if rest.get("ssl_context") is not None and not url.lower().startswith("https:"):
        del rest["ssl_context"]  # it is for those that have TLS
    try:
        return Endpoint(url, **rest), draining
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


# What these libraries say of a malformed text may quote it, keys and all: only the place is taken.


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(error))
        raise _MalformedError(place[1] if place else "in some place") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _MalformedError(f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _MalformedError("nested too deeply") from None


def _yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - an extra

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (
            "in some place" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        )
        raise _MalformedError(place) from None
    except (RecursionError, ValueError):  # a date that is none
        raise _MalformedError("in some place") from None


_FORMATS: Final[dict[str, tuple[str, _Parse]]] = {
    ".toml": ("TOML", _toml),
    ".json": ("JSON", _json),
    ".yaml": ("YAML", _yaml),
    ".yml": ("YAML", _yaml),
}
