"""What can go wrong with a simulated engine, as values to switch on and off."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "CutAfter",
    "Disconnect",
    "ErrorFirst",
    "Fault",
    "FaultSwitch",
    "Hang",
    "Loading",
    "RateLimited",
    "Refuse",
    "SlowHeaders",
    "StaleConnection",
    "Status",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse connections. Streams that are already running go on; idle connections are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Answer everything with 503 "Loading model", as llama.cpp does until it is ready."""

    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Accept requests and answer nothing, like a stopped process, until healed; then go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimited:
    """Answer generations with 429.

    Attributes:
        retry_after_s: Goes into `Retry-After` as it is, real seconds whatever the time scale;
            None sends no such header.
    """

    retry_after_s: float | None = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Answer generations with a status and nothing else.

    Attributes:
        code: The HTTP status, from 200 to 599.
        headers: More headers of the answer, for example a strange `Retry-After`.
        body: The body; None for an error in the shape of the API that was called.
    """

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def __post_init__(self) -> None:
        if not 200 <= self.code <= 599:
            raise ValueError(f"code={self.code!r} must be an HTTP status from 200 to 599, say 500")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHeaders:
    """Hold back the headers of generations; the engine works meanwhile.

    Attributes:
        delay_s: From the arrival of the request, simulated seconds.
    """

    delay_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delay_s) and self.delay_s >= 0):
            raise ValueError(
                f"delay_s={self.delay_s!r} must be finite and not negative:"
                " use Hang() for headers that never come"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAfter:
    """Break the connection in the middle of a generation's body.

    Attributes:
        chunks: How many events of a stream get through; 0 cuts right after the headers. A body
            that isn't a stream is cut after its first half, or right after the headers with 0.
        reset: Reset the connection (RST) in place of closing it.
    """

    chunks: int = 1
    reset: bool = False

    def __post_init__(self) -> None:
        if self.chunks < 0:
            raise ValueError(f"chunks={self.chunks!r} must not be negative: use 0 to cut at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFirst:
    """Answer a stream with 200 and an error as its first event; what isn't a stream with 500."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """Take a generation's whole request, then close the connection without a word.

    Attributes:
        reset: Reset the connection (RST) in place of closing it.
    """

    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleConnection:
    """Close a kept-alive connection just as its next request arrives; new ones are served."""


Fault = (
    Refuse
    | Loading
    | Hang
    | RateLimited
    | Status
    | SlowHeaders
    | CutAfter
    | ErrorFirst
    | Disconnect
    | StaleConnection
)
"""Any of the faults."""


class FaultSwitch:
    """The faults of one replica: some for the next few requests, and one until it is healed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: deque[tuple[Fault, int]] = deque()
        self._lasting: Fault | None = None
        self._heals = 0

    def set(self, fault: Fault, times: int | None) -> None:
        """Switch a fault on.

        Args:
            fault: What goes wrong.
            times: For how many of the requests it applies to, after those set before; None: for
                all of them, after the counted ones, in place of the lasting one set before.

        Raises:
            ValueError: `times` is below 1.
        """
        if times is not None and times < 1:
            raise ValueError(f"times={times!r} must be at least 1, or None: until healed")
        with self._lock:
            if times is None:
                self._lasting = fault
            else:
                self._counted.append((fault, times))

    def heal(self) -> None:
        """Switch everything off."""
        with self._lock:
            self._counted.clear()
            self._lasting = None
            self._heals += 1

    @property
    def heals(self) -> int:
        """How often it was healed: a request that hangs waits for this to change."""
        return self._heals

    @property
    def refuses(self) -> bool:
        """Whether connections are refused until it is healed."""
        return isinstance(self._lasting, Refuse)

    @property
    def counts_refusals(self) -> bool:
        """Whether some refusals are counted, which a listening socket can't do."""
        with self._lock:
            return any(isinstance(fault, Refuse) for fault, _ in self._counted)

    def take(self, *, generation: bool, reused_connection: bool) -> Fault | None:
        """Choose the fault of one request and count it.

        Args:
            generation: It asks for tokens or embeddings, not for health, metrics or models.
            reused_connection: Its connection has carried a request before.
        """
        with self._lock:
            for position, (fault, times) in enumerate(self._counted):
                if _applies(fault, generation=generation, reused_connection=reused_connection):
                    if times == 1:
                        del self._counted[position]
                    else:
                        self._counted[position] = (fault, times - 1)
                    return fault
            lasting = self._lasting
        if lasting is None:
            return None
        does_apply = _applies(lasting, generation=generation, reused_connection=reused_connection)
        return lasting if does_apply else None


def _applies(fault: Fault, *, generation: bool, reused_connection: bool) -> bool:
    match fault:
        case Refuse() | Loading() | Hang():
            return True
        case StaleConnection():
            return reused_connection
        case _:
            return generation
