"""Two attempts of one call at once: the first to answer wins, the other is cancelled.

Both functions return what has ended, in order, with the winner last; of whoever lost nothing is
left: no task, no open response, and in threads no wait for an answer.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from prefixroute.core.lease import Lease
from prefixroute.core.steps import Failed, Keep, Race, Raced, Responded, Send
from prefixroute.transports.breaking import break_off
from prefixroute.transports.call import Attempt, Reply

__all__ = ["race_async", "race_sync"]

_Outcome: TypeAlias = Responded[Reply] | Failed
_Ended: TypeAlias = tuple[Lease, _Outcome]


def race_sync(
    race: Race[Reply],
    *,
    begin: Callable[[Send], Attempt],
    send: Callable[[Attempt], _Outcome],
    keep: Callable[[Keep[Reply]], Responded[Reply]],
) -> Raced[Reply]:
    """Run a race in threads, one for each attempt.

    Args:
        race: Says what is sent when.
        begin: Makes the request of an attempt.
        send: Sends it.
        keep: Reads a refusal, so that it holds no connection.
    """
    running = _Threads(race, begin, send, keep)
    try:
        running.start(race.first)
        if running.wait(race.after_s) is None:
            second = race.second()
            if second is not None:
                running.start(second)
            while not running.is_over:
                running.wait(None)
        return Raced(tuple(running.ended))
    except BaseException:
        running.discard()
        raise
    finally:
        running.stop()


class _Threads:
    """The attempts of a race in threads."""

    def __init__(
        self,
        race: Race[Reply],
        begin: Callable[[Send], Attempt],
        send: Callable[[Attempt], _Outcome],
        keep: Callable[[Keep[Reply]], Responded[Reply]],
    ) -> None:
        self._race, self._begin, self._send, self._keep = race, begin, send, keep
        self._queue: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._running: dict[Lease, Attempt] = {}
        self.ended: list[_Ended] = []

    def start(self, send: Send) -> None:
        attempt = self._begin(send)
        self._running[send.lease] = attempt
        context = contextvars.copy_context()  # of whoever traces the calls
        threading.Thread(
            target=context.run,
            args=(self._run, send.lease, attempt),
            name="prefixroute-attempt",
            daemon=True,
        ).start()

    def _run(self, lease: Lease, attempt: Attempt) -> None:
        outcome = self._send(attempt)
        if isinstance(outcome, Responded) and not self._race.answers(outcome) and self._has_rival:
            outcome = self._keep(Keep(outcome))
        with self._lock:
            if not self._stopped:
                self._queue.put((lease, outcome))
                return
        _close(outcome)

    @property
    def _has_rival(self) -> bool:
        return len(self._running) > 1

    def wait(self, seconds: float | None) -> _Ended | None:
        """Return the next attempt that ends; ``None``: none did in time."""
        try:
            ended = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        del self._running[ended[0]]
        self.ended.append(ended)
        return ended

    @property
    def is_over(self) -> bool:
        answered = bool(self.ended) and self._race.answers(self.ended[-1][1])
        return answered or not self._running

    def stop(self) -> None:
        """End whoever runs. A response that comes all the same is closed by its own thread."""
        with self._lock:
            self._stopped = True
        while not self._queue.empty():
            lease, outcome = self._queue.get()
            del self._running[lease]
            _close(outcome)
        for attempt in self._running.values():
            break_off(attempt)

    def discard(self) -> None:
        """Close what has been answered: nobody will have it."""
        for _, outcome in self.ended:
            _close(outcome)


def _close(outcome: _Outcome) -> None:
    if isinstance(outcome, Responded):
        outcome.response.response.close()


async def race_async(
    race: Race[Reply],
    *,
    begin: Callable[[Send], Awaitable[Attempt]],
    send: Callable[[Attempt], Awaitable[_Outcome]],
    keep: Callable[[Keep[Reply]], Awaitable[Responded[Reply]]],
) -> Raced[Reply]:
    """Run a race in tasks, on asyncio or trio; see :func:`race_sync`."""
    import anyio  # noqa: PLC0415 - only who hedges pays for it

    ended: list[_Ended] = []
    running: set[Lease] = {race.first.lease}
    late: list[_Outcome] = []  # answered all the same

    async def run(lease: Lease, attempt: Attempt) -> None:
        outcome = await send(attempt)
        answers = race.answers(outcome)
        if isinstance(outcome, Responded) and not answers and len(running) > 1:
            outcome = await keep(Keep(outcome))
        if group.cancel_scope.cancel_called:
            late.append(outcome)
            return
        running.discard(lease)
        ended.append((lease, outcome))
        if answers or not running:
            group.cancel_scope.cancel()

    first = await begin(race.first)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run, race.first.lease, first)
            await anyio.sleep(race.after_s)
            second = None if ended else race.second()
            if second is not None:
                running.add(second.lease)
                group.start_soon(run, second.lease, await begin(second))
    except BaseException as error:
        late += [outcome for _, outcome in ended]
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            raise error.exceptions[0]  # noqa: B904 - its own cause stays
        raise
    finally:
        if late:
            with anyio.CancelScope(shield=True):
                for outcome in late:
                    await _aclose(outcome)
    return Raced(tuple(ended))


async def _aclose(outcome: _Outcome) -> None:
    if isinstance(outcome, Responded):
        await outcome.response.response.aclose()
