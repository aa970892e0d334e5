"""Checks of configuration values, which refuse with the value, the rule and the remedy."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sized
from numbers import Real

from prefixroute.errors import ConfigurationError

__all__ = ["check_int", "check_number", "need", "refusal", "suggestion"]


def refusal(owner: str, name: str, value: object, rule: str) -> ConfigurationError:
    """Return the error that says which value breaks which rule; the rule names the remedy."""
    shown = repr(value)
    if len(shown) > 200 and isinstance(value, Sized):
        shown = f"<{type(value).__name__} of {len(value)}>"
    return ConfigurationError(f"{owner}({name}={shown}) must be {rule}")


def check_int(owner: str, name: str, value: object, at_least: int) -> None:
    """Refuse what is not a whole number of ``at_least`` or more.

    Raises:
        ConfigurationError: With the value, the rule and the name to mend.
    """
    if type(value) is not int or value < at_least:
        raise refusal(owner, name, value, f"an int, {at_least} or greater")


def check_number(
    owner: str,
    name: str,
    value: object,
    *,
    at_least: float = 0.0,
    at_most: float = math.inf,
    above: bool = False,
    hint: str = "",
) -> float:
    """Return a finite number within its range as a float, so that equal settings print alike.

    Args:
        owner: What is being configured.
        name: The setting.
        value: What was given.
        at_least: The smallest value allowed.
        at_most: The largest value allowed.
        above: Whether ``at_least`` itself is excluded.
        hint: Why, and what is usual.

    Raises:
        ConfigurationError: No number, not finite, or out of its range.
    """
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    low = number > at_least if above else number >= at_least
    if not (math.isfinite(number) and low and number <= at_most):
        rule = f"above {at_least:g}" if above else f"{at_least:g} or greater"
        if at_most < math.inf:
            rule += f" and at most {at_most:g}"
        raise refusal(owner, name, value, f"a finite number, {rule}{': ' if hint else ''}{hint}")
    return number


def need(owner: str, module: str, package: str, extra: str) -> None:
    """Refuse to go on without an extra.

    Raises:
        ConfigurationError: The module is missing; names what installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigurationError(f"{owner} needs {package}: pip install 'prefixroute[{extra}]'")


def suggestion(name: object, valid: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: what may be meant, what there is."""
    import difflib  # noqa: PLC0415 - only a refusal needs it

    names = sorted(valid)
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}There are: {', '.join(names)}"
