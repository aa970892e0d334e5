"""What becomes of routers that share load when one of them dies, or the server does."""

from __future__ import annotations

import logging
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from prefixroute import Router
from prefixroute.signals.redis import RedisFleet
from tests.signals.redis_server import RedisServer, redis_server, until
from tests.signals.test_redis import URLS, chat, heard, patient, requests_heard

__all__ = ["redis_server"]

_HOLDER = """
import sys
from prefixroute import Router
from prefixroute.signals.redis import RedisFleet
from tests.signals.test_redis import URLS, chat

router = Router(URLS)
held = [router.acquire(chat(number)) for number in range(20)]
with RedisFleet(router, sys.argv[1], every_s=0.1, ttl_s=3.0, timeout_s=30):
    print("holding", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def router() -> Iterator[Router]:
    with Router(URLS) as made:
        yield made


def told(router: Router) -> bool:
    return len(heard(router)) == len(URLS)


def decisions_s(router: Router, count: int = 400) -> float:
    """The median time of a decision."""
    times = []
    for number in range(count):
        began = time.perf_counter()
        lease = router.acquire(chat(number % 20))
        times.append(time.perf_counter() - began)
        lease.release()
    return statistics.median(times)


def test_the_share_of_a_killed_process_vanishes(router: Router, redis_server: RedisServer) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, redis_server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    fleet = patient(router, redis_server.url)
    try:
        until(lambda: fleet.turn() and requests_heard(router) == 20)
        holder.kill()
        holder.wait()
        with redis_server.client() as client:
            owners = dict(client.zrange("{prefixroute}:deadlines", 0, -1, withscores=True))
            del owners[fleet._talk.owner.encode()]
            [due_ms] = owners.values()

            def now_ms() -> float:
                seconds, microseconds = client.time()
                return float(seconds * 1000 + microseconds / 1000)

            while (before_ms := now_ms()) <= due_ms:
                assert fleet.turn()
                if now_ms() < due_ms:
                    assert requests_heard(router) == 20  # it might only be slow
                time.sleep(0.05)
            assert before_ms > due_ms
            assert fleet.turn()
            assert requests_heard(router) == 0
            assert fleet.stats().peers == 0
    finally:
        holder.kill()
        holder.communicate()
        fleet._link.close()


def test_a_paused_server_changes_no_decision_and_the_view_heals(
    router: Router, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "prefixroute"),
        RedisFleet(router, redis_server.url, every_s=0.1, timeout_s=1.0) as fleet,
    ):
        until(lambda: told(router))
        before_s = decisions_s(router)
        redis_server.pause()
        try:
            until(lambda: not heard(router))  # the view has aged out
            until(lambda: not fleet.stats().connected)
            assert decisions_s(router) < 5 * before_s + 1e-3
            age_s = fleet.stats().age_s
            assert age_s is not None
            assert age_s > 0.3
        finally:
            redis_server.resume()
        until(lambda: told(router) and fleet.stats().connected)
    levels = [record.levelname for record in caplog.records]
    assert levels.count("WARNING") == fleet.stats().losses
    assert levels.count("INFO") >= max(1, fleet.stats().losses - 1)  # each time it came back


def test_a_server_that_restarts_empty_is_filled_again(
    router: Router, redis_server: RedisServer
) -> None:
    other = Router(URLS)
    leases = [other.acquire(chat()) for _ in range(3)]
    with (
        patient(router, redis_server.url, every_s=0.1) as fleet,
        patient(other, redis_server.url, every_s=0.1),
    ):
        until(lambda: requests_heard(router) == 3)
        redis_server.kill()
        until(lambda: not fleet.stats().connected and not heard(router))
        redis_server.start()
        until(lambda: requests_heard(router) == 3)
        assert fleet.stats().losses == 1
        assert fleet.stats().fingerprints == {router.fingerprint: 2}
    for lease in leases:
        lease.release()


def test_a_server_that_comes_later_is_found(router: Router, redis_server: RedisServer) -> None:
    redis_server.kill()
    with patient(router, redis_server.url, every_s=0.05) as fleet:
        until(lambda: fleet.stats().losses == 1)
        assert fleet.stats().age_s is None
        redis_server.start()
        until(lambda: told(router))


def test_a_server_that_never_answers_blocks_nothing(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://:hunter2@127.0.0.1:{silent.getsockname()[1]}"
        fleet = RedisFleet(router, url, timeout_s=0.5)
        with fleet:
            decisions_s(router)  # all of them, while the first turn hangs
            until(lambda: fleet.stats().losses == 1)
            assert heard(router) == {}
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot be used" in warning
    assert "hunter2" not in caplog.text


def test_what_is_in_the_way_is_said_once(
    router: Router, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.set("{prefixroute}:owners", "not a hash")
    fleet = patient(router, redis_server.url)
    for _ in range(5):
        assert not fleet.turn()
    assert caplog.text.count("WRONGTYPE") == 1
    with redis_server.client() as client:
        client.delete("{prefixroute}:owners")
    assert fleet.turn()
    fleet._link.close()


def test_shares_that_nobody_can_read_are_passed_over(
    router: Router, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.hset("{prefixroute}:owners", "stranger", b"\xc1\xff")
        client.zadd("{prefixroute}:deadlines", {"stranger": 1e15, "late": 1.0})
    fleet = patient(router, redis_server.url)
    assert fleet.turn()
    assert requests_heard(router) == 0
    assert fleet.stats().peers == 1  # it says that it is there
    fleet._link.close()


def test_a_client_that_decodes_is_refused_once(
    router: Router, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    def connect() -> redis.Redis:
        return redis.Redis(port=redis_server.port, decode_responses=True)

    with RedisFleet(router, connect, every_s=0.01) as fleet:
        until(lambda: "decode_responses" in caplog.text)
        until(lambda: fleet.stats().turns > 5)
    assert caplog.text.count("talking to other routers failed") == 1


def test_ending_does_not_wait_for_a_server_that_is_lost(
    router: Router, redis_server: RedisServer
) -> None:
    fleet = RedisFleet(router, redis_server.url, every_s=0.05, timeout_s=0.2)
    fleet.start()
    until(lambda: told(router))
    redis_server.kill()
    fleet.stop()
    fleet.stop()  # safe to repeat
    assert not any(thread.name == "prefixroute-fleet" for thread in threading.enumerate())
