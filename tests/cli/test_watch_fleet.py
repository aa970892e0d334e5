"""``prefixroute watch`` on a fleet's server: real routers, a real Redis or Valkey."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from prefixroute import Nested, Router
from prefixroute.cli.app import app
from prefixroute.cli.watch_fleet import FleetSource
from prefixroute.cli.watch_view import EndpointView, SourceLost, View
from prefixroute.signals.redis import RedisFleet
from tests.signals.redis_server import NO_SERVER, SERVERS, RedisServer, redis_server, until

__all__ = ["redis_server"]

URLS = [f"http://gpu-{number}:8000/v1" for number in range(4)]
SYSTEM = "You are the guide of a museum. " * 400


def body(text: str = "When?") -> dict[str, object]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {"model": "m", "stream": True, "messages": messages}


@contextmanager
def fleet(router: Router, server: RedisServer, **settings: Any) -> Iterator[RedisFleet]:
    """One that speaks when it is told to, and does not take a busy machine for a lost server."""
    made = RedisFleet(router, server.url, timeout_s=30.0, every_s=5.0, ttl_s=600.0, **settings)
    try:
        yield made
    finally:
        made._link.close()


@contextmanager
def watching(url: str, namespace: str = "prefixroute", **settings: Any) -> Iterator[FleetSource]:
    source = FleetSource(url, namespace=namespace, **settings)
    try:
        yield source
    finally:
        source.close()


def view(server: RedisServer, **settings: Any) -> View:
    with watching(server.url, **settings) as source:
        return source.read()


def told(view: View) -> dict[str, EndpointView]:
    return {one.id: one for one in view.endpoints}


def test_what_the_routers_have_together(redis_server: RedisServer) -> None:
    with (
        Router(URLS, clock=lambda: 0.0) as one,
        Router(URLS, clock=lambda: 0.0) as other,
        fleet(one, redis_server) as first,
        fleet(other, redis_server) as second,
    ):
        leases = [one.acquire(body()) for _ in range(3)] + [other.acquire(body("Why?"))]
        assert first.turn()
        assert second.turn()
        shown = view(redis_server)
        assert shown.routers == 2
        assert shown.total.in_flight == 4
        assert (shown.total.queued_tokens or 0) > 1000
        assert set(told(shown)) == set(URLS)  # those without requests too
        for url in URLS:
            here = sum(lease.endpoint.id == url for lease in leases)
            assert told(shown)[url].in_flight == here
        for lease in leases:
            lease.release()
    one_endpoint = told(shown)[URLS[0]]
    for unknown in ("health", "hit_rate", "ttft_p50_s", "spills", "failures", "ejections"):
        assert getattr(one_endpoint, unknown) is None
    assert any("an application's metrics tell them" in note for note in shown.notes)


def test_ejections_and_drains(redis_server: RedisServer) -> None:
    with (
        Router(URLS) as one,
        Router(URLS) as other,
        fleet(one, redis_server, share_membership=True) as first,
        fleet(other, redis_server, share_membership=True) as second,
    ):
        assert first.turn()
        one.eject(URLS[0])
        one.drain(URLS[1])
        other.remove(URLS[2])
        assert first.turn()
        assert second.turn()
        shown = told(view(redis_server))
    assert shown[URLS[0]].health == "ejected by 1 of 2"
    assert shown[URLS[1]].health == "draining"
    assert shown[URLS[3]].health is None


def test_hot_prefixes_with_their_sizes(redis_server: RedisServer) -> None:
    with Router(URLS) as router, fleet(router, redis_server) as spoken:
        for number in range(12):
            router.acquire(body(f"{number}")).release()
        assert spoken.turn()
        spoken._talk.leave_hot()
        hottest = view(redis_server).hottest
        boundaries = {one.key: one.tokens for one in router.explain(body()).boundaries}
    assert hottest is not None
    assert round(hottest[0].requests) == 12
    assert hottest[0].tokens == round(boundaries[hottest[0].digest])
    assert hottest[0].endpoints == 4


def test_routers_that_do_not_agree_are_told(redis_server: RedisServer) -> None:
    with (
        Router(URLS) as one,
        Router(URLS, placement=Nested(block_bytes=512)) as other,
        fleet(one, redis_server) as first,
        fleet(other, redis_server) as second,
    ):
        assert first.turn()
        assert second.turn()
        (note,) = [note for note in view(redis_server).notes if "do not agree" in note]
        assert one.fingerprint in note
        assert other.fingerprint in note


def test_a_fleet_that_has_gone_is_not_taken_for_one(redis_server: RedisServer) -> None:
    assert any("there is no router" in note for note in view(redis_server).notes)
    with Router(URLS, clock=lambda: 0.0) as router, fleet(router, redis_server) as spoken:
        lease = router.acquire(body())
        assert spoken.turn()
        with redis_server.client() as client:  # it was killed, and nobody is left to notice
            client.zadd("{prefixroute}:deadlines", {spoken._talk.owner: 1})
        shown = view(redis_server)
        lease.release()
    assert (shown.routers, shown.endpoints, shown.total.in_flight) == (0, [], 0)
    assert any("there is no router" in note for note in shown.notes)


def test_another_fleet_of_the_same_server(redis_server: RedisServer) -> None:
    with Router(URLS) as router, fleet(router, redis_server, prefix="evals") as spoken:
        assert spoken.turn()
    assert view(redis_server).routers == 0
    assert view(redis_server, namespace="evals").routers == 1


def test_it_reads_and_no_more(redis_server: RedisServer) -> None:
    """The user is the one that docs/observability.md names."""
    with Router(URLS) as router, fleet(router, redis_server, share_membership=True) as spoken:
        for number in range(12):
            router.acquire(body(f"{number}")).release()
        router.drain(URLS[0])
        assert spoken.turn()
        spoken._talk.leave_hot()
        with redis_server.client() as client:
            rules = "reset on >hunter2 %R~{prefixroute}:* +hgetall +get +mget +time +zcard"
            client.execute_command("ACL", "SETUSER", "watcher", *rules.split(), "+zrangebyscore")
            before = {key: client.dump(key) for key in client.scan_iter()}
            with watching(redis_server.url.replace("//", "//watcher:hunter2@")) as source:
                assert "hunter2" not in source.shown
                shown = source.read()
            assert {key: client.dump(key) for key in client.scan_iter()} == before
    assert (shown.routers, len(shown.endpoints)) == (1, 4)
    assert told(shown)[URLS[0]].health == "draining"
    assert shown.hottest


def test_what_anybody_may_have_written_does_no_harm(redis_server: RedisServer) -> None:
    with Router(URLS) as router, fleet(router, redis_server) as spoken:
        assert spoken.turn()
        with redis_server.client() as client:
            client.hset("{prefixroute}:totals", "n:evil\x1b[2J\n[red]", "7")
            client.hset("{prefixroute}:totals", "n:none", "many")
            client.hset("{prefixroute}:totals", b"n:\xff", "1e999")
            client.hset("{prefixroute}:members", "x", b"\xc1")
            client.set(f"{{prefixroute}}:about:{router.fingerprint}", b"[1]")
        result = CliRunner().invoke(app, ["watch", redis_server.url, "--once"])
    assert result.exit_code == 0
    assert "evil?[2J?[red]" in result.stdout
    assert "\x1b" not in result.stdout
    assert "are not known yet" in result.stdout


def test_a_server_that_is_lost_and_comes_back(redis_server: RedisServer) -> None:
    with Router(URLS) as router, fleet(router, redis_server) as spoken:
        assert spoken.turn()
        with watching(redis_server.url) as source:
            assert source.read().routers == 1
            redis_server.kill()
            with pytest.raises(SourceLost, match="ConnectionError"):
                source.read()
            redis_server.start()
            assert source.read().routers == 0
            spoken.turn()
            assert spoken.turn()
            assert source.read().routers == 1


@pytest.mark.skipif(not SERVERS, reason=NO_SERVER)
def test_a_cluster(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, SERVERS[0], "--cluster-enabled", "yes")
    server.start()
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        with Router(URLS) as router, fleet(router, server, cluster=True) as spoken:
            for number in range(12):
                router.acquire(body(f"{number}")).release()
            assert spoken.turn()
            spoken._talk.leave_hot()
            shown = view(server, cluster=True)
    finally:
        server.kill()
    assert (shown.routers, len(shown.endpoints)) == (1, 4)
    assert shown.hottest


def test_once_as_json_and_on_paper(redis_server: RedisServer) -> None:
    with Router(URLS, clock=lambda: 0.0) as router, fleet(router, redis_server) as spoken:
        lease = router.acquire(body())
        assert spoken.turn()
        asked = ["watch", redis_server.url, "--once"]
        paper = CliRunner().invoke(app, asked)
        result = CliRunner().invoke(app, [*asked, "--json"])
        lease.release()
    assert result.exit_code == paper.exit_code == 0
    got = cast("dict[str, Any]", json.loads(result.stdout))
    assert got["source"] == redis_server.url
    assert got["total"]["in_flight"] == 1
    assert got["total"]["hit_rate"] is None
    row = next(line for line in paper.stdout.splitlines() if line.startswith("gpu-0 "))
    assert row.split()[5:] == ["-"] * 8
    assert "4 endpoints, 1 router, 1 in flight" in paper.stdout


def test_snapshots_of_routers_that_do_not_tell_sizes_are_read(redis_server: RedisServer) -> None:
    with Router(URLS) as router, fleet(router, redis_server) as spoken:
        assert spoken.turn()
        now_ms = spoken._talk.view.now_ms
        packed = msgspec.msgpack.encode(["x", now_ms, 600.0, {1: 9.0}, [[7, 5.0, 2]]])
        with redis_server.client() as client:
            client.set(spoken._talk.place(0), packed)
        (one,) = view(redis_server).hottest or ()
    assert (one.digest, one.tokens, one.endpoints) == ("0000000000000007", None, 2)
