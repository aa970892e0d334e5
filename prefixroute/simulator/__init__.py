"""Replays traffic on simulated replicas, through the product's own core and through others' rules.

>>> from prefixroute.simulator import chats, simulate
>>> trace = chats(requests_per_s=5.0, duration_s=10.0)
>>> simulation = simulate(trace, policies=["nested", "random"], replicas=4, routers=[1, 8])
>>> len(simulation.results)
4
"""

from __future__ import annotations

from prefixroute.simulator.analysis import Analysis, analyze
from prefixroute.simulator.api import simulate
from prefixroute.simulator.cache import pooled_hit_rate
from prefixroute.simulator.policies import PolicyFactory, policy_names
from prefixroute.simulator.reading import TraceError, read_requests, read_trace
from prefixroute.simulator.replica import ReplicaModel
from prefixroute.simulator.report import PolicyResult, Simulation
from prefixroute.simulator.run import CacheReport
from prefixroute.simulator.traces import Change, Request, Trace, block_prompt
from prefixroute.simulator.workloads import agents, chats, popular_prefixes, system_prompts

__all__ = [
    "Analysis",
    "CacheReport",
    "Change",
    "PolicyFactory",
    "PolicyResult",
    "ReplicaModel",
    "Request",
    "Simulation",
    "Trace",
    "TraceError",
    "agents",
    "analyze",
    "block_prompt",
    "chats",
    "policy_names",
    "pooled_hit_rate",
    "popular_prefixes",
    "read_requests",
    "read_trace",
    "simulate",
    "system_prompts",
]
