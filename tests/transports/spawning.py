"""What spawned processes run for ``test_processes``: a router of what was pickled for them."""

from __future__ import annotations

from typing import Any

from prefixroute import Router
from tests.contract.flavours import BODY

__all__ = ["ask"]


def ask(settings: dict[str, Any]) -> tuple[str, str, int]:
    """Return a router's fingerprint, where it sends a prompt, and the status it gets there."""
    with Router(**settings) as router, router.client() as client:
        status = client.post("/chat/completions", json=BODY).status_code
        return router.fingerprint, router.route(BODY).endpoint.id, status
