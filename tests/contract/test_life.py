"""Who closes what and when, on real sockets."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from prefixroute import ConfigurationError, Router, RouterClosedError
from prefixroute.testing import CutAfter, Disconnect, FakeCluster, Refuse, StaleConnection
from tests.contract.flavours import BODY, CHAT, STREAM, Client, Flavour, Inner, maybe, urls


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeCluster, list[str]]]:
    cluster = FakeCluster(2, time_scale=0)
    with cluster.serve() as found:
        yield cluster, found


@pytest.fixture
def cluster(served: tuple[FakeCluster, list[str]]) -> Iterator[FakeCluster]:
    cluster, _ = served
    cluster.reset()
    yield cluster
    cluster.heal()


@pytest.fixture
def router(served: tuple[FakeCluster, list[str]], cluster: FakeCluster) -> Router:
    return Router(served[1])


def library_client(flavour: Flavour, router: Router) -> Client:
    """What ``Router.client`` and ``Router.async_client`` give."""
    make: Any = router.client if flavour.is_sync else router.async_client
    return Client(flavour, make(flavour.library))


def test_a_client_of_the_router(flavour: Flavour, router: Router) -> None:
    async def main() -> None:
        async with library_client(flavour, router) as client:
            assert type(client.http) is (
                flavour.module.Client if flavour.is_sync else flavour.module.AsyncClient
            )
            assert client.http.timeout == flavour.module.Timeout(600.0, connect=5.0)
            assert (await client.post()).json()["usage"]["prompt_tokens"] > 0
            async with client.streaming() as reply:
                assert (await client.read(reply)).endswith(b"data: [DONE]\n\n")
        assert router.stats().in_flight == 0

    flavour.run(main)


def test_closing_one_client_closes_no_pool_of_another(flavour: Flavour, router: Router) -> None:
    async def main() -> None:
        one, other = library_client(flavour, router), library_client(flavour, router)
        async with other.streaming() as reply:
            await one.post()
            await one.aclose()
            assert (await other.read(reply)).endswith(b"data: [DONE]\n\n")
        await other.post()
        await other.aclose()
        late = library_client(flavour, router)  # the pools were closed with the last one
        await late.post()
        await late.aclose()

    flavour.run(main)


def test_use_after_close(flavour: Flavour, router: Router) -> None:
    async def main() -> None:
        client, kept = library_client(flavour, router), library_client(flavour, router)
        transport = client.http._transport
        await client.aclose()
        await client.aclose()
        with pytest.raises(RuntimeError):
            await client.post()
        request = flavour.module.Request("POST", f"{router.base_url}{CHAT}", json=BODY)
        send = transport.handle_request if flavour.is_sync else transport.handle_async_request
        with pytest.raises(RouterClosedError, match="this transport was closed"):
            await maybe(send(request))
        await kept.post()
        if flavour.is_sync:
            router.close()
        else:
            await router.aclose()
        with pytest.raises(RouterClosedError, match="the router was closed"):
            await kept.post()
        await kept.aclose()
        assert router.route(BODY).endpoint in router.endpoints

    flavour.run(main)


def test_a_router_as_context_manager(flavour: Flavour, router: Router) -> None:
    async def main() -> None:
        for _ in range(2):
            if flavour.is_sync:
                with router:
                    client = library_client(flavour, router)
                    await client.post()
            else:
                async with router:
                    client = library_client(flavour, router)
                    await client.post()
            with pytest.raises(RouterClosedError):
                await client.post()
            await client.aclose()

    flavour.run(main)


def test_case_43_a_client_in_two_event_loops(flavour: Flavour, router: Router) -> None:
    client = library_client(flavour, router)

    async def main() -> None:
        await client.post()
        async with client.streaming() as reply:
            await client.read(reply)

    for _ in range(3):
        flavour.run(main)
        gc.collect()  # nothing is left that would complain of not being closed
    if flavour.is_sync:
        client.http.close()
    assert not router._shared_pools()._loops


def test_case_43_sync_and_async_together(async_flavour: Flavour, router: Router) -> None:
    flavour = async_flavour
    sync = router.client(flavour.library)

    async def main() -> None:
        async with library_client(flavour, router) as client:
            for _ in range(3):
                assert (await client.post()).status_code == 200
                assert sync.post(CHAT, json=BODY).status_code == 200

    flavour.run(main)
    sync.close()


def test_case_43_event_loops_in_threads(async_flavour: Flavour, router: Router) -> None:
    flavour = async_flavour
    statuses: list[int] = []
    client = library_client(flavour, router)

    async def main() -> None:
        statuses.extend([(await client.post()).status_code for _ in range(5)])

    threads = [threading.Thread(target=flavour.run, args=(main,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20
    gc.collect()


def test_what_nobody_closed_closes_itself(flavour: Flavour, router: Router) -> None:
    """Warnings are errors here: a socket that is collected open would give one."""
    urls = [endpoint.url for endpoint in router.endpoints]

    async def main() -> None:
        own = Router(urls)
        await library_client(flavour, own).post()
        await library_client(flavour, own).post(json=STREAM)

    if flavour.mode != "trio":  # trio minds whatever is not closed by hand
        flavour.run(main)
        gc.collect()


# -- faults that only sockets have -----------------------------------------------------------------


def other_than(router: Router, cluster: FakeCluster) -> tuple[int, int]:
    """The index of the replica that BODY goes to, and of the other."""
    at = [endpoint.url for endpoint in router.endpoints].index(
        router.route(BODY, path="/v1/chat/completions").endpoint.url
    )
    return at, 1 - at


def test_case_32_a_refused_connection(
    flavour: Flavour, router: Router, cluster: FakeCluster
) -> None:
    home, other = other_than(router, cluster)
    cluster.fail(home, Refuse())

    async def main() -> None:
        async with library_client(flavour, router) as client:
            assert (await client.post()).headers["x-replica"] == str(other)

    flavour.run(main)


def test_case_35_a_stale_keep_alive(flavour: Flavour, router: Router, cluster: FakeCluster) -> None:
    home, _ = other_than(router, cluster)

    async def main() -> None:
        async with library_client(flavour, router) as client:
            await client.post()
            cluster.fail(home, StaleConnection(), times=1)
            assert (await client.post()).headers["x-replica"] == str(home)
        assert router.stats().failures == 0
        assert router.stats().requests == 2

    flavour.run(main)


def test_the_peer_closes_after_the_request(
    flavour: Flavour, router: Router, cluster: FakeCluster
) -> None:
    home, _ = other_than(router, cluster)
    cluster.fail(home, Disconnect(), times=1)

    async def main() -> None:
        async with library_client(flavour, router) as client:
            with pytest.raises(flavour.module.RemoteProtocolError):
                await client.post()
        assert router.stats().failures == 1
        assert len(cluster.requests) == 1

    flavour.run(main)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("chunks", [0, 2])
def test_case_33_a_stream_that_is_cut(
    flavour: Flavour, router: Router, cluster: FakeCluster, *, chunks: int, reset: bool
) -> None:
    home, _ = other_than(router, cluster)
    cluster.fail(home, CutAfter(chunks=chunks, reset=reset), times=1)

    async def main() -> None:
        async with library_client(flavour, router) as client:
            reply = await client.open()
            with pytest.raises((flavour.module.RemoteProtocolError, flavour.module.ReadError)):
                await client.read(reply)
            await client.close_response(reply)
        assert router.stats().failures == 1
        assert router.stats().in_flight == 0
        assert len(cluster.requests) == 1

    flavour.run(main)


def test_case_28_a_read_timeout(flavour: Flavour) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        router = Router([f"http://127.0.0.1:{server.getsockname()[1]}/v1"])

        async def main() -> None:
            async with library_client(flavour, router) as client:
                with pytest.raises(flavour.module.ReadTimeout):
                    await client.post(timeout=0.05)
            assert router.stats().in_flight == 0
            assert router.stats().failures == 1

        flavour.run(main)


# -- inner transports that are given ---------------------------------------------------------------


def test_an_inner_transport_is_closed_by_its_owner(flavour: Flavour) -> None:
    router = Router(urls(1))
    inner = Inner(flavour, lambda _: flavour.module.Response(200))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post()
        assert inner.closed == 0

    flavour.run(main)


def test_an_inner_transport_of_the_other_library_is_refused(flavour: Flavour) -> None:
    router = Router(urls(1))
    name: Any = "httpx2" if flavour.library == "httpx" else "httpx"
    other = Flavour(name, flavour.mode).module.MockTransport(lambda _: None)

    async def main() -> None:
        async with flavour.client(router, other) as client:
            with pytest.raises(ConfigurationError, match=f"give a {flavour.library} transport"):
                await client.post()

    flavour.run(main)


def test_inner_transports_of_the_wrong_kind_are_refused(flavour: Flavour) -> None:
    router = Router(urls(1))
    module = flavour.module
    wrong = module.ASGITransport(None) if flavour.is_sync else module.WSGITransport(None)
    client = module.Client()
    for inner in (wrong, client, object()):
        with pytest.raises(ConfigurationError, match="must be a transport with handle_"):
            flavour.transport(router, inner)
    client.close()


@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")  # ASGITransport's own
def test_an_application_as_inner_transport(flavour: Flavour) -> None:
    router = Router(urls(2))

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read()
        start_response("200 OK", [("content-type", "application/octet-stream")])
        return [environ["HTTP_HOST"].encode(), b" ", environ["PATH_INFO"].encode(), b" ", body]

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        host = dict(scope["headers"])[b"host"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        answer = b" ".join((host, scope["path"].encode(), body))
        await send({"type": "http.response.body", "body": answer})

    module = flavour.module
    inner = module.WSGITransport(wsgi) if flavour.is_sync else module.ASGITransport(asgi)

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            reply = await client.post(content=b"{}")
        decision = reply.extensions["prefixroute"]
        host = decision.endpoint.url.removeprefix("http://").removesuffix("/v1")
        assert reply.content == f"{host} /v1/chat/completions {{}}".encode()
        assert router.stats().in_flight == 0

    flavour.run(main)


def test_a_fake_cluster_as_inner_transport(flavour: Flavour) -> None:
    cluster = FakeCluster(3, time_scale=0)
    router = Router(cluster.urls)
    inner = cluster.transport() if flavour.is_sync else cluster.async_transport()

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            for _ in range(3):
                await client.post()
        assert len({request.replica for request in cluster.requests}) == 1
        assert router.stats().cached_tokens > 0

    flavour.run(main)
