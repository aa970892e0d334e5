"""The sync and the async shell for httpx and httpx2; loaded when a router first makes one."""

from __future__ import annotations

from prefixroute.transports.transport import AsyncRoutedTransport, RoutedTransport

__all__ = ["AsyncRoutedTransport", "RoutedTransport"]
