"""What reaches an endpoint: URL, headers, key and body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any

import pytest

from prefixroute import Decision, Endpoint, Router
from tests.contract.flavours import BODY, CHAT, Flavour, Inner, Received, in_turn, urls


def ok(flavour: Flavour) -> Any:
    return lambda _: flavour.module.Response(200, json={"ok": True})


def test_the_decision_rides_on_the_response(flavour: Flavour) -> None:
    router = Router(urls(3))
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post()
        decision = response.extensions["prefixroute"]
        assert isinstance(decision, Decision)
        assert decision.endpoint.url == router.route(BODY, path="/v1/chat/completions").endpoint.url
        assert inner.received[0].url == f"{decision.endpoint.url}{CHAT}"
        assert inner.received[0].headers["host"] == f"{inner.hosts[0]}:8000"
        assert response.json() == {"ok": True}

    flavour.run(main)


def test_the_callers_request_is_not_touched(flavour: Flavour) -> None:
    router = Router([Endpoint("http://gpu-0:8000/v1", api_key="secret", headers={"x-team": "a"})])
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post(headers={"authorization": "Bearer mine"})
        assert str(response.request.url) == "https://prefixroute.invalid/v1/chat/completions"
        assert response.request.headers["authorization"] == "Bearer mine"
        assert response.request.headers["host"] == "prefixroute.invalid"
        assert "x-team" not in response.request.headers
        assert inner.received[0].request is not response.request
        assert inner.received[0].headers["x-team"] == "a"
        assert "trace" not in response.request.extensions

    flavour.run(main)


@pytest.mark.parametrize(
    ("url", "asked", "sent"),
    [
        ("http://h:8000", "/v1/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "/v1/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "/v1/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/", "/v1/v1/messages", "http://h:8000/v1/messages"),
        ("http://h/llm/v1", "/v1/models?a=b%20c", "http://h/llm/v1/models?a=b%20c"),
        ("http://h/llm/v1", "/health", "http://h/llm/health"),
        ("http://h/llm", "/v1/models", "http://h/llm/models"),
        ("http://h/v1?version=2", "/v1/models?x=1", "http://h/v1/models?version=2&x=1"),
        ("https://h:443/v1", "/tokenize", "https://h/tokenize"),
        ("http://[::1]:8000/v1", "/v1/models", "http://[::1]:8000/v1/models"),
        ("http://h/v1", "/v1/files/a%2Fb", "http://h/v1/files/a%2Fb"),
    ],
)
def test_case_47_paths(flavour: Flavour, url: str, asked: str, sent: str) -> None:
    router = Router([url])
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner, base_url=router.root_url) as client:
            await client.get(asked)
        assert inner.received[0].url == sent

    flavour.run(main)


def test_other_hosts_pass_through_untouched(flavour: Flavour) -> None:
    router = Router([Endpoint("http://gpu-0:8000/v1", api_key="secret")])
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post("https://example.org/x", headers={"x-api-key": "mine"})
        assert inner.received[0].request is response.request
        assert inner.received[0].url == "https://example.org/x"
        assert inner.received[0].headers["x-api-key"] == "mine"
        assert "prefixroute" not in response.extensions
        assert router.stats().requests == 0

    flavour.run(main)


def failing_over(flavour: Flavour) -> Inner:
    response = flavour.module.Response
    return Inner(flavour, in_turn(lambda _: response(503), lambda _: response(200, json={})))


def test_case_34_json_is_forwarded_byte_for_byte(flavour: Flavour) -> None:
    router = Router(urls(2))
    body = b'{"model": "m",  "messages":[{"role":"user","content":"\\u00e9\xc3\xa9"}]}\n'

    async def main() -> None:
        inner = failing_over(flavour)
        async with flavour.client(router, inner) as client:
            response = await client.post(content=body, headers={"X-Odd-Case": "1"})
        assert response.status_code == 200
        assert [one.body for one in inner.received] == [body, body]
        assert len(set(inner.hosts)) == 2
        for one in inner.received:
            assert one.headers["content-length"] == str(len(body))
            assert "transfer-encoding" not in one.headers
            assert (b"X-Odd-Case", b"1") in one.raw_headers

    flavour.run(main)


def test_case_13_a_binary_upload_is_routed_and_byte_identical(flavour: Flavour) -> None:
    """production-stack 1038: a router that reads every body as text."""
    router = Router(urls(3))
    data = bytes(range(256)) * 300 + b"\r\n--edg" + b"\xff\x00{" * 5
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n--edge--\r\n"
    )
    kind = "multipart/form-data; boundary=edge"

    async def main() -> None:
        inner = Inner(flavour, ok(flavour))
        async with flavour.client(router, inner) as client:
            for _ in range(3):
                files = {"file": ("a.bin", BytesIO(data), "application/octet-stream")}
                fields = {"purpose": "batch"}
                headers = {"content-type": kind}
                response = await client.post("/files", files=files, data=fields, headers=headers)
                assert response.status_code == 200
                decision = response.extensions["prefixroute"]
                assert decision.key is None
                assert decision.endpoint.url == f"http://{inner.hosts[-1]}:8000/v1"
        assert [one.body for one in inner.received] == [body] * 3
        assert {one.headers["content-type"] for one in inner.received} == {kind}
        assert len(set(inner.hosts)) == 3  # no key: spread

    flavour.run(main)


def test_case_34_multipart_is_forwarded_byte_for_byte(flavour: Flavour) -> None:
    router = Router(urls(2))
    audio = bytes(range(256)) * 40

    async def main() -> None:
        inner = failing_over(flavour)
        async with flavour.client(router, inner) as client:
            files = {"file": ("a.wav", BytesIO(audio), "audio/wav")}
            response = await client.post("/audio/transcriptions", files=files, data={"model": "m"})
        assert response.status_code == 200
        first, second = inner.received
        assert audio in first.body
        assert first.body == second.body
        assert first.headers["content-type"] == second.headers["content-type"]
        assert int(first.headers["content-length"]) == len(first.body)

    flavour.run(main)


def one_shot(flavour: Flavour, parts: list[bytes], taken: list[int]) -> Any:
    def generate() -> Iterator[bytes]:
        for number, part in enumerate(parts):
            taken.append(number)
            yield part

    async def agenerate() -> AsyncIterator[bytes]:
        for part in generate():
            yield part

    return generate() if flavour.is_sync else agenerate()


def test_case_34_a_generator_gets_one_attempt_and_is_not_buffered(flavour: Flavour) -> None:
    router = Router(urls(3))
    taken: list[int] = []
    seen: list[int] = []

    def handler(received: Received) -> Any:
        seen.append(len(taken))
        return flavour.module.Response(503, json={"error": "busy"})

    async def main() -> None:
        inner = Inner(flavour, handler)
        async with flavour.client(router, inner) as client:
            response = await client.post(content=one_shot(flavour, [b"a" * 10, b"b" * 10], taken))
            assert response.status_code == 503
            assert response.json() == {"error": "busy"}
        (only,) = inner.received
        assert only.body == b"a" * 10 + b"b" * 10
        assert only.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in only.headers
        assert only.stream is response.request.stream

    flavour.run(main)


def test_a_generator_that_cannot_be_sent_ends_the_call(flavour: Flavour) -> None:
    router = Router(urls(3))

    async def main() -> None:
        inner = Inner(flavour, lambda _: flavour.error("ConnectError"))
        async with flavour.client(router, inner) as client:
            with pytest.raises(flavour.module.ConnectError):
                await client.post(content=one_shot(flavour, [b"{}"], []))
        assert len(inner.received) == 1

    flavour.run(main)


def test_a_generator_with_a_length_keeps_it(flavour: Flavour) -> None:
    router = Router(urls(2))

    async def main() -> None:
        inner = Inner(flavour, ok(flavour))
        async with flavour.client(router, inner) as client:
            content = one_shot(flavour, [b'{"a":', b"1}"], [])
            await client.post(content=content, headers={"content-length": "7"})
        assert inner.received[0].headers["content-length"] == "7"
        assert "transfer-encoding" not in inner.received[0].headers

    flavour.run(main)


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_requests_without_a_prompt_are_spread(flavour: Flavour, method: str) -> None:
    router = Router(urls(2))

    async def main() -> None:
        inner = Inner(flavour, lambda _: flavour.module.Response(204))
        async with flavour.client(router, inner) as client:
            for _ in range(4):
                response = await client.request(method, "/models")
                assert response.extensions["prefixroute"].key is None
        assert len(set(inner.hosts)) == 2
        assert {one.method for one in inner.received} == {method}

    flavour.run(main)


def test_case_46_an_endpoints_key_never_reaches_another(flavour: Flavour) -> None:
    with_key = Endpoint("http://a:8000/v1", api_key="key-of-a")
    router = Router([with_key, Endpoint("http://b:8000/v1")])
    for first in ("a", "b"):
        hosts: list[str] = []

        def handler(received: Received, first: str = first, hosts: list[str] = hosts) -> Any:
            hosts.append(received.host)
            status = 503 if received.host == first else 200
            return flavour.module.Response(status, json={})

        async def main(handler: Any = handler, first: str = first) -> None:
            inner = Inner(flavour, handler)
            async with flavour.client(router, inner) as client:
                while first not in inner.hosts:
                    inner.received.clear()
                    await client.get("/models", headers={"authorization": "Bearer callers"})
                    router.readmit(f"http://{first}:8000")
            for one in inner.received:
                key = "key-of-a" if one.host == "a" else "callers"
                assert one.headers["authorization"] == f"Bearer {key}"
                assert one.headers.get_list("authorization") == [f"Bearer {key}"]

        flavour.run(main)


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({"api_key": "k"}, {"authorization": "Bearer mine"}, {"authorization": "Bearer k"}),
        ({"api_key": "k"}, {"x-api-key": "mine"}, {"x-api-key": "k"}),
        ({"api_key": "k"}, {"api-key": "mine"}, {"api-key": "k"}),
        ({"api_key": "k"}, {}, {"authorization": "Bearer k"}),
        ({"api_key": lambda: "k\n"}, {}, {"authorization": "Bearer k"}),
        ({"api_key": "Basic abc"}, {}, {"authorization": "Basic abc"}),
        ({"api_key": "k", "auth_header": "x-key"}, {"x-api-key": "mine"}, {"x-key": "k"}),
        ({"api_key": "k", "auth_header": "x-key"}, {"X-Key": "mine"}, {"x-key": "k"}),
        ({"headers": {"Api-Key": "k"}}, {"authorization": "Bearer mine"}, {"api-key": "k"}),
        ({}, {"authorization": "Bearer mine"}, {"authorization": "Bearer mine"}),
    ],
)
def test_keys(
    flavour: Flavour, settings: dict[str, Any], given: dict[str, str], expected: dict[str, str]
) -> None:
    router = Router([Endpoint("http://h:8000/v1", **settings)])
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post(headers=given)
        names = {"authorization", "x-api-key", "api-key", "x-key"}
        sent = [(k.lower(), v) for k, v in inner.received[0].headers.multi_items() if k in names]
        assert sent == list(expected.items())

    flavour.run(main)


def test_a_password_in_the_url_becomes_a_header(flavour: Flavour) -> None:
    router = Router(["http://user:pass@h:8000/v1"])
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post(headers={"authorization": "Bearer mine", "x-api-key": "mine"})
        assert inner.received[0].headers["authorization"] == "Basic dXNlcjpwYXNz"
        assert "x-api-key" not in inner.received[0].headers
        assert "pass" not in inner.received[0].url

    flavour.run(main)


def test_prepare_can_sign_the_body(flavour: Flavour) -> None:
    def sign(request: Any) -> None:
        request.headers["x-signature"] = f"{request.url.host}:{len(request.content)}"

    router = Router([Endpoint("http://h:8000/v1", prepare=sign)])
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            await client.post(content=b"{}")
        assert inner.received[0].headers["x-signature"] == "h:2"

    flavour.run(main)


def test_what_prepare_raises_is_raised(flavour: Flavour) -> None:
    def sign(_: Any) -> None:
        raise KeyError("no signing key")

    router = Router([Endpoint("http://h:8000/v1", prepare=sign)])

    async def main() -> None:
        async with flavour.client(router, Inner(flavour, ok(flavour))) as client:
            with pytest.raises(KeyError, match="no signing key"):
                await client.post()
        assert router.stats().failures == 0

    flavour.run(main)


def test_case_49_timeouts_and_extensions_reach_the_inner_transport(flavour: Flavour) -> None:
    router = Router(urls(1))
    inner = Inner(flavour, ok(flavour))

    async def main() -> None:
        async with flavour.client(router, inner, timeout=7.0) as client:
            await client.post()
            await client.post(timeout=flavour.module.Timeout(3.0, read=99.0))
            await client.post(extensions={"sni_hostname": "x"})
        timeouts = [one.request.extensions["timeout"] for one in inner.received]
        assert timeouts[0] == {"connect": 7.0, "read": 7.0, "write": 7.0, "pool": 7.0}
        assert timeouts[1] == {"connect": 3.0, "read": 99.0, "write": 3.0, "pool": 3.0}
        assert inner.received[2].request.extensions["sni_hostname"] == "x"

    flavour.run(main)


def test_a_callers_own_trace_goes_on_being_called(flavour: Flavour) -> None:
    router = Router(urls(1))
    seen: list[str] = []

    def trace(name: str, info: dict[str, Any]) -> None:
        seen.append(name)

    async def atrace(name: str, info: dict[str, Any]) -> None:
        seen.append(name)

    def handler(received: Received) -> Any:
        result = received.request.extensions["trace"]("connection.connect_tcp.started", {})
        if not flavour.is_sync:

            async def answer() -> Any:
                await result
                return flavour.module.Response(200)

            return answer()
        return flavour.module.Response(200)

    async def main() -> None:
        own = trace if flavour.is_sync else atrace
        async with flavour.client(router, Inner(flavour, handler)) as client:
            await client.post(extensions={"trace": own})
        assert seen == ["connection.connect_tcp.started"]

    flavour.run(main)


def test_set_cookie_is_stripped(flavour: Flavour) -> None:
    router = Router(urls(2))
    cookies = [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-kept", "1")]
    inner = Inner(flavour, lambda _: flavour.module.Response(200, headers=cookies, json={}))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post()
            await client.post()
            assert "set-cookie" not in response.headers
            assert response.headers["x-kept"] == "1"
            assert not client.http.cookies
        assert all("cookie" not in one.headers for one in inner.received)

    flavour.run(main)


@pytest.mark.parametrize(
    ("location", "followed"),
    [
        ("http://h:8000/llm/v1/moved", "http://h:8000/llm/v1/moved"),
        ("/llm/v1/moved?a=1", "http://h:8000/llm/v1/moved?a=1"),
        ("//h:8000/llm/v1/moved", "http://h:8000/llm/v1/moved"),
        ("moved", "http://h:8000/llm/v1/chat/moved"),
        ("/llm/health", "http://h:8000/llm/health"),
        ("/elsewhere", None),
        ("http://h:9000/llm/v1/moved", None),
        ("https://h:8000/llm/v1/moved", None),
        ("http://evil.example/llm/v1/moved", None),
        ("//evil.example/llm/v1/moved", None),
        ("http://h:8000@evil.example/llm/v1/moved", None),
        ("http://[", None),
    ],
)
def test_redirects_stay_with_the_endpoint(
    flavour: Flavour, location: str, followed: str | None
) -> None:
    router = Router([Endpoint("http://h:8000/llm/v1", api_key="secret")])

    async def main() -> None:
        redirect = flavour.module.Response(307, headers={"location": location})
        inner = Inner(flavour, in_turn(redirect, ok(flavour)))
        async with flavour.client(router, inner, follow_redirects=True) as client:
            response = await client.post()
        if followed is None:
            assert response.status_code == 307
            assert "location" not in response.headers
            assert len(inner.received) == 1
        else:
            assert response.status_code == 200
            assert [one.url for one in inner.received][1:] == [followed]
            assert json.loads(inner.received[1].body) == BODY
            assert inner.received[1].headers["authorization"] == "Bearer secret"

    flavour.run(main)


def test_a_location_that_is_no_redirect_is_kept(flavour: Flavour) -> None:
    router = Router(urls(1))
    given = {"location": "http://example.org/created"}
    inner = Inner(flavour, lambda _: flavour.module.Response(201, headers=given))

    async def main() -> None:
        async with flavour.client(router, inner) as client:
            response = await client.post()
        assert response.headers["location"] == "http://example.org/created"

    flavour.run(main)
