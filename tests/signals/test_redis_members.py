"""Drains and changes of the membership that one router makes and the others follow, if told to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from prefixroute import Endpoint, HealthState, Router
from prefixroute.signals.members import Accept, Record
from tests.signals.redis_server import RedisServer, redis_server
from tests.signals.test_redis import URLS, patient, rounds, states

__all__ = ["redis_server"]

NEW = "http://gpu-9:8000/v1"


class Pair:
    """Two routers of which the second follows the first."""

    def __init__(self, server: RedisServer, accept: Accept | None = None) -> None:
        self.one, self.other = Router(URLS), Router(URLS)
        self.server = server
        self.fleets = [
            patient(self.one, server.url, share_membership=True),
            patient(self.other, server.url, share_membership=True, accept=accept),
        ]
        rounds(self.fleets)

    def urls(self) -> list[str]:
        rounds(self.fleets)
        return [endpoint.url for endpoint in self.other.endpoints]

    def close(self) -> None:
        for fleet in self.fleets:
            fleet._link.close()


@pytest.fixture
def pair(redis_server: RedisServer) -> Iterator[Pair]:
    made = Pair(redis_server)
    yield made
    made.close()


def test_a_drain_is_followed_and_taken_back(pair: Pair) -> None:
    pair.one.drain(URLS[1])
    pair.urls()
    assert states(pair.other)[1] is HealthState.DRAINING
    pair.other.readmit(URLS[1])
    rounds(pair.fleets)
    assert states(pair.one)[1] is HealthState.HEALTHY


def test_who_is_removed_is_removed_everywhere_and_may_come_back(pair: Pair) -> None:
    pair.one.remove(URLS[1])
    assert pair.urls() == [URLS[0], *URLS[2:]]
    pair.one.add(URLS[1])  # the other's own user gave it this URL
    assert set(pair.urls()) == set(URLS)
    assert pair.one.fingerprint == pair.other.fingerprint


def test_the_key_of_who_comes_back_is_the_routers_own(redis_server: RedisServer) -> None:
    pair = Pair(redis_server)
    mine = replace(pair.other.endpoints[1], api_key="mine")
    pair.other.set_endpoints([pair.other.endpoints[0], mine, *pair.other.endpoints[2:]])
    rounds(pair.fleets)
    pair.one.remove(URLS[1])
    rounds(pair.fleets)
    pair.one.add(URLS[1])
    rounds(pair.fleets)
    assert [e.api_key for e in pair.other.endpoints if e.url == URLS[1]] == ["mine"]
    pair.close()


def test_a_url_that_nobody_here_gave_is_not_taken(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.one.add(NEW)
    with caplog.at_level(logging.WARNING, "prefixroute"):
        assert pair.urls() == URLS
        pair.one.remove(NEW)
        rounds(pair.fleets)
        pair.one.add(NEW)
        assert pair.urls() == URLS
    assert caplog.text.count("accept=") == 1


def test_an_id_that_is_known_takes_no_other_url(pair: Pair) -> None:
    """Whoever writes to the server must not send a known endpoint's requests elsewhere."""
    pair.one.remove(URLS[1])
    rounds(pair.fleets)
    pair.one.add(Endpoint("http://evil:1/v1", id=URLS[1]))
    assert pair.urls() == [URLS[0], *URLS[2:]]


def test_a_url_that_the_user_accepts_joins(redis_server: RedisServer) -> None:
    def accept(offered: Endpoint) -> Endpoint | None:
        if not offered.url.startswith("http://gpu-"):
            return None
        return replace(offered, api_key="key-of-the-pool")

    pair = Pair(redis_server, accept)
    pair.one.add(Endpoint(NEW, weight=2.0, tier=1, models=["m"], max_in_flight=3))
    pair.one.add("http://elsewhere:1/v1")
    assert set(pair.urls()) == {*URLS, NEW}
    [joined] = [e for e in pair.other.endpoints if e.url == NEW]
    assert joined.api_key == "key-of-the-pool"
    assert (joined.weight, joined.tier, joined.max_in_flight) == (2.0, 1, 3)
    assert list(joined.models or ()) == ["m"]
    pair.close()


def test_who_comes_later_catches_up(pair: Pair) -> None:
    pair.one.remove(URLS[1])
    pair.one.drain(URLS[2])
    rounds(pair.fleets)
    late = Router(URLS)
    fleet = patient(late, pair.server.url, share_membership=True)
    rounds([fleet])
    assert [endpoint.url for endpoint in late.endpoints] == [URLS[0], *URLS[2:]]
    assert states(late)[1] is HealthState.DRAINING
    fleet._link.close()


def test_without_being_told_to_nothing_is_followed(pair: Pair) -> None:
    deaf = Router(URLS)
    fleet = patient(deaf, pair.server.url)
    rounds([fleet])
    pair.one.remove(URLS[1])
    pair.one.drain(URLS[2])
    rounds([*pair.fleets, fleet])
    assert [endpoint.url for endpoint in deaf.endpoints] == URLS
    assert set(states(deaf)) == {HealthState.HEALTHY}
    fleet._link.close()


def test_the_last_endpoint_stays(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(redis_server)
    with redis_server.client() as client:
        for number, endpoint in enumerate(pair.other.endpoints):
            gone = msgspec.msgpack.encode(Record(endpoint.id, "gone", "stranger"))
            client.hset("{prefixroute}:members", endpoint.id, gone)
            client.hset("{prefixroute}:members", "@", number + 100)
    assert len(pair.urls()) == 1
    assert caplog.text.count("cannot do what another router did") == 2  # each router says so
    pair.close()


def test_what_is_no_record_is_passed_over(pair: Pair) -> None:
    with pair.server.client() as client:
        client.hset("{prefixroute}:members", URLS[0], b"\xff\x00")
        client.hset("{prefixroute}:members", URLS[1], b"x" * 100_000)
        other = msgspec.msgpack.encode(Record(URLS[3], "gone", "stranger"))
        client.hset("{prefixroute}:members", URLS[2], other)  # under another's name
        client.hset("{prefixroute}:members", "@", 100)
    assert pair.urls() == URLS


def test_several_who_do_the_same_say_it_once(pair: Pair) -> None:
    """As where all of them watch the same list."""
    for router in (pair.one, pair.other):
        router.remove(URLS[3])
    rounds(pair.fleets, 3)
    with pair.server.client() as client:
        assert client.hget("{prefixroute}:members", "@") in {b"1", b"2"}
        before = client.hget("{prefixroute}:members", "@")
        rounds(pair.fleets, 3)
        assert client.hget("{prefixroute}:members", "@") == before


def test_records_of_endpoints_that_are_gone_do_not_pile_up(pair: Pair) -> None:
    gone = {
        f"gpu-{number}": msgspec.msgpack.encode(Record(f"gpu-{number}", "gone", "stranger"))
        for number in range(100, 1200)
    }
    pair.one.drain(URLS[1])
    rounds(pair.fleets)
    with pair.server.client() as client:
        client.hset("{prefixroute}:members", mapping=gone)
        client.hset("{prefixroute}:members", "@", 5000)
        rounds(pair.fleets)
        assert client.hlen("{prefixroute}:members") == 2  # the drain, and the version
    assert states(pair.other)[1] is HealthState.DRAINING


def test_what_is_done_while_the_server_is_away_is_told_later(pair: Pair) -> None:
    pair.server.kill()
    pair.one.remove(URLS[1])
    assert not pair.fleets[0].turn()
    assert not pair.fleets[0].turn()
    assert not pair.fleets[1].turn()
    pair.server.start()
    assert pair.urls() == [URLS[0], *URLS[2:]]
