"""TLS settings of one endpoint, against real servers: whom it is trusted by, what it is shown."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
import trustme

from prefixroute import AttemptsFailed, ConfigurationError, Endpoint, Failover, Router
from tests.contract.flavours import Client, Flavour, Inner, maybe
from tests.transports.tls import Server, serve_tls, trusting


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stranger() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[Server]:
    with serve_tls(ca) as serving:
        yield serving


@pytest.fixture
def strict(ca: trustme.CA) -> Iterator[Server]:
    with serve_tls(ca, clients_of=ca) as serving:
        yield serving


def own_client(flavour: Flavour, router: Router) -> Client:
    made: Any = router.client if flavour.is_sync else router.async_client
    return Client(flavour, made(flavour.library))


def test_each_endpoint_has_its_own_settings(
    flavour: Flavour, ca: trustme.CA, server: Server, stranger: trustme.CA
) -> None:
    with serve_tls(stranger) as other:
        endpoints = [
            Endpoint(server.url, ssl_context=trusting(ca)),
            Endpoint(other.url, ssl_context=trusting(stranger)),
        ]
        router = Router(endpoints)

        async def main() -> None:
            async with own_client(flavour, router) as client:
                for _ in range(4):
                    assert (await client.get("/models")).status_code == 200

        flavour.run(main)
        assert len(server.seen) == len(other.seen) == 2
        assert router.stats().failures == 0


@pytest.mark.parametrize("trusts", ["the system", "a stranger"])
@pytest.mark.parametrize("hedged", [False, True])
def test_one_that_is_not_trusted_is_asked_nothing_and_counts(
    flavour: Flavour,
    ca: trustme.CA,
    server: Server,
    stranger: trustme.CA,
    trusts: str,
    hedged: bool,
) -> None:
    context = trusting(stranger) if trusts == "a stranger" else None
    failover = Failover(hedge_after_s=30.0, replay_sent=True) if hedged else Failover()
    with serve_tls(ca) as good:
        endpoints = [
            Endpoint(server.url, ssl_context=context),
            Endpoint(good.url, ssl_context=trusting(ca), tier=1),
        ]
        router = Router(endpoints, failover=failover)

        async def main() -> None:
            async with own_client(flavour, router) as client:
                assert (await client.post()).status_code == 200

        flavour.run(main)
        assert server.seen == []
        assert len(good.seen) == 1
        assert [one.failures for one in router.stats().endpoints] == [1, 0]


def test_nobody_trusted_is_a_connect_error(
    flavour: Flavour, server: Server, stranger: trustme.CA
) -> None:
    router = Router([Endpoint(server.url, ssl_context=trusting(stranger))])

    async def main() -> None:
        async with own_client(flavour, router) as client:
            with pytest.raises(flavour.module.ConnectError) as failed:
                await client.post()
        assert isinstance(failed.value.__cause__, AttemptsFailed)

    flavour.run(main)


def test_a_client_certificate_is_shown_where_it_belongs(
    flavour: Flavour, ca: trustme.CA, server: Server, strict: Server
) -> None:
    shown = trusting(ca, ca.issue_cert("app@example.org"))
    router = Router(
        [
            Endpoint(strict.url, ssl_context=shown),
            Endpoint(server.url, ssl_context=trusting(ca)),
        ]
    )

    async def main() -> None:
        async with own_client(flavour, router) as client:
            for _ in range(4):
                assert (await client.get("/models")).status_code == 200

    flavour.run(main)
    assert strict.seen == ["app@example.org"] * 2
    assert server.seen == [None] * 2


@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream")
def test_who_shows_no_certificate_is_turned_away(
    flavour: Flavour, ca: trustme.CA, server: Server, strict: Server
) -> None:
    """TLS 1.3 tells a client that after its first bytes: nothing says that they were not read."""
    router = Router(
        [
            Endpoint(strict.url, ssl_context=trusting(ca)),
            Endpoint(server.url, ssl_context=trusting(ca), tier=1),
        ],
        failover=Failover(replay_sent=True),
    )

    async def main() -> None:
        async with own_client(flavour, router) as client:
            assert (await client.post()).status_code == 200

    flavour.run(main)
    assert strict.seen == []
    assert server.seen == [None]
    assert [one.failures for one in router.stats().endpoints] == [1, 0]


# -- clients that bring their own ------------------------------------------------------------


def test_a_wrapped_client_uses_it_too(flavour: Flavour, ca: trustme.CA, strict: Server) -> None:
    shown = trusting(ca, ca.issue_cert("app@example.org"))
    router = Router([Endpoint(strict.url, ssl_context=shown)])
    # Anthropic's clients are of httpx2, OpenAI's take both.
    module: Any = openai if flavour.library == "httpx" else anthropic
    name = "OpenAI" if flavour.library == "httpx" else "Anthropic"

    async def main() -> None:
        kind = flavour.module.Client if flavour.is_sync else flavour.module.AsyncClient
        http = kind(verify=trusting(ca), timeout=5.0)
        made = getattr(module, name if flavour.is_sync else f"Async{name}")
        client = router.wrap(made(api_key="k", http_client=http, max_retries=0))
        await maybe(client.post("/models", cast_to=object, body={}))
        await maybe(client.close())
        await maybe(http.close() if flavour.is_sync else http.aclose())

    flavour.run(main)
    assert strict.seen == ["app@example.org"]


def test_a_wrapped_clients_settings_are_for_the_others(
    flavour: Flavour, ca: trustme.CA, server: Server
) -> None:
    router = Router([server.url])

    async def main() -> None:
        kind = flavour.module.Client if flavour.is_sync else flavour.module.AsyncClient
        http = kind(verify=trusting(ca))
        made = openai.OpenAI if flavour.is_sync else openai.AsyncOpenAI
        client: Any = router.wrap(made(api_key="k", http_client=http, max_retries=0))
        await maybe(client.post("/models", cast_to=object, body={}))
        await maybe(client.close())
        await maybe(http.close() if flavour.is_sync else http.aclose())

    flavour.run(main)
    assert server.seen == [None]


def test_an_inner_transport_has_its_own(flavour: Flavour, ca: trustme.CA) -> None:
    inner = Inner(flavour, lambda _: flavour.module.Response(200))
    endpoint = Endpoint("https://h/v1", ssl_context=trusting(ca))
    with pytest.raises(ConfigurationError, match="give it the context instead"):
        flavour.client(Router([endpoint]), inner)
    router = Router(["https://other/v1"])

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            router.set_endpoints([endpoint])  # later on
            with pytest.raises(ConfigurationError, match="give it the context instead"):
                await client.post()
        assert inner.received == []
        assert router.stats().in_flight == 0

    flavour.run(main)


def test_an_error_of_tls_that_the_library_passes_on_is_the_endpoints(flavour: Flavour) -> None:
    """asyncio's streams raise some of them as they are."""
    router = Router(["http://a:1", "http://b:1"], failover=Failover(replay_sent=True))
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(request.url.host)
        if len(seen) == 1:
            raise ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
        return flavour.module.Response(200)

    async def main() -> None:
        async with flavour.client(router, flavour.module.MockTransport(answer)) as client:
            assert (await client.post()).status_code == 200

    flavour.run(main)
    assert sorted(seen) == ["a", "b"]
    assert router.stats().failures == 1
