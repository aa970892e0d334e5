"""Where endpoints are listed: files, DNS, Kubernetes, functions; each a value of its own.

Importing this loads none of the extras; a source names the one that it needs when it is made.
"""

from __future__ import annotations

from prefixroute.signals.sources.dns import DnsSource
from prefixroute.signals.sources.files import FileSource
from prefixroute.signals.sources.functions import AsyncSource, FunctionSource, StaticSource
from prefixroute.signals.sources.kubernetes import KubernetesSource
from prefixroute.signals.sources.listing import EndpointSettings, Listing, Reader, Source

__all__ = [
    "AsyncSource",
    "DnsSource",
    "EndpointSettings",
    "FileSource",
    "FunctionSource",
    "KubernetesSource",
    "Listing",
    "Reader",
    "Source",
    "StaticSource",
]
