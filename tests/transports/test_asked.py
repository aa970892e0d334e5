"""What refusals ask for, in all their words."""

from __future__ import annotations

import pytest

from prefixroute.transports.asked import resets_in_s, retry_after_s

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z
REQUESTS, TOKENS = "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"
LEFT_REQUESTS, LEFT_TOKENS = "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"
ANTHROPIC = "anthropic-ratelimit-input-tokens-reset"


def now() -> float:
    return NOW


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({REQUESTS: "1s"}, 1.0),
        ({TOKENS: "6m0s"}, 360.0),
        ({TOKENS: "20ms"}, 0.02),
        ({TOKENS: "1h2m3.5s"}, 3600.0),
        ({TOKENS: "1d"}, 3600.0),
        ({TOKENS: "1m1.5s"}, 61.5),
        ({TOKENS: " 12 "}, 12.0),
        ({TOKENS: "soon"}, None),
        ({TOKENS: "6m0"}, None),
        ({TOKENS: "-5s"}, None),
        ({TOKENS: "-5"}, 0.0),
        ({TOKENS: "nan"}, None),
        ({TOKENS: "inf"}, 3600.0),
        ({TOKENS: ""}, None),
        ({TOKENS: "٣s"}, None),
        ({ANTHROPIC: "2023-11-14T22:13:50Z"}, 30.0),
        ({ANTHROPIC: "2023-11-14T23:13:50+01:00"}, 30.0),
        ({ANTHROPIC: "2023-11-14T22:13:50"}, 30.0),
        ({ANTHROPIC: "2023-11-14T22:13:20.5Z"}, 0.5),
        ({ANTHROPIC: "2023-11-14T22:00:00Z"}, 0.0),
        ({ANTHROPIC: "9999-12-31T23:59:59Z"}, 3600.0),
        ({ANTHROPIC: "tomorrow"}, None),
        ({"ratelimit-reset": "30"}, 30.0),
        # of several, those that are spent, and of these the longest
        ({REQUESTS: "1s", TOKENS: "60s"}, 60.0),
        ({REQUESTS: "1s", TOKENS: "60s", LEFT_REQUESTS: "0", LEFT_TOKENS: "500"}, 1.0),
        ({REQUESTS: "1s", TOKENS: "60s", LEFT_REQUESTS: "5", LEFT_TOKENS: "0"}, 60.0),
        ({REQUESTS: "1s", TOKENS: "60s", LEFT_REQUESTS: "5", LEFT_TOKENS: "500"}, 1.0),
        ({REQUESTS: "soon", TOKENS: "60s"}, 60.0),
    ],
)
def test_when_a_limit_is_whole_again(headers: dict[str, str], seconds: float | None) -> None:
    assert resets_in_s(headers, now) == (None if seconds is None else pytest.approx(seconds))


def test_these_are_not_retry_after() -> None:
    assert retry_after_s({REQUESTS: "1s"}, now) is None
    assert resets_in_s({"retry-after": "1"}, now) is None
