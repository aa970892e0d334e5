"""Servers as they are run: users with few rights, TLS, a cluster, a socket, a key prefix."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import trustme

from prefixroute import Router
from prefixroute.signals.redis import RedisFleet
from tests.signals.redis_server import NO_SERVER, SERVERS, RedisServer, until
from tests.signals.test_redis import URLS, chat, patient, requests_heard

pytestmark = [
    pytest.mark.skipif(not SERVERS, reason=NO_SERVER),
    pytest.mark.parametrize("program", SERVERS, ids=[Path(name).name for name in SERVERS]),
]

ACL = (
    "user fleet on >hunter2 resetchannels ~{evals}:* &{evals}:* +evalsha +eval +get +set +mget "
    "+hget +hmget +hset +hdel +hgetall +hincrby +del +time +zadd +zcard +zrem +zrangebyscore "
    "+zscore +pexpire +publish +subscribe +unsubscribe"
)
"""The rights that docs/fleets.md names."""


@contextmanager
def running(program: str, folder: Path, *options: str, tls: bool = False) -> Iterator[RedisServer]:
    server = RedisServer(folder, program, *options, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def hears(url: str, **settings: object) -> RedisFleet:
    """Check that two routers hear of each other there, in all ways."""
    one, other = Router(URLS), Router(URLS)
    told = [patient(r, url, share_membership=True, **settings) for r in (one, other)]
    for number in range(40):
        one.acquire(chat(number % 2)).release()
    leases = [one.acquire(chat()) for _ in range(3)]
    assert told[0].turn()
    told[0]._talk.leave_hot()
    assert told[1].turn()
    assert requests_heard(other) == 3
    assert told[1].stats().hot_prefixes > 0
    one.drain(URLS[0])
    assert told[0].turn()

    def drains() -> bool:
        message = told[1]._link.listen(0.1)
        if message is not None:
            told[1]._talk.hear(message)
        return other.own_loads()[other.endpoints[0].id].draining

    until(drains)
    one.eject(URLS[1])
    assert told[0].turn()
    for lease in leases:
        lease.release()
    for fleet in told:
        fleet._every_s = 0.05
        fleet.start()
        until(lambda fleet=fleet: fleet.stats().turns > 2)  # type: ignore[misc]
        fleet.stop()
        assert fleet.stats().losses == 0
    return told[0]


def test_a_user_who_may_do_nothing_else(program: str, tmp_path: Path) -> None:
    rules = tmp_path / "users.acl"
    rules.write_text(f"user default off\n{ACL}\n", encoding="utf-8")
    with running(program, tmp_path, "--aclfile", str(rules)) as server:
        url = f"redis://fleet:hunter2@127.0.0.1:{server.port}/0"
        assert "hunter2" not in repr(hears(url, prefix="evals"))


def test_rights_that_are_missing_are_named_and_no_password(
    program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "users.acl"
    rules.write_text(f"user default off\n{ACL}\n", encoding="utf-8")
    with (
        running(program, tmp_path, "--aclfile", str(rules)) as server,
        caplog.at_level(logging.DEBUG, "prefixroute"),
    ):
        at = f"127.0.0.1:{server.port}/0"
        assert not RedisFleet(Router(URLS), f"redis://fleet:hunter3@{at}").turn()
        assert "AuthenticationError" in caplog.text
        other_prefix = RedisFleet(Router(URLS), f"redis://fleet:hunter2@{at}")
        assert not other_prefix.turn()
        assert "NoPermissionError" in caplog.text
        with RedisFleet(Router(URLS), f"redis://{at}") as nobody:
            until(lambda: nobody.stats().losses)
    assert "hunter" not in caplog.text


def test_tls_with_a_private_authority(
    program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    names = [str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem")]
    authority.cert_pem.write_to_path(names[0])
    certificate.cert_chain_pems[0].write_to_path(names[1])
    certificate.private_key_pem.write_to_path(names[2])
    options = (
        "--tls-ca-cert-file", names[0], "--tls-cert-file", names[1], "--tls-key-file", names[2],
        "--tls-auth-clients", "no",
    )  # fmt: skip
    with running(program, tmp_path, *options, tls=True) as server:
        at = f"rediss://localhost:{server.port}/0"
        hears(f"{at}?ssl_ca_certs={names[0]}")
        assert not RedisFleet(Router(URLS), at).turn()  # an authority that is not trusted
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


def test_a_cluster(program: str, tmp_path: Path) -> None:
    with running(program, tmp_path, "--cluster-enabled", "yes") as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        hears(server.url, cluster=True)


def test_a_socket_and_a_client_of_ones_own(program: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with running(program, tmp_path, "--unixsocket", path) as server:
        hears(f"unix://{path}")
        hears(lambda: redis.Redis(port=server.port, db=1))  # type: ignore[arg-type]


def test_fleets_of_different_prefixes_do_not_hear_of_each_other(
    program: str, tmp_path: Path
) -> None:
    with running(program, tmp_path) as server:
        one, other = Router(URLS), Router(URLS)
        with one.acquire(chat()):
            fleets = [patient(one, server.url), patient(other, server.url, prefix="evals")]
            assert all(fleet.turn() for fleet in fleets)
        assert requests_heard(other) == 0
        assert fleets[1].stats().peers == 0
        for fleet in fleets:
            fleet._link.close()
