"""What faults do to the script of a healthy engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from prefixroute.testing.faults import CutAfter, Disconnect, FaultSwitch
from prefixroute.testing.wire import Data, Drop, Head, Hold, Script

__all__ = ["cut", "drop", "error_first", "hang", "slow"]


def drop(at_s: float, fault: Disconnect) -> Script:
    """Close the connection without a word."""
    yield Drop(at_s, fault.reset)


def hang(script: Script, faults: FaultSwitch) -> Script:
    """Do nothing until the faults are healed, then go on."""
    heals = faults.heals
    with closing(script):
        while faults.heals == heals:
            yield Hold()
        yield from script


def slow(script: Script, headers_at_s: float) -> Script:
    """Send the headers late, and what follows then at once."""
    with closing(script):
        for action in script:
            match action:
                case Head(at_s=at_s):
                    yield replace(action, at_s=max(at_s, headers_at_s))
                case _:
                    yield action


def cut(script: Script, fault: CutAfter, now_s: Callable[[], float]) -> Script:
    """Break off after some events of a stream, or in the middle of another body."""
    chunks_left, is_stream = fault.chunks, False
    with closing(script):
        for action in script:
            match action:
                case Head():
                    is_stream = not action.has_length
                    yield action
                case Data() if chunks_left and is_stream:
                    chunks_left -= 1
                    yield action
                case Data():
                    if chunks_left:
                        yield replace(action, data=action.data[: len(action.data) // 2])
                    yield Drop(now_s(), fault.reset)
                    return
                case _:
                    yield action


def error_first(
    script: Script, failure: Script, event: bytes, now_s: Callable[[], float]
) -> Script:
    """Put an error in the place of a stream's events, or of another reply."""
    with closing(script):
        for action in script:
            match action:
                case Head(status=200) if not action.has_length:
                    yield action
                    yield Data(now_s(), event)
                    return
                case Head(status=200):
                    yield from failure
                    return
                case _:
                    yield action
