"""How many bytecode instructions a decision takes: a figure that no machine changes.

Renew the figures when a change is worth what it costs::

    python -m tests.core.test_cost

prints those of the running Python; put them into ``FIGURES``.
"""

from __future__ import annotations

import gc
import json
import platform
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore

TOLERANCE = 0.1
TOOL = 4  # of sys.monitoring; the lower ones are debuggers', coverage's and profilers'

FIGURES: Mapping[str, Mapping[str, int]] = {
    "3.11": {
        "nested, 8 endpoints, first sight": 12645,
        "nested, 8 endpoints, next turn": 10678,
        "nested, 64 endpoints, first sight": 19209,
        "nested, 64 endpoints, next turn": 17927,
        "fixed, 8 endpoints, first sight": 6174,
        "fixed, 8 endpoints, next turn": 6134,
    },
    "3.12": {
        "nested, 8 endpoints, first sight": 11586,
        "nested, 8 endpoints, next turn": 9896,
        "nested, 64 endpoints, first sight": 17942,
        "nested, 64 endpoints, next turn": 16923,
        "fixed, 8 endpoints, first sight": 5645,
        "fixed, 8 endpoints, next turn": 5605,
    },
    "3.13": {
        "nested, 8 endpoints, first sight": 11356,
        "nested, 8 endpoints, next turn": 9419,
        "nested, 64 endpoints, first sight": 17419,
        "nested, 64 endpoints, next turn": 16082,
        "fixed, 8 endpoints, first sight": 5590,
        "fixed, 8 endpoints, next turn": 5564,
    },
}
"""Instructions of each case, by Python version. C code (parsing, hashing, dicts) is not in them."""


def chat(number: int, messages: int) -> bytes:
    turns = [
        {"role": "assistant" if turn % 2 else "user", "content": f"{number} {turn} " * 100}
        for turn in range(messages)
    ]
    return json.dumps({"model": "m", "stream": True, "messages": turns}).encode()


def instructions(run: Callable[[], object]) -> int:
    """Return how many bytecode instructions a call executes; none of a collector's finalizers."""
    gc.disable()
    try:
        return _instructions(run)
    finally:
        gc.enable()


def _instructions(run: Callable[[], object]) -> int:
    count = 0

    def executed(code: CodeType, offset: int) -> None:
        nonlocal count
        count += 1

    if sys.version_info >= (3, 12):
        watch = sys.monitoring
        watch.use_tool_id(TOOL, "instructions")
        watch.register_callback(TOOL, watch.events.INSTRUCTION, executed)
        watch.set_events(TOOL, watch.events.INSTRUCTION)
        try:
            run()
        finally:
            watch.set_events(TOOL, watch.events.NO_EVENTS)
            watch.free_tool_id(TOOL)
        return count

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            executed(frame.f_code, frame.f_lasti)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    before = sys.gettrace()  # coverage's
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def router(endpoints: int, placement: Placement) -> RouterCore:
    """Return a router that has seen some chats and learned from their replies."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.01
        return now

    made = RouterCore(
        [Endpoint(f"http://gpu-{number}:8000/v1") for number in range(endpoints)],
        placement=placement,
        seed=0,
        clock=clock,
        wall_clock=clock,
    )
    for number in range(20):
        with made.acquire(chat(-number, 4)) as lease:
            lease.first_token()
            lease.usage(prompt_tokens=1000, cached_tokens=100)
    return made


def decide(core: RouterCore, body: bytes) -> None:
    core.acquire(body).release()


def measured() -> dict[str, int]:
    """Return the figures of this Python."""
    found = {}
    for case, endpoints, placement in (
        ("nested, 8 endpoints", 8, Nested()),
        ("nested, 64 endpoints", 64, Nested()),
        ("fixed, 8 endpoints", 8, Fixed()),
    ):
        core = router(endpoints, placement)
        fresh, turn = chat(1, 40), chat(1, 42)
        found[f"{case}, first sight"] = instructions(partial(decide, core, fresh))
        found[f"{case}, next turn"] = instructions(partial(decide, core, turn))
    return found


def version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


@pytest.mark.skipif(
    version() not in FIGURES or platform.python_implementation() != "CPython",
    reason="no figures of this Python: python -m tests.core.test_cost prints them",
)
def test_a_decision_takes_as_many_instructions_as_before() -> None:
    figures, found = FIGURES[version()], measured()
    changes = {case: found[case] / figure - 1.0 for case, figure in figures.items()}
    off = [
        f"{case}: {found[case]} instructions, were {figures[case]} ({change:+.0%})"
        for case, change in changes.items()
        if abs(change) > TOLERANCE
    ]
    assert not off, "\n".join([*off, "If that is right: python -m tests.core.test_cost, see there"])
    assert set(found) == set(figures)


def test_the_count_is_the_same_each_time_and_sees_what_is_added() -> None:
    def work(rounds: int) -> int:
        return sum(number for number in range(rounds))

    once = instructions(lambda: work(100))
    assert once == instructions(lambda: work(100))
    assert instructions(lambda: work(200)) > 1.8 * once


if __name__ == "__main__":
    print({version(): measured()})
