"""``Router.wrap``: the same type back, with all that the client had."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import httpx2
import pytest
import trio
from anthropic import Anthropic, AnthropicBedrock, AnthropicVertex, AsyncAnthropic
from openai import (
    APIConnectionError,
    AsyncAzureOpenAI,
    AsyncOpenAI,
    AzureOpenAI,
    DefaultHttpxClient,
    InternalServerError,
    OpenAI,
    RateLimitError,
)

from prefixroute import (
    AttemptsFailed,
    Endpoint,
    Failover,
    KeyUnavailable,
    Router,
    UnsupportedClientError,
)
from prefixroute.testing import FakeCluster, RateLimited, Refuse
from prefixroute.transports import RoutedTransport

MESSAGES: Any = [{"role": "user", "content": "hello " * 100}]
KINDS: list[Any] = [OpenAI, AsyncOpenAI, Anthropic, AsyncAnthropic]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeCluster, list[str]]]:
    cluster = FakeCluster(3, time_scale=0)
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


def ask(client: Any) -> Any:
    """Return what the client's kind calls a chat; a coroutine if it is async."""
    if isinstance(client, OpenAI | AsyncOpenAI):
        return client.chat.completions.create(model="m", messages=MESSAGES)
    return client.messages.create(model="m", messages=MESSAGES, max_tokens=5)


def mock(handler: Callable[[Any], Any]) -> httpx2.MockTransport:
    return httpx2.MockTransport(handler)


def chat(request: Any) -> httpx2.Response:
    message = {"role": "assistant", "content": str(request.url)}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    return httpx2.Response(200, json={**reply, "choices": [choice]})


def noting(note: Callable[[Any], None]) -> httpx2.MockTransport:
    """An engine that says what it was asked."""

    def handler(request: Any) -> httpx2.Response:
        note(request)
        return chat(request)

    return mock(handler)


def asked(client: OpenAI) -> str:
    """The URL that a chat of a client with ``chat`` as its engine went to."""
    return str(ask(client).choices[0].message.content)


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
def test_sync_clients(kind: Any, router: Router, cluster: FakeCluster) -> None:
    with kind(api_key="mine") as plain, router.wrap(plain) as client:
        assert type(client) is kind
        for _ in range(3):
            ask(client)
    assert len({request.replica for request in cluster.requests}) == 1
    assert len(cluster.requests) == 3
    assert router.stats().in_flight == 0
    assert router.stats().cached_tokens > 0


def test_a_client_of_the_older_library(router: Router) -> None:
    legacy: Any = httpx.Client()
    with router.wrap(OpenAI(api_key="mine", http_client=legacy)) as client:
        assert isinstance(client._client, legacy.__class__)
        assert ask(client).usage.prompt_tokens > 0
    legacy.close()


@pytest.mark.parametrize("run", [asyncio.run, trio.run], ids=["asyncio", "trio"])
@pytest.mark.parametrize("kind", [AsyncOpenAI, AsyncAnthropic])
def test_async_clients(kind: Any, run: Any, router: Router, cluster: FakeCluster) -> None:
    async def main() -> None:
        async with kind(api_key="mine") as plain, router.wrap(plain) as client:
            assert type(client) is kind
            for _ in range(3):
                await ask(client)

    if run is trio.run:
        run(main)
    else:
        run(main())
    assert len({request.replica for request in cluster.requests}) == 1
    assert router.stats().in_flight == 0


def test_streams(router: Router, cluster: FakeCluster) -> None:
    with router.wrap(OpenAI(api_key="mine")) as client:
        with client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
            assert router.stats().in_flight == 1
            next(stream)
        assert router.stats().in_flight == 0
        text = "".join(
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            if chunk.choices
        )
        assert text == ask(client).choices[0].message.content
    with (
        router.wrap(Anthropic(api_key="mine")) as claude,
        claude.messages.stream(model="m", messages=MESSAGES, max_tokens=5) as events,
    ):
        assert events.get_final_message().usage.output_tokens > 0
    assert router.stats().in_flight == 0


def test_async_streams(router: Router) -> None:
    async def main() -> None:
        async with router.wrap(AsyncOpenAI(api_key="mine")) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            async for _ in stream:
                assert router.stats().in_flight == 1
            assert router.stats().in_flight == 0

    asyncio.run(main())


def test_responses_are_continued(router: Router, cluster: FakeCluster) -> None:
    with router.wrap(OpenAI(api_key="mine")) as client:
        for _ in range(4):
            first = client.responses.create(model="m", input="hello " * 50)
            client.responses.create(model="m", input="next", previous_response_id=first.id)
    asked = [request.replica for request in cluster.requests]
    assert asked[0::2] == asked[1::2]  # each went where the response that it continues came from


def test_settings_survive() -> None:
    router = Router(["http://h:8000/v1"])
    plain = OpenAI(
        api_key="mine",
        organization="org",
        project="proj",
        base_url="http://elsewhere/v1",
        timeout=httpx2.Timeout(7.0, read=8.0),
        max_retries=5,
        default_headers={"x-own": "1"},
        default_query={"q": "2"},
    )
    seen: list[Any] = []
    plain._client = httpx2.Client(transport=noting(seen.append))
    client = router.wrap(plain)
    assert (client.organization, client.project, client.max_retries) == ("org", "proj", 5)
    assert client.timeout == httpx2.Timeout(7.0, read=8.0)
    assert str(client.base_url) == f"{router.base_url}/"
    assert str(plain.base_url) == "http://elsewhere/v1/"
    assert asked(client) == "http://h:8000/v1/chat/completions?q=2"
    (request,) = seen
    assert request.headers["openai-organization"] == "org"
    assert request.headers["openai-project"] == "proj"
    assert request.headers["authorization"] == "Bearer mine"
    assert request.headers["x-own"] == "1"
    assert request.extensions["timeout"]["read"] == 8.0


def test_anthropics_settings_survive() -> None:
    router = Router(["http://h:8000/v1"])
    seen: list[Any] = []

    def handler(request: Any) -> httpx2.Response:
        seen.append(request)
        usage = {"input_tokens": 1, "output_tokens": 1}
        return httpx2.Response(200, json={"type": "message", "content": [], "usage": usage})

    plain = Anthropic(
        api_key="mine",
        timeout=9.0,
        max_retries=4,
        default_headers={"x-own": "1"},
        http_client=httpx2.Client(transport=mock(handler)),
    )
    client = router.wrap(plain)
    assert (client.timeout, client.max_retries) == (9.0, 4)
    assert str(client.base_url).rstrip("/") == router.root_url
    ask(client)
    ask(plain)
    routed, direct = seen
    assert str(routed.url) == "http://h:8000/v1/messages"
    assert routed.headers["x-own"] == "1"
    assert any("mine" in value for value in routed.headers.values())
    del routed.headers["host"], direct.headers["host"]
    assert routed.headers.raw == direct.headers.raw


def test_a_callable_key_survives() -> None:
    router = Router(["http://h:8000/v1"])
    seen: list[str] = []
    keys = iter(["one", "two"])
    http = httpx2.Client(transport=noting(lambda r: seen.append(r.headers["authorization"])))
    client = router.wrap(OpenAI(api_key=lambda: next(keys), http_client=http))
    ask(client)
    ask(client)
    assert seen == ["Bearer one", "Bearer two"]


def test_options_of_a_wrapped_client_stay_routed() -> None:
    router = Router(["http://h:8000/v1"])
    client = router.wrap(OpenAI(api_key="k", http_client=httpx2.Client(transport=mock(chat))))
    for made in (client.with_options(timeout=3.0), client.copy(max_retries=0)):
        assert asked(made) == "http://h:8000/v1/chat/completions"
    assert client.with_options(timeout=3.0).timeout == 3.0
    assert router.stats().requests == 2


def test_an_http_clients_own_settings_survive() -> None:
    router = Router(["http://h:8000/v1"])
    seen: list[str] = []

    class Own(httpx2.Client):
        extra = 0

        def send(self, request: Any, **given: Any) -> Any:
            seen.append("send")
            return super().send(request, **given)

    hooks: dict[str, list[Callable[..., Any]]] = {
        "request": [lambda r: seen.append("request")],
        "response": [lambda r: seen.append("response")],
    }
    http = Own(
        transport=noting(lambda r: seen.append(r.headers.get("cookie", ""))),
        event_hooks=hooks,
        cookies={"a": "b"},
        headers={"x-http": "1"},
        auth=("user", "pass"),
        max_redirects=3,
    )
    http.extra = 7
    client = router.wrap(OpenAI(api_key="k", http_client=http))
    ask(client)
    assert seen == ["send", "request", "a=b", "response"]
    assert type(client._client) is Own
    assert client._client.extra == 7
    assert client._client.max_redirects == 3
    assert http._transport is not client._client._transport
    http.close()


def test_mounts_and_proxies_survive() -> None:
    router = Router(["http://h:8000/v1", "http://special:8000/v1"])
    tags: list[str] = []

    def tagged(tag: str) -> httpx2.MockTransport:
        return noting(lambda r: tags.append(f"{tag} {r.url.host}"))

    mounts = {"http://special": tagged("special"), "https://prefixroute.invalid": tagged("wrong")}
    http = httpx2.Client(transport=tagged("default"), mounts=mounts)
    client = router.wrap(OpenAI(api_key="k", http_client=http))
    for _ in range(4):
        client.models.with_raw_response.list()
    assert set(tags) == {"default h", "special special"}


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy that answers itself; its URL, and the request lines that it got."""
    lines: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            lines.append(self.requestline)
            self.rfile.read(int(self.headers["content-length"]))
            body = chat(self).content
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        url = ""

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", lines
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("where", ["argument", "environment"])
def test_case_49_a_proxy_is_used(
    proxy: tuple[str, list[str]], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, lines = proxy
    http = None
    if where == "environment":
        monkeypatch.setenv("HTTP_PROXY", url)
    else:
        http = httpx2.Client(proxy=url)
    router = Router(["http://gpu.internal:8000/v1"])
    with router.wrap(OpenAI(api_key="k", max_retries=0, http_client=http)) as client:
        ask(client)
    assert lines == ["POST http://gpu.internal:8000/v1/chat/completions HTTP/1.1"]


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_case_49_a_proxy_of_an_inner_transport_is_used(
    proxy: tuple[str, list[str]], module: Any
) -> None:
    url, lines = proxy
    router = Router(["http://gpu.internal:8000/v1"])
    inner = module.HTTPTransport(proxy=url)
    with inner, module.Client(transport=router.transport(inner)) as client:
        assert client.post(f"{router.base_url}/chat/completions", json={}).status_code == 200
    assert lines == ["POST http://gpu.internal:8000/v1/chat/completions HTTP/1.1"]


@pytest.mark.parametrize("excluded", ["internal", "*"])
def test_case_49_no_proxy_is_used_for_hosts_that_are_excluded(
    proxy: tuple[str, list[str]], router: Router, excluded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the endpoint's host: the placeholder's would say nothing."""
    monkeypatch.setenv("HTTP_PROXY", proxy[0])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1" if excluded == "internal" else excluded)
    with router.wrap(OpenAI(api_key="k", max_retries=0)) as client:
        ask(client)
    assert proxy[1] == []


def test_case_49_the_routers_own_clients_read_no_proxy_from_the_environment(
    proxy: tuple[str, list[str]], router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy[0])
    with router.client() as client:
        assert client.post("/chat/completions", json={"messages": MESSAGES}).status_code == 200
    assert proxy[1] == []


def test_a_twin_has_the_settings_and_other_connections() -> None:
    from prefixroute.transports.twins import can_have_twin, twin_of

    context = ssl.create_default_context()
    for module in (httpx, httpx2):
        for kind in (module.HTTPTransport, module.AsyncHTTPTransport):
            limits = module.Limits(max_connections=7, max_keepalive_connections=3)
            for proxy in (None, "http://proxy:3128"):
                made: Any = kind(verify=context, limits=limits, proxy=proxy, retries=2)
                assert can_have_twin(made)
                twin = twin_of(made)
                assert type(twin) is type(made)
                mine, other = vars(twin._pool).copy(), vars(made._pool).copy()
                for name in ("_connections", "_requests", "_optional_thread_lock"):
                    assert mine.pop(name) is not other.pop(name)
                backends = mine.pop("_network_backend"), other.pop("_network_backend")
                assert type(backends[0]) is type(backends[1])
                assert mine == other
        assert not can_have_twin(module.MockTransport(chat))

        class Own(module.HTTPTransport):  # type: ignore[name-defined, misc]
            pass

        assert not can_have_twin(Own())
    assert not can_have_twin(object())


def test_closing_a_wrapped_client_leaves_the_original_open(router: Router) -> None:
    with OpenAI(api_key="k", base_url=router.endpoints[0].url) as plain:
        first, second = router.wrap(plain), router.wrap(plain)
        ask(first)
        ask(second)
        first.close()
        assert first.is_closed()
        assert not plain.is_closed()
        ask(second)
        ask(plain)
        second.close()
        ask(plain)


def test_the_original_may_be_closed_or_dropped(router: Router) -> None:
    plain = OpenAI(api_key="k")
    gone = weakref.ref(plain)
    client = router.wrap(plain)
    with client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
        next(stream)
        plain.close()
        del plain
        gc.collect()
        assert gone() is None
        assert len(list(stream)) > 1
    ask(client)
    client.close()


def test_a_wrapped_client_that_nobody_closes(router: Router) -> None:
    """Warnings are errors here: a socket that is collected open would give one."""
    for http in (None, httpx2.Client(), DefaultHttpxClient()):
        client = router.wrap(OpenAI(api_key="k", http_client=http))
        ask(client)
        del client
        gc.collect()

    clients = []

    async def main() -> None:
        for http in (None, httpx2.AsyncClient()):
            clients.append(router.wrap(AsyncOpenAI(api_key="k", http_client=http)))
            await ask(clients[-1])

    asyncio.run(main())
    clients.clear()
    gc.collect()


def test_case_43_a_wrapped_client_in_two_event_loops(router: Router) -> None:
    client = router.wrap(AsyncOpenAI(api_key="k"))

    async def main() -> None:
        await ask(client)
        await asyncio.gather(*[ask(client) for _ in range(3)])

    for _ in range(3):
        asyncio.run(main())
        gc.collect()
    trio.run(lambda: ask(client))
    assert router.stats().requests == 13


def test_wrapping_again_replaces_the_router() -> None:
    one, two = Router(["http://one:1/v1"]), Router(["http://two:2/v1"])
    plain = OpenAI(api_key="k", http_client=httpx2.Client(transport=mock(chat)))
    assert asked(two.wrap(one.wrap(plain))) == "http://two:2/v1/chat/completions"
    assert (one.stats().requests, two.stats().requests) == (0, 1)


def test_the_ways_that_need_no_wrap(router: Router) -> None:
    for library in ("httpx", "httpx2"):
        http: Any = router.client(library)
        with OpenAI(base_url=router.base_url, api_key="-", http_client=http) as client:
            assert ask(client).usage.prompt_tokens > 0
    with Anthropic(
        base_url=router.root_url, api_key="-", http_client=router.client("httpx2")
    ) as claude:
        assert ask(claude).usage.input_tokens > 0
    with httpx.Client(base_url=router.base_url, transport=router.transport()) as plain:
        reply = plain.post("/chat/completions", json={"model": "m", "messages": MESSAGES})
        assert reply.json()["usage"]["prompt_tokens"] > 0


# -- failures, as the SDK's users see them ---------------------------------------------------------


def test_sdk_errors(router: Router, cluster: FakeCluster) -> None:
    with router.wrap(OpenAI(api_key="k", max_retries=0)) as client:
        for index in range(3):
            cluster.fail(index, RateLimited(retry_after_s=3))
        with pytest.raises(RateLimitError) as limited:
            ask(client)
        assert limited.value.response.headers["retry-after"] == "3"
        assert limited.value.body
        for index in range(3):
            router.readmit(router.endpoints[index])
            cluster.fail(index, Refuse())
        with pytest.raises(APIConnectionError) as refused:
            ask(client)
    attempts = refused.value.__cause__.__cause__  # type: ignore[union-attr]
    assert isinstance(attempts, AttemptsFailed)
    assert len(attempts.attempts) == 3


def test_sdk_retries_and_ours_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.SyncAPIClient._sleep_for_retry", lambda *_, **__: None)
    router = Router([f"http://h-{n}:8000/v1" for n in range(8)])
    hosts: list[str] = []

    def busy(request: Any) -> httpx2.Response:
        hosts.append(request.url.host)
        return httpx2.Response(503, json={})

    http = httpx2.Client(transport=mock(busy))
    client = router.wrap(OpenAI(api_key="k", max_retries=2, http_client=http))
    with pytest.raises(InternalServerError):
        ask(client)
    assert len(hosts) == 3 + 1 + 1


def test_waiting_ends_in_what_the_sdk_knows() -> None:
    router = Router(
        [Endpoint("http://h:8000/v1", max_in_flight=1)], failover=Failover(queue_timeout_s=0)
    )
    http = httpx2.Client(transport=mock(chat))
    client = router.wrap(OpenAI(api_key="k", max_retries=0, http_client=http))
    with router.acquire("x"), pytest.raises(InternalServerError) as saturated:
        ask(client)
    assert saturated.value.status_code == 503
    assert saturated.value.code == "saturated"


# -- what cannot be wrapped ------------------------------------------------------------------------


class WithItsOwn(OpenAI):
    def __init__(self) -> None:
        super().__init__(api_key="k")


class AsyncWithItsOwn(AsyncAnthropic):
    def __init__(self) -> None:
        super().__init__(api_key="k")


class Plain(OpenAI):
    """Adds nothing that a copy would lose."""


def azure(kind: Any) -> Any:
    return kind(api_key="k", azure_endpoint="http://azure", api_version="1")


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: azure(AzureOpenAI), r"AzureOpenAI\): it signs.*router\.wrap\(OpenAI\("),
    (lambda: azure(AsyncAzureOpenAI), r"AsyncAzureOpenAI\): it signs"),
    (
        lambda: AnthropicBedrock(
            aws_access_key="a", aws_secret_key="b", aws_region="us-east-1", api_key=None
        ),
        r"AnthropicBedrock\): it signs.*router\.wrap\(Anthropic\(",
    ),
    (
        lambda: AnthropicVertex(region="x", project_id="y", access_token="z"),
        r"AnthropicVertex\): it signs",
    ),
    (
        WithItsOwn,
        r"WithItsOwn\): its class has a constructor.*base_url=router\.base_url and "
        r"http_client=router\.client\(\"httpx2\"\)",
    ),
    (
        AsyncWithItsOwn,
        r"constructor.*base_url=router\.root_url and "
        r"http_client=router\.async_client\(\"httpx2\"\)",
    ),
    (httpx.Client, r"httpx\.Client\): it is an HTTP client.*router\.transport\(\)"),
    (httpx2.AsyncClient, r"httpx2\.AsyncClient\).*router\.async_transport\(\)"),
    (lambda: OpenAI, r"it is a class; give an instance"),
    (lambda: None, r"NoneType\): it is not an OpenAI.*router\.base_url"),
    (lambda: "http://h", r"str\): it is not an OpenAI"),
    (lambda: RoutedTransport, r"it is a class"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_wrapped(make: Callable[[], Any], message: str) -> None:
    router = Router(["http://h:8000/v1"])
    client = make()
    with pytest.raises(TypeError, match=message) as refused:
        router.wrap(client)
    assert isinstance(refused.value, UnsupportedClientError)


def test_a_client_of_a_provider_is_refused() -> None:
    from openai.providers import bedrock

    provider = bedrock(region="us-east-1", api_key="k")
    client = OpenAI(provider=provider)
    with pytest.raises(TypeError, match="it signs or rewrites"):
        Router(["http://h:8000/v1"]).wrap(client)


def test_a_client_whose_copy_fails_is_refused() -> None:
    class Odd(OpenAI):
        def copy(self, **_: Any) -> Any:
            raise ValueError("no")

    with pytest.raises(TypeError, match=r"its copy\(\) failed \(ValueError\).*router\.client"):
        Router(["http://h:8000/v1"]).wrap(Odd(api_key="k"))


def test_a_plain_subclass_is_wrapped() -> None:
    router = Router(["http://h:8000/v1"])
    client = router.wrap(Plain(api_key="k", http_client=httpx2.Client(transport=mock(chat))))
    assert type(client) is Plain
    assert asked(client) == "http://h:8000/v1/chat/completions"


def test_keys_are_in_no_repr_or_error() -> None:
    secrets = ("sekrit", "passw0rd", "hello hello")
    router = Router(
        [
            Endpoint("http://a:1/v1", api_key="sekrit", headers={"x": "sekrit"}),
            "http://user:passw0rd@b:2/v1",
        ]
    )
    http = httpx2.Client(transport=mock(lambda r: httpx2.Response(503, json={})))
    client = router.wrap(OpenAI(api_key="sekrit", max_retries=0, http_client=http))
    with pytest.raises(InternalServerError) as failed:
        ask(client)
    transport = client._client._transport
    decision = failed.value.response.extensions["prefixroute"]
    shown = [router, transport, decision, router.stats(), failed.value, router.endpoints]
    shown.append(router.explain(json.dumps({"messages": MESSAGES}).encode()))
    for one in shown:
        text = repr(one) + str(one)
        assert not any(secret in text for secret in secrets), text


def test_an_sdk_does_not_see_a_key_expire() -> None:
    keys = ["old", "new"]
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(request.headers["authorization"])
        return chat(request) if seen[-1] == "Bearer new" else httpx2.Response(401, json={})

    endpoint = Endpoint("http://h:8000/v1", api_key=lambda: keys.pop(0))
    http = httpx2.Client(transport=mock(answer))
    client = Router([endpoint]).wrap(OpenAI(api_key="-", max_retries=0, http_client=http))
    ask(client)
    assert seen == ["Bearer old", "Bearer new"]


def test_an_sdk_says_why_there_is_no_key() -> None:
    def sealed() -> str:
        raise PermissionError("the vault is sealed")

    http = httpx2.Client(transport=mock(chat))
    router = Router([Endpoint("http://h:8000/v1", api_key=sealed)])
    with pytest.raises((KeyUnavailable, APIConnectionError)) as failed:
        ask(router.wrap(OpenAI(api_key="-", max_retries=0, http_client=http)))
    error: BaseException | None = failed.value
    if not isinstance(error, KeyUnavailable):  # older ones wrap whatever is raised
        error = error.__cause__ if error is not None else None
    assert isinstance(error, KeyUnavailable)
    assert isinstance(error.__cause__, PermissionError)
