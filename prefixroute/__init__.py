"""Send each LLM request to the replica that already holds its prompt's prefix.

>>> from prefixroute import Router
>>> router = Router(["http://gpu-0:8000/v1", "http://gpu-1:8000/v1"])
>>> decision = router.route({"messages": [{"role": "user", "content": "Hello"}]})

Importing this loads no HTTP library and no optional dependency.
"""

from __future__ import annotations

from prefixroute.core.certainty import Gain
from prefixroute.core.decision import Decision, Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.events import Event, Observer
from prefixroute.core.explain import Explanation
from prefixroute.core.failover import Failover
from prefixroute.core.fixed import Fixed, LeastLoaded, RoundRobin
from prefixroute.core.fixed import Random_ as Random
from prefixroute.core.groups import GroupStats, HoldoutStats
from prefixroute.core.health import HealthPolicy, HealthState
from prefixroute.core.lease import Lease
from prefixroute.core.load import EngineLoad
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.prompt import KeySource, Prompt
from prefixroute.core.ring_view import RingMember, RingView
from prefixroute.core.shadow_stats import ShadowStats
from prefixroute.core.stats import EndpointStats, Stats
from prefixroute.core.tokens import Tokenizer
from prefixroute.errors import (
    AttemptsFailed,
    ConfigurationError,
    KeyUnavailable,
    PrefixrouteError,
    RouterClosedError,
    Saturated,
    SourceUnavailable,
    TokenizerUnavailable,
    UnknownEndpointError,
    UnsupportedClientError,
)
from prefixroute.router import Router

__all__ = [
    "AttemptsFailed",
    "ConfigurationError",
    "Decision",
    "Endpoint",
    "EndpointStats",
    "EngineLoad",
    "Event",
    "Explanation",
    "Failover",
    "Fixed",
    "Gain",
    "GroupStats",
    "HealthPolicy",
    "HealthState",
    "HoldoutStats",
    "KeySource",
    "KeyUnavailable",
    "Lease",
    "LeastLoaded",
    "Nested",
    "Observer",
    "Placement",
    "PrefixrouteError",
    "Prompt",
    "Random",
    "Reason",
    "RingMember",
    "RingView",
    "RoundRobin",
    "Router",
    "RouterClosedError",
    "Saturated",
    "ShadowStats",
    "SourceUnavailable",
    "Stats",
    "Tokenizer",
    "TokenizerUnavailable",
    "UnknownEndpointError",
    "UnsupportedClientError",
]
