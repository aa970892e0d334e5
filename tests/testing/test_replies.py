"""What a replica answers: shapes, usage, errors, metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from prefixroute.testing import EngineModel, FakeCluster
from tests.testing.support import chat

MODEL = EngineModel(output_tokens=8, block_tokens=4, context_tokens=1000)
LONG = "word " * 40


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(2, model=MODEL, time_scale=0)


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[httpx.Client]:
    with httpx.Client(transport=cluster.transport(), base_url="http://replica-0.test") as client:
        yield client


def client_of(model: EngineModel) -> httpx.Client:
    cluster = FakeCluster(1, model=model, time_scale=0)
    return httpx.Client(transport=cluster.transport(), base_url="http://replica-0.test")


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_chat(client: httpx.Client) -> None:
    body = client.post("/v1/chat/completions", json=chat(LONG)).json()
    again = client.post("/v1/chat/completions", json=chat(LONG)).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "m"
    assert body["choices"] == again["choices"]
    assert body["id"] != again["id"]
    assert body["choices"][0]["finish_reason"] == "stop"
    usage = again["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_tokens"] - 5 < cached < usage["prompt_tokens"]


def test_a_chat_stream(client: httpx.Client) -> None:
    whole = client.post("/v1/chat/completions", json=chat()).json()
    options = {"include_usage": True}
    body = chat(stream=True, stream_options=options)
    *chunks, last, done = events(client.post("/v1/chat/completions", json=body))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_stream_without_usage(client: httpx.Client) -> None:
    chunks = events(client.post("/v1/chat/completions", json=chat(stream=True)))
    assert not any("usage" in chunk for chunk in chunks[:-1])


def test_several_choices(client: httpx.Client) -> None:
    body = client.post("/v1/chat/completions", json=chat(n=3)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 24
    chunks = events(client.post("/v1/chat/completions", json=chat(n=3, stream=True)))
    indices = [chunk["choices"][0]["index"] for chunk in chunks[:-1]]
    assert sorted(set(indices)) == [0, 1, 2]
    assert indices != sorted(indices), "choices are decoded side by side"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_length(client: httpx.Client, field: str) -> None:
    body = client.post("/v1/chat/completions", json={**chat(), field: 3}).json()
    assert body["usage"]["completion_tokens"] == 3
    assert body["choices"][0]["finish_reason"] == "length"


def test_the_next_turn_finds_the_answer_too(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": LONG}]
    first = client.post("/v1/chat/completions", json={"messages": messages}).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "More?"}]
    usage = client.post("/v1/chat/completions", json={"messages": messages}).json()["usage"]
    prompt_tokens = first["usage"]["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > prompt_tokens + 2


def test_json_answers(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for given, expected in ((wanted, {"n": 0}), ({"type": "json_object"}, {})):
        body = client.post("/v1/chat/completions", json=chat(response_format=given)).json()
        assert json.loads(body["choices"][0]["message"]["content"]) == expected


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("one", "two")
]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("required", "one"), ({"type": "function", "function": {"name": "two"}}, "two")],
)
def test_tool_calls(client: httpx.Client, choice: object, expected: str) -> None:
    body = chat(tools=TOOLS, tool_choice=choice)
    answer = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"] == {"name": expected, "arguments": "{}"}
    chunks = events(client.post("/v1/chat/completions", json={**body, "stream": True}))
    calls = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks[:-1]]
    first, *rest = [call[0] for call in calls if call]
    assert first["function"] == {"name": expected, "arguments": ""}
    assert "".join(call["function"]["arguments"] for call in rest) == "{}"


JSON_SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "array"}}
FLAT_TOOL = {"type": "function", "name": "one", "parameters": {}, "input_schema": {}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"text": {"format": JSON_SCHEMA}}),
        ("/v1/messages", {"output_config": {"format": JSON_SCHEMA}}),
        ("/v1/messages", {"output_format": JSON_SCHEMA}),
    ],
)
def test_json_answers_of_the_other_apis(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    body = {**chat(max_tokens=50), "input": "Hi", **fields}
    content = client.post(path, json=body).json()
    message = content["output"][0] if "output" in content else content
    assert message["content"][0]["text"] == "[]"


def test_a_json_object_of_responses(client: httpx.Client) -> None:
    body = {"input": "Hi", "text": {"format": {"type": "json_object"}}}
    reply = client.post("/v1/responses", json=body).json()
    assert reply["output"][0]["content"][0]["text"] == "{}"


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        ("/v1/chat/completions", {"type": "function", "function": {"name": "none"}}),
        ("/v1/responses", {"type": "function", "name": "none"}),
        ("/v1/messages", {"type": "tool", "name": "none"}),
    ],
)
def test_a_tool_that_is_not_there(client: httpx.Client, path: str, choice: object) -> None:
    tools = [{**FLAT_TOOL, **TOOLS[0]}]
    body = {**chat(max_tokens=50, tools=tools, tool_choice=choice), "input": "Hi"}
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert "tool_choice" in response.json()["error"]["message"]


def test_a_tool_call_that_is_cut(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "x" * 99}}, "required": ["a"]}
    tools = [{"name": "one", "input_schema": schema}]
    body = chat(max_tokens=2, tools=tools, tool_choice={"type": "any"})
    reply = client.post("/v1/messages", json=body).json()
    assert (reply["stop_reason"], reply["content"][0]["input"]) == ("max_tokens", {})


def test_a_completion_stream_with_usage(client: httpx.Client) -> None:
    body = {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}
    *_, last, done = events(client.post("/v1/completions", json=body))
    assert (last["choices"], last["usage"]["completion_tokens"], done) == ([], 8, "[DONE]")


def test_a_cancelled_embedding_frees_the_engine(cluster: FakeCluster) -> None:
    with httpx.Client(transport=cluster.transport()) as client, pytest.raises(httpx.ReadTimeout):
        client.post(cluster.urls[0] + "/embeddings", json={"input": "a"}, timeout=0.001)
    stats = cluster.stats()[0]
    assert (stats.running, stats.cancelled) == (0, 1)


def test_completions_of_every_kind_of_prompt(client: httpx.Client) -> None:
    for prompt, count in (("x", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)):
        body = client.post("/v1/completions", json={"prompt": prompt}).json()
        assert [choice["index"] for choice in body["choices"]] == list(range(count))
        chunks = events(client.post("/v1/completions", json={"prompt": prompt, "stream": True}))
        texts = [
            "".join(
                chunk["choices"][0]["text"]
                for chunk in chunks[:-1]
                if chunk["choices"][0]["index"] == index
            )
            for index in range(count)
        ]
        assert texts == [choice["text"] for choice in body["choices"]]


def test_tokens_can_be_sent_back(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"prompt": LONG}).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(LONG) / 4
    text = client.post("/v1/completions", json={"prompt": LONG}).json()
    usage = client.post("/v1/completions", json={"prompt": tokens["tokens"]}).json()
    assert usage["choices"] == text["choices"]
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    of_chat = client.post("/tokenize", json=chat(LONG)).json()
    assert of_chat["count"] > tokens["count"]


def test_responses_remember_their_own(cluster: FakeCluster, client: httpx.Client) -> None:
    first = client.post("/v1/responses", json={"input": LONG}).json()
    assert first["status"] == "completed"
    continued = {"input": "More?", "previous_response_id": first["id"]}
    second = client.post("/v1/responses", json=continued).json()
    details = second["usage"]["input_tokens_details"]
    assert details["cached_tokens"] > first["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]

    elsewhere = client.post("http://replica-1.test/v1/responses", json=continued)
    assert elsewhere.status_code == 404
    cluster.restart(0)
    assert client.post("/v1/responses", json=continued).status_code == 404


def test_responses_that_are_not_stored_are_not_remembered(client: httpx.Client) -> None:
    first = client.post("/v1/responses", json={"input": "Hi", "store": False}).json()
    continued = {"input": "More?", "previous_response_id": first["id"]}
    assert client.post("/v1/responses", json=continued).status_code == 404


def test_a_streamed_response_is_remembered(client: httpx.Client) -> None:
    got = events(client.post("/v1/responses", json={"input": "Hi", "stream": True}))
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert got[-1]["type"] == "response.completed"
    continued = {"input": "More?", "previous_response_id": got[0]["response"]["id"]}
    assert client.post("/v1/responses", json=continued).status_code == 200


def test_a_response_that_is_cut_is_incomplete(client: httpx.Client) -> None:
    body = {"input": "Hi", "max_output_tokens": 2}
    whole = client.post("/v1/responses", json=body).json()
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    got = events(client.post("/v1/responses", json={**body, "stream": True}))
    assert got[-1]["type"] == "response.incomplete"


def test_messages_leave_cached_tokens_out_of_input_tokens(client: httpx.Client) -> None:
    body = {"model": "m", "max_tokens": 50, "system": LONG, **chat()}
    first, second = (client.post("/v1/messages", json=body).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > 0
    assert second["input_tokens"] + second["cache_read_input_tokens"] == first["input_tokens"]
    counted = client.post("/v1/messages/count_tokens", json=body).json()
    assert counted == {"input_tokens": first["input_tokens"]}


def test_messages_need_max_tokens(client: httpx.Client) -> None:
    response = client.post("/v1/messages", json=chat())
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_embeddings(client: httpx.Client) -> None:
    def embed(**fields: object) -> Any:
        return client.post("/v1/embeddings", json=fields).json()

    one = embed(input="a")
    assert len(one["data"][0]["embedding"]) == 8
    assert one["usage"]["prompt_tokens"] == 1
    both = embed(input=["a", "b"], dimensions=3)
    assert [len(row["embedding"]) for row in both["data"]] == [3, 3]
    assert both["data"][0]["embedding"] == one["data"][0]["embedding"][:3]
    assert isinstance(embed(input="a", encoding_format="base64")["data"][0]["embedding"], str)


def test_cached_tokens_may_go_unreported() -> None:
    with client_of(EngineModel(reports_cached_tokens=False)) as client:
        body = client.post("/v1/chat/completions", json=chat()).json()
        assert body["usage"]["prompt_tokens_details"] is None
        body = client.post("/v1/responses", json={"input": "Hi"}).json()
        assert body["usage"]["input_tokens_details"] is None
        body = client.post("/v1/messages", json=chat(max_tokens=5)).json()
        assert "cache_read_input_tokens" not in body["usage"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b"\xff", 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("POST", "/v1/chat/completions", b"{}", 400),
        ("POST", "/v1/chat/completions", b'{"messages": null}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{}], "max_tokens": 0}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{}], "n": "x"}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{}], "tool_choice": "required"}', 400),
        ("POST", "/v1/messages", b'{"messages": [{}], "max_tokens": true}', 400),
        ("POST", "/v1/completions", b'{"prompt": {}}', 400),
        ("POST", "/v1/completions", b'{"prompt": "a", "min_tokens": 5, "max_tokens": 4}', 400),
        ("POST", "/v1/embeddings", b"{}", 400),
        ("POST", "/tokenize", b"{}", 400),
        ("GET", "/v1/chat/completions", b"", 405),
        ("POST", "/health", b"", 405),
        ("GET", "/", b"", 404),
        ("POST", "/v1/v1/chat/completions", b"{}", 404),
        ("DELETE", "/v1/files/1", b"", 404),
    ],
)
def test_errors(client: httpx.Client, method: str, path: str, content: bytes, status: int) -> None:
    response = client.request(method, path, content=content)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert response.headers["x-replica"] == "0"


def test_too_long_a_prompt(client: httpx.Client, cluster: FakeCluster) -> None:
    bodies = [chat("x" * 4000), chat("x", max_tokens=1000)]
    for body in bodies:
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert "maximum context length is 1000 tokens" in response.json()["error"]["message"]
    assert client.post("/v1/embeddings", json={"input": "x" * 4001}).status_code == 400
    assert cluster.stats()[0].requests == 0


def test_keys() -> None:
    with client_of(EngineModel(api_key="secret")) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer no"}).status_code == 401
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/messages", json=chat(max_tokens=5)).json()
        assert refused["error"]["type"] == "authentication_error"
    assert "secret" not in repr(EngineModel(api_key="secret"))


def test_model_names() -> None:
    with client_of(EngineModel(names=("a", "b"), strict_names=True)) as client:
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["a", "b"]
        assert client.post("/v1/chat/completions", json=chat()).status_code == 404
        body = {**chat(), "model": "b"}
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_metrics(cluster: FakeCluster, client: httpx.Client) -> None:
    for _ in range(2):
        client.post("/v1/chat/completions", json=chat(LONG))
    families = text_string_to_metric_families(client.get("/metrics").text)
    values = {sample.name: sample.value for family in families for sample in family.samples}
    stats = cluster.stats()[0]
    assert values["vllm:num_requests_running"] == 0
    assert values["vllm:num_requests_waiting"] == 0
    assert values["vllm:kv_cache_usage_perc"] == 0
    assert values["vllm:prefix_cache_queries_total"] == stats.prompt_tokens
    assert values["vllm:prefix_cache_hits_total"] == stats.cached_tokens > 0


def test_metrics_show_the_load(cluster: FakeCluster, client: httpx.Client) -> None:
    with client.stream("POST", "/v1/chat/completions", json=chat(LONG, stream=True)):
        text = client.get("/metrics").text
        assert 'vllm:num_requests_running{engine="0",model_name="simulated-model"} 1.0' in text
        assert cluster.stats()[0].kv_usage > 0
    assert "running{" in text
    assert cluster.stats()[0].running == 0


def test_the_load_header(client: httpx.Client) -> None:
    def header(wanted: str, *, stream: bool = False) -> str | None:
        headers = {"endpoint-load-metrics-format": wanted}
        body = chat(stream=stream)
        response = client.post("/v1/chat/completions", json=body, headers=headers)
        found: str | None = response.headers.get("endpoint-load-metrics")
        return found

    text = header("TEXT")
    assert text is not None
    assert text.startswith("TEXT named_metrics.kv_cache_usage_perc=")
    document = header("json")
    assert document is not None
    assert "num_requests_waiting" in json.loads(document.removeprefix("JSON "))["named_metrics"]
    assert header("BIN") is None
    assert header("TEXT", stream=True) is None


def test_the_load_header_on_streams() -> None:
    with client_of(EngineModel(load_header_on_streams=True)) as client:
        headers = {"endpoint-load-metrics-format": "TEXT"}
        body = chat(stream=True)
        response = client.post("/v1/chat/completions", json=body, headers=headers)
        assert response.headers["endpoint-load-metrics"].startswith("TEXT ")


def test_an_engine_loads_first(cluster: FakeCluster) -> None:
    cluster.add(EngineModel(loading_s=5.0))
    with httpx.Client(transport=cluster.transport(), base_url="http://replica-2.test") as client:
        assert client.get("/health").status_code == 503
        assert "Loading model" in client.post("/v1/completions", json={"prompt": "a"}).text
        cluster.advance(5.0)
        assert client.get("/health").status_code == 200
        cluster.restart(2)
        assert client.get("/health").status_code == 503
