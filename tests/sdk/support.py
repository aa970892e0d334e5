"""What scenarios are made of: where an SDK is pointed, what it is asked, which columns it has.

Importable wherever prefixroute and its dependencies are: no SDK, no pytest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from prefixroute import Endpoint, Router

__all__ = [
    "COLUMNS",
    "FIRST",
    "MODEL",
    "OPENING",
    "OTHER",
    "OTHER_SYSTEM",
    "PARAMETERS",
    "RESPONSE_FORMAT",
    "SECOND",
    "SYSTEM",
    "TOOLS",
    "UNRELATED",
    "Case",
    "Cases",
    "Column",
    "LibraryName",
    "Target",
    "continued",
    "library_of_openai",
    "refused",
]

C = TypeVar("C")

Column: TypeAlias = Literal["sync", "async", "stream", "tools", "refuses"]
COLUMNS: Final[tuple[Column, ...]] = get_args(Column)
LibraryName: TypeAlias = Literal["httpx", "httpx2"]

MODEL: Final = "simulated-model"
SYSTEM: Final = "You keep the log of a lighthouse. " * 60
FIRST: Final = "Conversation A: what did the keeper see at dawn?"
SECOND: Final = "Conversation A: and at noon?"
OTHER_SYSTEM: Final = "You are the cook of a research vessel. " * 60
OTHER: Final = "Conversation B: what is for dinner?"

OPENING: Final[list[Any]] = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": FIRST},
]
"""The first turn, for SDKs that take messages as the chat API has them."""

UNRELATED: Final[list[Any]] = [
    {"role": "system", "content": OTHER_SYSTEM},
    {"role": "user", "content": OTHER},
]
"""Another conversation."""

PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"hour": {"type": "integer"}},
    "required": ["hour"],
    "additionalProperties": False,
}
"""Of the tool that cases offer; the simulated engine answers ``{"hour": 0}``."""

TOOLS: Final[list[Any]] = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Look out.", "parameters": PARAMETERS},
    }
]
"""The tool, as the chat API has it."""

RESPONSE_FORMAT: Final[dict[str, Any]] = {
    "type": "json_schema",
    "json_schema": {"name": "sight", "strict": True, "schema": PARAMETERS},
}
"""Structured output, as the chat API has it."""


def continued(text: object) -> list[Any]:
    """The second turn of the conversation, as the chat API has it."""
    assert isinstance(text, str)
    assert text
    return [
        *OPENING,
        {"role": "assistant", "content": text},
        {"role": "user", "content": SECOND},
    ]


def library_of_openai() -> LibraryName:
    """The HTTP library of the OpenAI SDK that is installed."""
    return "httpx" if int(version("openai").partition(".")[0]) < 3 else "httpx2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an SDK is pointed at: the router, or one replica as if there were no router.

    Attributes:
        base_url: For SDKs that add paths like ``/chat/completions``.
        api_key: What the SDK is given as key.
        router: None: the SDK is to use its own HTTP client.
    """

    base_url: str
    api_key: str
    router: Router | None

    @property
    def root_url(self) -> str:
        """For SDKs that add ``/v1`` themselves."""
        return self.base_url.removesuffix("/v1")

    def wrap(self, client: C) -> C:
        """Return the client, routed if there is a router."""
        return client if self.router is None else self.router.wrap(client)

    def http(self, library: LibraryName) -> Any:
        """Return a routed HTTP client, or None: the SDK then makes its own."""
        return None if self.router is None else self.router.client(library)

    def async_http(self, library: LibraryName) -> Any:
        """Return a routed async HTTP client, or None: the SDK then makes its own."""
        return None if self.router is None else self.router.async_client(library)


Case: TypeAlias = Callable[[Target], Awaitable[None] | None]
"""Uses an SDK: ``FIRST``, then ``SECOND`` in the same conversation, and perhaps ``OTHER``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """What one SDK can do; a column without cases is one that the SDK does not have.

    Attributes:
        distributions: Whose versions the table shows; the SDK's own comes first.
        sync: Plain calls.
        asynchronous: The same, awaited.
        stream: Streams, sync and async.
        tools: Tools and structured output.
        refuses: What the router must not take; these are given no target.
    """

    distributions: tuple[str, ...]
    sync: tuple[Case, ...] = ()
    asynchronous: tuple[Case, ...] = ()
    stream: tuple[Case, ...] = ()
    tools: tuple[Case, ...] = ()
    refuses: tuple[Callable[[], None], ...] = ()


def refused(client: object, *ways: str) -> None:
    """Check that ``Router.wrap`` refuses a client by its name and says what to do instead."""
    with Router([Endpoint("http://replica-0.test"), Endpoint("http://replica-1.test")]) as router:
        try:
            router.wrap(client)
        except TypeError as error:
            message = str(error)
        else:
            raise AssertionError(f"wrap took {type(client)!r}")
        for part in (type(client).__name__, *ways):
            assert part in message, f"{part!r} is not in {message!r}"
