"""``prefixroute route``: where would this request go?"""

from __future__ import annotations

import json
from typing import Final

from rich.console import Console

from prefixroute.core.fixed import Fixed
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.errors import ConfigurationError
from prefixroute.router import Router

__all__ = ["run_route"]

_PLACEMENTS: Final[dict[str, type[Nested | Fixed]]] = {"nested": Nested, "fixed": Fixed}


def run_route(
    body: bytes,
    *,
    endpoints: list[str],
    placement: str,
    path: str | None,
    session: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Print the explanation of where a body would go.

    Raises:
        ConfigurationError: An unknown placement, or endpoints that cannot work.
    """
    if placement not in _PLACEMENTS:
        raise ConfigurationError(
            f"--placement {placement!r} must be one of: {', '.join(sorted(_PLACEMENTS))}"
        )
    if not endpoints:
        raise ConfigurationError("--endpoint must be given at least once")
    chosen: Placement = _PLACEMENTS[placement]()
    router = Router(endpoints, placement=chosen, seed=seed)
    explanation = router.explain(body, path=path, session=session)
    if as_json:
        print(json.dumps({**explanation.to_dict(), "fingerprint": router.fingerprint}))
    else:
        Console(highlight=False, soft_wrap=True).print(str(explanation), markup=False)
