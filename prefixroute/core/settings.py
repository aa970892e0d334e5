"""Checks of what a router is made with."""

from __future__ import annotations

from prefixroute.core.checks import refusal
from prefixroute.core.health import HealthPolicy

__all__ = ["check_placement", "check_settings"]


def check_placement(name: str, value: object) -> None:
    """Refuse what is no placement; ``None`` is fine.

    Raises:
        ConfigurationError: With the value, the rule and the remedy.
    """
    wrong = isinstance(value, type) or not callable(getattr(value, "start", None))
    if value is not None and wrong:
        raise refusal("Router", name, value, "an instance such as RoundRobin() or Nested()")


def check_settings(
    health: object,
    peers: object,
    seed: object,
    observers: object,
    clock: object,
) -> None:
    """Refuse settings of a router that cannot work.

    Raises:
        ConfigurationError: With the value, the rule and the remedy.
    """
    if not isinstance(health, HealthPolicy):
        raise refusal("Router", "health", health, "a HealthPolicy(), or None for the default")
    if peers is not None and (type(peers) is not int or peers < 1):
        raise refusal("Router", "peers", peers, "an int, 1 or greater, or None if not known")
    if seed is not None and type(seed) is not int:
        raise refusal("Router", "seed", seed, "an int, or None")
    for observer in observers if isinstance(observers, tuple) else (None,):
        if not callable(getattr(observer, "on_event", None)):
            rule = "a list of objects with a method on_event(event)"
            raise refusal("Router", "observers", observers, rule)
    if not callable(clock):
        raise refusal("Router", "clock", clock, "a function that returns seconds")
