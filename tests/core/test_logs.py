"""What the standard log says: silent at first, structured, and never of prompts or keys."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from prefixroute import Endpoint, Nested
from prefixroute.core.events import FirstToken
from prefixroute.core.router import RouterCore
from prefixroute.core.steps import Send
from tests.core.support import FakeClock, make_router, urls

SECRET = "the-secret"
PROMPT = "Tell nobody that the treasure lies under the oak. " * 30


@pytest.fixture
def router() -> RouterCore:
    return make_router([Endpoint(url, api_key=SECRET) for url in urls(2)])


def use(router: RouterCore) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    with router.acquire(body) as lease:
        lease.first_token()
        lease.usage(prompt_tokens=300, cached_tokens=0)
    with router.acquire(body) as lease:
        lease.failed(status=503, retry_after_s=2.0)
    router.eject(urls(1)[0])
    router.readmit(urls(1)[0])
    router.add("http://new")
    router.remove("http://new")


def test_requests_are_debug_and_endpoints_info(
    router: RouterCore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "prefixroute"):
        use(router)
    lines = [(record.levelname, record.getMessage().split(":")[0]) for record in caplog.records]
    assert [level for level, _ in lines] == [
        *("DEBUG",) * 3,
        *("DEBUG", "INFO", "DEBUG"),
        *("WARNING", "INFO", "INFO", "INFO"),
    ]
    assert caplog.records[6].getMessage() == f"{urls(1)[0]} is ejected until it is readmitted"
    assert caplog.records[4].getMessage().endswith("is left alone for 2.0 s")


def test_changed_settings_are_a_line_without_them(
    router: RouterCore, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = router.endpoints
    with caplog.at_level(logging.INFO, "prefixroute"):
        router.set_endpoints([Endpoint(first.url, api_key="another-secret"), second])
    [record] = caplog.records
    assert record.getMessage() == f"endpoints joined: none; left: none; changed: {first.id}"
    assert vars(record)["prefixroute"]["changed"] == (first.id,)


def test_records_carry_their_fields(router: RouterCore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "prefixroute"):
        use(router)
    sent = vars(caplog.records[0])["prefixroute"]
    assert sent["event"] == "RequestSent"
    assert sent["reason"] == "home"
    assert {"endpoint", "depth", "tokens", "expected_cached_tokens", "retry"} <= set(sent)
    done = vars(caplog.records[2])["prefixroute"]
    assert (done["prompt_tokens"], done["cached_tokens"], done["failed"]) == (300, 0, False)


def test_case_50_no_prompt_and_no_key(router: RouterCore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "prefixroute"):
        use(router)
    shown = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert SECRET not in shown
    assert "treasure" not in shown


def test_it_is_silent_by_default() -> None:
    script = (
        "from prefixroute import Router\n"
        "router = Router(['http://a', 'http://b'])\n"
        "router.eject('http://a')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_comparisons_are_debug_and_hold_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    endpoints = [Endpoint(url, api_key=SECRET) for url in urls(2)]
    clock = FakeClock()
    router = RouterCore(
        endpoints, holdout=0.99, shadow=Nested(), clock=clock, wall_clock=clock, seed=0
    )
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    with caplog.at_level(logging.DEBUG, "prefixroute"), router.acquire(body) as lease:
        lease.usage(prompt_tokens=300, cached_tokens=7)
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("the shadow would have sent it") for line in said)
    assert "a reply of the held-out group" in said
    with caplog.at_level(logging.INFO, "prefixroute"):
        router.end_priming(router.endpoints[0], prefixes=3, took_s=1.5)
    last = caplog.records.pop()
    assert (last.levelname, last.getMessage().endswith("is primed with 3 prefixes")) == (
        "INFO",
        True,
    )
    for record in caplog.records:
        assert record.levelname == "DEBUG"
        assert "treasure" not in str(record.__dict__)
        assert SECRET not in str(record.__dict__)


def test_events_are_equal_where_they_tell_the_same() -> None:
    one, other = [FirstToken(endpoint_id="gpu-0", ttft_s=1.0, serial=serial) for serial in (1, 2)]
    assert one == other
    assert hash(one) == hash(other)
    assert one != FirstToken(endpoint_id="gpu-0", ttft_s=2.0, serial=1)
    assert one != "gpu-0"


def test_a_step_does_not_show_its_key() -> None:
    lease = make_router(1).acquire({})
    assert "secret" not in repr(Send(lease, 1.0, "secret"))
    lease.release()
