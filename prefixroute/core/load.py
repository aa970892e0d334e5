"""How busy an endpoint is: its in-flight requests, its outstanding work, and the bound on both."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prefixroute.core.checks import check_number
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.hashing import digest64, utf8
from prefixroute.core.health import Health
from prefixroute.core.others import Others
from prefixroute.core.prompt import Prompt

if TYPE_CHECKING:
    from prefixroute.core.trials import Trial

__all__ = ["EndpointState", "EngineLoad", "Loan", "capacity"]

_EPSILON: Final = 1e-9  # 1.1 * 10 is 11.000000000000002


def capacity(
    total_in_flight: int, weight_share: float, load_factor: float, load_slack: float
) -> int:
    """Return how many requests an endpoint may hold when one more is admitted.

    ``ceil(c (m + 1) w)`` with m requests in flight is the bound of consistent hashing with bounded
    loads, weighted. With the small m of one client it turns requests away by accident, so that an
    endpoint may also exceed its fair share by ``load_slack``.

    Args:
        total_in_flight: Requests in flight before this one, on all eligible endpoints.
        weight_share: The endpoint's share of their weights, 0 to 1.
        load_factor: c, 1 or more.
        load_slack: Requests above the fair share that are always allowed; 0 for the textbook.

    Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads",
    arXiv:1608.01350.
    """
    bound = math.ceil(load_factor * (total_in_flight + 1) * weight_share - _EPSILON)
    if load_slack > 0:
        return max(bound, math.floor(total_in_flight * weight_share + load_slack + _EPSILON))
    return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine reports of itself.

    Args:
        running: Requests that it computes now.
        waiting: Requests that wait for their prefill.
        kv_usage: Share of its KV cache that is in use, 0 to 1; ``None``: not reported.

    Raises:
        ConfigurationError: A negative count, or what is no finite number.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges; engines print counts as floats."""
        for name in ("running", "waiting"):
            value = check_number("EngineLoad", name, getattr(self, name))
            object.__setattr__(self, name, round(value))
        if self.kv_usage is not None:
            check_number("EngineLoad", "kv_usage", self.kv_usage)


class EndpointState:
    """The accounting of one endpoint; outlives changes of the membership around it.

    A lease holds this object, never a URL: an endpoint that leaves and returns under the same URL
    is another object, and a late release of the old one cannot touch the new one's counts.
    """

    __slots__ = (
        "answered_at", "backlog", "backlog_at", "bit", "cached_tokens", "crowd", "crowd_weight",
        "endpoint", "expected_tokens", "failures", "felt", "felt_squares", "felt_sum",
        "foreign_requests", "foreign_s", "health", "in_flight", "interval_s", "member", "open",
        "others", "outside_requests", "outside_s", "primed", "prompt_tokens", "queued", "rate",
        "reported", "reported_at", "reports", "requests", "salt", "sent", "silent", "spills",
        "unreported", "unreported_cached", "wait_at", "wait_factor", "wait_s", "work",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.health = Health()
        self.member = False  # belongs to the router now
        self.bit = 0  # in the prefix map
        self.in_flight = 0
        # Own prefill that is not answered yet, tokens: of streamed calls, whose first token says
        # when it is over, and of the others, as a queue that drains at the endpoint's rate.
        self.queued = self.backlog = self.backlog_at = 0.0
        self.open: OrderedDict[int, Loan] = OrderedDict()
        self.silent: OrderedDict[int, Loan] = OrderedDict()
        self.answered_at = -math.inf  # when the last own first token came
        self.rate = 0.0  # fastest own prefill, tokens/s; 0: nothing learned yet
        self.wait_s, self.wait_at = 0.0, -math.inf  # others' queue as it was last felt
        # Decayed: logarithms of others' waits, their number and squares, and what follows: the mean
        # wait here against that everywhere.
        self.felt = self.felt_sum = self.felt_squares = 0.0
        self.wait_factor = 1.0
        self.sent = self.work = 0.0  # decayed: own requests, and their uncached seconds
        self.reported: EngineLoad | None = None
        self.reported_at, self.interval_s = -math.inf, 0.0
        self.foreign_s, self.foreign_requests = 0.0, 0  # of others, when the report came
        self.others: Others | None = None  # what other routers say that they have there
        # What engines reported beyond that: means of requests and of their queue.
        self.outside_requests = self.outside_s = 0.0
        self.crowd = self.crowd_weight = 0.0  # decayed mean of reported requests; see Crowding
        self.salt = digest64(utf8(endpoint.id))
        self.requests = self.failures = self.spills = 0
        self.primed = 0  # prefixes that it was sent when it joined
        self.prompt_tokens = self.cached_tokens = 0  # as replies reported them
        # Replies to prompts: with a count of cached tokens, with one of prompt tokens only, with
        # neither.
        self.reports = self.unreported_cached = self.unreported = 0
        self.expected_tokens = 0.0  # cached, as expected of those replies

    def __repr__(self) -> str:
        return f"<EndpointState {self.endpoint.id} {self.in_flight} in flight>"

    @property
    def full(self) -> bool:
        """Whether ``max_in_flight`` allows no further request."""
        limit = self.endpoint.max_in_flight
        return limit is not None and self.in_flight >= limit


class Loan:
    """What the router keeps of one lease."""

    __slots__ = (
        "blocks", "cached_tokens", "credit_level", "due_at", "epoch", "expected_tokens", "failed",
        "first_at", "foreign_s", "held_tokens", "learned", "own_wait_s", "probe", "prompt",
        "prompt_tokens", "released", "sent_at", "serial", "shared_tokens", "state", "tokens",
        "trial", "uncached_tokens",
    )  # fmt: skip

    def __init__(self, serial: int, epoch: int, state: EndpointState, prompt: Prompt) -> None:
        self.serial, self.epoch, self.state, self.prompt = serial, epoch, state, prompt
        self.tokens = self.uncached_tokens = self.held_tokens = self.expected_tokens = 0.0
        self.shared_tokens = 0.0  # of held_tokens, what a hot prefix has everywhere
        self.foreign_s = 0.0  # others' queue as it was expected
        self.blocks = 0  # leading blocks that the endpoint held before, as the map believes
        self.credit_level: int | None = None  # the home's credit that this request teaches
        self.sent_at = self.due_at = self.own_wait_s = 0.0
        self.first_at: float | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.probe = 0  # the probe's number, if it is one
        self.learned = self.failed = self.released = False
        self.trial: Trial | None = None  # what a comparison of placements keeps of it
