"""What the scenarios of mock libraries share: endpoints, a request and its answers.

These libraries replace what is under the router's transport, so they see the endpoints' own URLs,
and the router takes what they answer, or raise, as an endpoint's doing.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["BODY", "EVENTS", "REPLY", "URLS"]

URLS: Final = ["http://gpu-0:8000/v1", "http://gpu-1:8000/v1", "http://gpu-2:8000/v1"]
BODY: Final[dict[str, Any]] = {
    "model": "m",
    "messages": [{"role": "user", "content": "What did the keeper see at dawn?"}],
}
REPLY: Final[dict[str, Any]] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "A ship."},
        }
    ],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}
_CHUNK: Final[dict[str, Any]] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "A ship."}}],
}
EVENTS: Final = f"data: {json.dumps(_CHUNK)}\n\ndata: [DONE]\n\n".encode()
