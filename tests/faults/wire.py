"""The bytes of the replies that the fault server gives, and where they can be broken."""

from __future__ import annotations

import json
from typing import Final

__all__ = [
    "EVENTS",
    "JSON_BODY",
    "JSON_POSITIONS",
    "STREAM_BODY",
    "STREAM_POSITIONS",
    "body_before",
    "json_reply",
    "stream_reply",
]


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


EVENTS: Final = (
    _event('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'),
    _event('{"choices":[{"index":0,"delta":{"content":"Hel"}}]}'),
    _event('{"choices":[{"index":0,"delta":{"content":"lo"}}]}'),
    _event('{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}'),
    _event("[DONE]"),
)
STREAM_BODY: Final = b"".join(EVENTS)
JSON_BODY: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Hello"},
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    }
).encode()

_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_reply(*events: bytes) -> bytes:
    """A whole streamed reply, one chunk for each event."""
    return _STREAM_HEAD + b"".join(_chunk(one) for one in events or EVENTS) + b"0\r\n\r\n"


def json_reply(status: int = 200, body: bytes = JSON_BODY, **headers: str) -> bytes:
    """A whole reply that is not streamed; ``content_length`` may tell another length."""
    fields = {"content_type": "application/json", "content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 {status} X\r\n{''.join(lines)}\r\n".encode() + body


_JSON_HEAD: Final = json_reply()[: -len(JSON_BODY)]
_TOKENS: Final = len(_STREAM_HEAD) + sum(len(_chunk(one)) for one in EVENTS[:2])

STREAM_POSITIONS: Final = {
    "nothing": 0,
    "status line": 10,
    "headers": 30,
    "head": len(_STREAM_HEAD),
    "inside an event": _TOKENS - 20,
    "among events": _TOKENS,
    "before the last chunk": len(stream_reply()) - len(b"0\r\n\r\n"),
}
"""How many bytes of ``stream_reply()`` get through."""

JSON_POSITIONS: Final = {
    "nothing": 0,
    "status line": 10,
    "headers": 30,
    "head": len(_JSON_HEAD),
    "inside the body": len(_JSON_HEAD) + 40,
    "before the last byte": len(_JSON_HEAD) + len(JSON_BODY) - 1,
}
"""How many bytes of ``json_reply()`` get through."""


def body_before(*, streamed: bool, position: str) -> bytes | None:
    """The part of a reply's body that gets through; ``None``: not even its headers do."""
    if not streamed:
        at = JSON_POSITIONS[position] - len(_JSON_HEAD)
        return None if at < 0 else JSON_BODY[:at]
    match position:
        case "head":
            return b""
        case "inside an event":
            whole = len(_chunk(EVENTS[1]))
            size_line = whole - len(EVENTS[1]) - len(b"\r\n")
            return EVENTS[0] + EVENTS[1][: whole - 20 - size_line]
        case "among events":
            return b"".join(EVENTS[:2])
        case "before the last chunk":
            return STREAM_BODY
        case _:
            return None
