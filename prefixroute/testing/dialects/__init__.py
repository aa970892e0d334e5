"""The generating APIs of a simulated engine, by path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from prefixroute.testing.dialects.chat import CHAT
from prefixroute.testing.dialects.common import Dialect
from prefixroute.testing.dialects.completions import COMPLETIONS
from prefixroute.testing.dialects.messages import MESSAGES
from prefixroute.testing.dialects.responses import RESPONSES

__all__ = ["DIALECTS"]

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        "/v1/chat/completions": CHAT,
        "/v1/completions": COMPLETIONS,
        "/v1/messages": MESSAGES,
        "/v1/responses": RESPONSES,
    }
)
