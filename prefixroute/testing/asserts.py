"""Asserts about where requests went, for the tests of an application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prefixroute.core.decision import Decision
from prefixroute.core.stats import Stats
from prefixroute.testing.cluster import FakeCluster
from prefixroute.testing.wire import ReceivedRequest

__all__ = [
    "assert_all_finished",
    "assert_hit_rate",
    "assert_same_endpoint",
    "assert_spread",
    "endpoint_of",
]


def endpoint_of(sent: object) -> str:
    """Return the id of the endpoint that a request went to.

    Args:
        sent: A response of a routed client, a `Decision`, anything with a `decision` (a `Lease`, an
            `Explanation`), or one of `FakeCluster.requests`, whose endpoint is named `replica-0`.

    Raises:
        TypeError: It is none of these, or a response that did not come through a router.
    """
    if isinstance(sent, ReceivedRequest):
        return f"replica-{sent.replica}"
    extensions = getattr(sent, "extensions", None)
    decision = extensions.get("prefixroute") if isinstance(extensions, dict) else sent
    decision = getattr(decision, "decision", decision)
    if not isinstance(decision, Decision):
        raise TypeError(
            f"{sent!r} does not tell its endpoint: it must be a response of a routed client, a "
            "Decision, a Lease or a request of FakeCluster.requests; of an SDK take "
            "with_raw_response and its .http_response"
        )
    return decision.endpoint.id


def assert_same_endpoint(sent: Iterable[object]) -> str:
    """Fail unless all requests went to one endpoint; return its id.

    Args:
        sent: What :func:`endpoint_of` takes, at least one.
    """
    __tracebackhide__ = True
    counts = _counts(sent)
    if len(counts) != 1:
        raise AssertionError(f"requests went to {len(counts)} endpoints, not one: {_shown(counts)}")
    return next(iter(counts))


def assert_spread(
    sent: Iterable[object], *, endpoints: int = 2, at_most_share: float = 1.0
) -> None:
    """Fail unless requests went to several endpoints, and none got more than a share of them.

    Args:
        sent: What :func:`endpoint_of` takes, at least one.
        endpoints: The fewest endpoints that must have got some.
        at_most_share: The largest share of the requests that one may have got, 0 to 1.
    """
    __tracebackhide__ = True
    counts = _counts(sent)
    if len(counts) < endpoints:
        raise AssertionError(
            f"requests went to {len(counts)} endpoints, not to {endpoints} or more: "
            f"{_shown(counts)}"
        )
    busiest, most = counts.most_common(1)[0]
    share = most / counts.total()
    if share > at_most_share:
        raise AssertionError(
            f"{busiest} got {share:.0%} of the requests, more than {at_most_share:.0%}: "
            f"{_shown(counts)}"
        )


def assert_hit_rate(of: FakeCluster | Stats, *, at_least: float) -> None:
    """Fail unless so many prompt tokens came from a prefix cache.

    Args:
        of: The cluster, or `router.stats()`.
        at_least: Share of the prompt tokens, 0 to 1.
    """
    __tracebackhide__ = True
    rate = of.hit_rate
    if rate is None:
        raise AssertionError("no reply has told its cached tokens, so there is no hit rate")
    if rate < at_least:
        raise AssertionError(f"the hit rate is {rate:.1%}, less than {at_least:.1%}")


def assert_all_finished(cluster: FakeCluster) -> None:
    """Fail if an engine still works on a request: a stream that nobody has read or closed."""
    __tracebackhide__ = True
    left = {
        f"replica-{index}": one.running + one.waiting
        for index, one in enumerate(cluster.stats())
        if one.running + one.waiting
    }
    if left:
        raise AssertionError(f"requests are not finished: {_shown(Counter(left))}")


def _counts(sent: Iterable[object]) -> Counter[str]:
    __tracebackhide__ = True
    counts = Counter(endpoint_of(one) for one in sent)
    if not counts:
        raise AssertionError("there are no requests to look at")
    return counts


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
