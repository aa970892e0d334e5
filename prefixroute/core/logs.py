"""Events as lines of the standard log, under ``prefixroute``: never a prompt, never a key.

Silent until the application configures logging. Every record carries its event's fields as
``record.prefixroute``, a dict, for those who log JSON.
"""

from __future__ import annotations

import logging
import math
from typing import Final, assert_never

from prefixroute.core.events import (
    EndpointCooling,
    EndpointEjected,
    EndpointPrimed,
    EndpointReadmitted,
    Event,
    FirstToken,
    GroupReply,
    MembershipChanged,
    RequestDone,
    RequestSent,
    ShadowPlaced,
)

__all__ = ["log", "log_event"]

log: Final = logging.getLogger("prefixroute")
log.addHandler(logging.NullHandler())


def log_event(event: Event) -> None:
    """Log an event: requests as DEBUG, endpoints that come and go as INFO, ejections as WARNING."""
    level = _LEVELS.get(type(event), logging.DEBUG)
    if log.isEnabledFor(level):
        message, fields = _line(event)
        log.log(level, message, extra={"prefixroute": {"event": type(event).__name__, **fields}})


_LEVELS: Final = {
    EndpointEjected: logging.WARNING,
    EndpointReadmitted: logging.INFO,
    EndpointCooling: logging.INFO,
    EndpointPrimed: logging.INFO,
    MembershipChanged: logging.INFO,
}


def _line(event: Event) -> tuple[str, dict[str, object]]:
    """Return a sentence, and the event's fields."""
    match event:
        case RequestSent() | FirstToken() | RequestDone():
            return _line_of_request(event)
        case EndpointEjected(endpoint_id=name, for_s=for_s):
            how_long = "until it is readmitted" if for_s == math.inf else f"for {for_s:.1f} s"
            return f"{name} is ejected {how_long}", {"endpoint": name, "for_s": for_s}
        case EndpointReadmitted(endpoint_id=name):
            return f"{name} is readmitted", {"endpoint": name}
        case EndpointCooling(endpoint_id=name, for_s=for_s):
            return f"{name} is left alone for {for_s:.1f} s", {"endpoint": name, "for_s": for_s}
        case MembershipChanged() | EndpointPrimed():
            return _line_of_joining(event)
        case GroupReply() | ShadowPlaced():
            return _line_of_trial(event)
        case _:
            assert_never(event)


def _line_of_joining(event: MembershipChanged | EndpointPrimed) -> tuple[str, dict[str, object]]:
    match event:
        case MembershipChanged(joined=joined, left=left, changed=changed):
            names = f"joined: {', '.join(joined) or 'none'}; left: {', '.join(left) or 'none'}"
            if changed:
                names += f"; changed: {', '.join(changed)}"
            told = {"joined": joined, "left": left, "changed": changed}
            return f"endpoints {names}", dict[str, object](told)
        case EndpointPrimed(endpoint_id=name, prefixes=prefixes, took_s=took_s):
            fields: dict[str, object] = {"endpoint": name, "prefixes": prefixes, "took_s": took_s}
            return f"{name} is primed with {prefixes} prefixes", fields
        case _:
            assert_never(event)


def _line_of_trial(event: GroupReply | ShadowPlaced) -> tuple[str, dict[str, object]]:
    fields: dict[str, object] = {name: getattr(event, name) for name in event.__struct_fields__}
    match event:
        case GroupReply(held_out=held_out):
            return f"a reply of the {'held-out' if held_out else 'routed'} group", fields
        case ShadowPlaced(moved=moved):
            return f"the shadow would have sent it {'elsewhere' if moved else 'there too'}", fields
        case _:
            assert_never(event)


def _line_of_request(
    event: RequestSent | FirstToken | RequestDone,
) -> tuple[str, dict[str, object]]:
    match event:
        case RequestSent(decision=decision, retry=retry):
            name, reason = decision.endpoint.id, decision.reason.value
            fields: dict[str, object] = {
                "endpoint": name,
                "reason": reason,
                "depth": decision.depth,
                "tokens": round(decision.tokens),
                "expected_cached_tokens": round(decision.expected_cached_tokens),
                "retry": retry,
            }
            return f"{'sent again' if retry else 'sent'} to {name}: {reason}", fields
        case FirstToken(endpoint_id=name, ttft_s=ttft_s):
            fields = {"endpoint": name, "ttft_s": ttft_s}
            return f"first token from {name} after {ttft_s:.3f} s", fields
        case RequestDone(endpoint_id=name, duration_s=duration_s, failed=failed):
            fields = {
                "endpoint": name,
                "duration_s": duration_s,
                "failed": failed,
                "prompt_tokens": event.prompt_tokens,
                "cached_tokens": event.cached_tokens,
                "expected_cached_tokens": round(event.expected_cached_tokens),
            }
            return f"{'failed' if failed else 'done'} at {name} after {duration_s:.3f} s", fields
        case _:
            assert_never(event)
