"""What the traffic of a log has to gain from routing by prefix, and what spoils its prefixes."""

from __future__ import annotations

from prefixroute.simulator.analysis.api import analyze
from prefixroute.simulator.analysis.report import (
    Analysis,
    Depths,
    Expected,
    Reason,
    Search,
    Spoiler,
    TopPrefix,
    Verdict,
)

__all__ = [
    "Analysis",
    "Depths",
    "Expected",
    "Reason",
    "Search",
    "Spoiler",
    "TopPrefix",
    "Verdict",
    "analyze",
]
