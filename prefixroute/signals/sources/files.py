"""``FileSource``: endpoints in a file of TOML, JSON or YAML, looked at again and again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from prefixroute.core.checks import suggestion
from prefixroute.core.documents import MalformedDocument, check_document_path, parse_document
from prefixroute.core.membership import check_endpoints
from prefixroute.core.tables import read_endpoint
from prefixroute.errors import ConfigurationError, SourceUnavailable
from prefixroute.signals.sources.listing import (
    EndpointSettings,
    Listing,
    Reader,
    Source,
    check_settings,
)

__all__ = ["FileSource"]

_SETTLES_S: Final = 0.25
"""What has changed is believed when it is the same after so long: a file is not written at once,
and half a list is a list too."""
_LARGEST_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """Endpoints in a file, which may be rewritten, replaced by renaming, or be a ConfigMap's.

    The file is a list of URLs and tables, or has one under ``endpoints``. A table has a ``url`` and
    what :class:`Endpoint` takes; ``api_key_env`` names the environment variable that has its key,
    and ``draining = true`` sends it no new requests. The whole file is
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
        check_document_path("FileSource", self.path)
        check_settings("FileSource", self.settings, scheme="https")
        object.__setattr__(self, "path", str(Path(self.path).absolute()))

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


def parsed(path: Path, settings: EndpointSettings, text: bytes) -> Listing:
    """Return what a file's content lists.

    Raises:
        SourceUnavailable: It cannot be read so; says where and which rule, and shows no value of a
            key or a header.
    """
    try:
        data = parse_document(path, text)
    except MalformedDocument as error:
        raise SourceUnavailable(f"{path}: {error}") from None
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
    made = [
        read_endpoint(item, f"endpoints[{at}]", settings, environ=os.environ)
        for at, item in enumerate(items)
    ]
    check_endpoints([endpoint for endpoint, _ in made])
    staying = tuple(endpoint for endpoint, draining in made if not draining)
    return Listing(
        endpoints=staying,
        resting=tuple(endpoint for endpoint, draining in made if draining),
        note="" if staying else "every endpoint in the file is draining",
    )
