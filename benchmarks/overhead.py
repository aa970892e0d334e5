"""What routing adds to a call: ``python -m benchmarks.overhead --json``.

Clients with the router's transport against clients without, on the same inner transport, which
answers at once: CPU time of this thread, responses read to the end. Every call has a chat of its
own. So no network hides anything; in front of a real server the ratios are smaller. The last row is
an import in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

import httpx
import httpx2
from openai import OpenAI

from benchmarks.bodies import chat, encoded, replied, replied_chunk
from benchmarks.measuring import Row, by_turns, cpu_us, options, packages, ratio_row, show
from prefixroute import Router

ENDPOINTS: Final = tuple(f"http://gpu-{number}:8000/v1" for number in range(8))
CHUNKS: Final = 50
MODEL: Final = "m"
_IMPORTS: Final = 9
_COMPILING: Final = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""So that compiling modules is done once, as pip does it."""

_ANSWER: Final = json.dumps(replied(MODEL)).encode()


def _chunk(number: int) -> bytes:
    return b"data: " + json.dumps(replied_chunk(MODEL, f" word{number}")).encode() + b"\n\n"


_EVENTS: Final = (*map(_chunk, range(CHUNKS - 1)), b"data: [DONE]\n\n")


def _inner(library: Any) -> Any:
    """Return a transport that answers with JSON, or with events if the request wants a stream."""

    class Events(library.SyncByteStream):  # type: ignore[misc, name-defined, unused-ignore]
        def __iter__(self) -> Iterator[bytes]:
            return iter(_EVENTS)

    def answer(request: Any) -> Any:
        if b'"stream":true' in request.content:
            kind = {"content-type": "text/event-stream"}
            return library.Response(200, headers=kind, stream=Events())
        return library.Response(200, headers={"content-type": "application/json"}, content=_ANSWER)

    return library.MockTransport(answer)


def _post(client: httpx.Client) -> Callable[[bytes], object]:
    headers = {"content-type": "application/json"}
    return lambda body: client.post("/chat/completions", content=body, headers=headers).json()


def _stream(client: httpx.Client) -> Callable[[bytes], object]:
    def run(body: bytes) -> int:
        headers = {"content-type": "application/json"}
        with client.stream("POST", "/chat/completions", content=body, headers=headers) as reply:
            return sum(1 for _ in reply.iter_lines())

    return run


def _create(client: OpenAI) -> Callable[[Any], object]:
    return lambda messages: client.chat.completions.create(model=MODEL, messages=messages)


class Pair:
    """The same call without and with the router."""

    def __init__(
        self, plain: Callable[[Any], object], routed: Callable[[Any], object], make: Any, calls: int
    ) -> None:
        self._plain, self._routed, self._make, self._calls = plain, routed, make, calls
        self._numbers = count()

    def row(self, what: str, goal: float, repeats: int) -> Row:
        """Return the ratio of the two, each with chats never seen before."""
        for run in (self._plain, self._routed):
            cpu_us(run, self._args(10))
        found = by_turns(
            {
                "plain": lambda: cpu_us(self._plain, self._args(self._calls)),
                "routed": lambda: cpu_us(self._routed, self._args(self._calls)),
            },
            repeats,
        )
        each = {name: statistics.median(figures) for name, figures in found.items()}
        note = f"{each['routed']:.0f} us against {each['plain']:.0f} us"
        return ratio_row(what, found["routed"], found["plain"], unit="x", goal=goal, note=note)

    def _args(self, calls: int) -> Sequence[Any]:
        return [self._make(next(self._numbers)) for _ in range(calls)]


def calls(repeats: int) -> Iterator[Row]:
    """Yield the rows of calls."""
    inner = _inner(httpx)
    with (
        Router(ENDPOINTS, seed=0) as router,
        httpx.Client(base_url=ENDPOINTS[0], transport=inner) as plain,
        httpx.Client(base_url=router.base_url, transport=router.transport(inner)) as routed,
    ):
        for tokens, goal in ((8_000, 1.10), (32_000, 1.20)):
            pair = Pair(
                _post(plain),
                _post(routed),
                lambda number, t=tokens: encoded(chat(number, t), stream=False),
                80,
            )
            yield pair.row(f"httpx post, {tokens // 1000}k tokens", goal, repeats)
        pair = Pair(_stream(plain), _stream(routed), lambda n: encoded(chat(n, 8_000)), 40)
        yield pair.row(f"httpx, SSE of {CHUNKS} chunks by lines, 8k tokens", 1.03, repeats)
    with Router(ENDPOINTS, seed=0) as router:
        mocked = OpenAI(
            api_key="-",
            base_url=ENDPOINTS[0],
            http_client=httpx2.Client(transport=_inner(httpx2)),  # type: ignore[arg-type, unused-ignore]
        )
        wrapped = router.wrap(mocked)
        for tokens in (8_000, 32_000):
            pair = Pair(
                _create(mocked), _create(wrapped), lambda number, t=tokens: chat(number, t), 20
            )
            yield pair.row(f"OpenAI create(), {tokens // 1000}k tokens", 1.02, repeats)


def _import_ms(code: str) -> float:
    """Return the CPU time of a process that runs this code, milliseconds."""
    process = subprocess.Popen([sys.executable, "-c", code], env=_COMPILING)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{code!r} failed")
    return 1000 * (used.ru_utime + used.ru_stime)


def imports(repeats: int) -> Row:
    """Return the import of prefixroute against that of httpx, less the start of Python."""
    names = {"start": "pass", "prefixroute": "import prefixroute", "httpx": "import httpx"}
    for code in names.values():
        _import_ms(code)  # compiles it
    found = by_turns(
        {name: partial(_import_ms, code) for name, code in names.items()},
        max(repeats, _IMPORTS),
    )
    start = statistics.median(found["start"])
    own = [figure - start for figure in found["prefixroute"]]
    other = statistics.median(found["httpx"]) - start
    note = f"{statistics.median(own):.0f} ms against {other:.0f} ms"
    return ratio_row(
        "import prefixroute against import httpx",
        own,
        [other] * len(own),
        unit="x",
        goal=0.6,
        note=note,
    )


def main() -> None:
    """Run the benchmark and print a table, or one JSON object."""
    chosen = options(__doc__, repeats=9)
    rows = [*calls(chosen.repeats), imports(chosen.repeats)]
    names = ("prefixroute", "httpx", "httpx2", "openai", "mmh3", "msgspec")
    show(rows, packages(*names), as_json=chosen.json)


if __name__ == "__main__":
    main()
