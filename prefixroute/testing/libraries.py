"""httpx and httpx2: the same names in unrelated classes, told apart by the request's class."""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["AnyRequest", "AnyResponse", "library_error", "library_of", "with_stream_base"]

AnyRequest: TypeAlias = "httpx.Request | httpx2.Request"
AnyResponse: TypeAlias = "httpx.Response | httpx2.Response"

_NAMES = ("httpx", "httpx2")


def library_of(request: AnyRequest) -> ModuleType:
    """The library that a request belongs to.

    Raises:
        TypeError: It belongs to neither.
    """
    request_class: type = type(request)
    return _library_of_class(request_class)


def library_error(request: AnyRequest, name: str, message: str) -> Exception:
    """Make an error of the request's library.

    Args:
        request: What failed.
        name: The error's class, such as ConnectError.
        message: For people.
    """
    error: Exception = getattr(library_of(request), name)(message, request=request)
    return error


@functools.cache
def _library_of_class(request_class: type) -> ModuleType:
    for base in request_class.__mro__:
        name = base.__module__.partition(".")[0]
        if name in _NAMES:
            return import_module(name)
    raise TypeError(
        f"{request_class.__qualname__} is not a request of httpx or httpx2:"
        " give this transport to a client of one of these"
    )


@functools.cache
def with_stream_base(stream_class: type, library: ModuleType, base_name: str) -> type:
    """Derive a stream class that a library's client accepts.

    Args:
        stream_class: What does the work.
        library: httpx or httpx2.
        base_name: `SyncByteStream` or `AsyncByteStream`.
    """
    return type(stream_class.__name__, (stream_class, getattr(library, base_name)), {})
