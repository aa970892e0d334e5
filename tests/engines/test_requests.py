"""Every kind of request on real replicas: who answers it, what was cached, what comes back."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from prefixroute import Endpoint, Reason, Router
from tests.engines.llama import MODEL_NAME, LlamaReplica, LlamaReplicas
from tests.engines.placements import endpoint_of
from tests.engines.texts import system_prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(60)]

TEXTS = system_prompts(random.Random(7), 4)
MORE = " If a guest is late, always hold the table and call the kitchen."


class Asked:
    """One request to a path that is routed, and its reply."""

    def __init__(self, http: httpx.Client, path: str, **body: object) -> None:
        sent = {"model": MODEL_NAME, "max_tokens": 1, "temperature": 0, **body}
        response = http.post(path, json=sent)
        response.raise_for_status()
        self.endpoint = endpoint_of(response.extensions)
        self.reply: Any = response.json()

    @property
    def prompt_tokens(self) -> int:
        return int(self.reply["usage"]["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        return int(self.reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def token_ids(http: httpx.Client, router: Router, text: str) -> list[int]:
    response = http.post(f"{router.root_url}/tokenize", json={"content": text})
    ids: list[int] = response.raise_for_status().json()["tokens"]
    return ids


def used(router: Router) -> dict[str, int]:
    """How many requests each endpoint that had any was sent; all of them have ended."""
    stats = router.stats()
    assert stats.in_flight == 0
    assert stats.failures == 0
    return {e.id: e.requests for e in stats.endpoints if e.requests}


# -- /v1/completions -----------------------------------------------------------------------------


def test_equal_and_continuing_texts_stay_at_one_endpoint(
    router: Router, http: httpx.Client
) -> None:
    homes = set()
    for text in TEXTS[:3]:
        first, longer, again = (
            Asked(http, "completions", prompt=prompt) for prompt in (text, text + MORE, text)
        )
        assert longer.endpoint == again.endpoint == first.endpoint
        assert longer.cached_tokens >= first.prompt_tokens - 1
        assert again.cached_tokens == first.prompt_tokens - 1
        homes.add(first.endpoint)
    assert len(homes) > 1
    assert sum(used(router).values()) == 9


def test_equal_and_continuing_ids_stay_at_one_endpoint(router: Router, http: httpx.Client) -> None:
    homes = set()
    for text in TEXTS[:3]:
        ids, more = token_ids(http, router, text), token_ids(http, router, MORE)
        first, longer, again, nested = (
            Asked(http, "completions", prompt=prompt) for prompt in (ids, [*ids, *more], ids, [ids])
        )
        assert longer.endpoint == again.endpoint == nested.endpoint == first.endpoint
        assert first.prompt_tokens == len(ids)
        assert longer.cached_tokens >= len(ids)
        assert again.cached_tokens == nested.cached_tokens == len(ids) - 1
        homes.add(first.endpoint)
    assert len(homes) > 1


def test_a_list_of_prompts_stays_with_its_first(router: Router, http: httpx.Client) -> None:
    guessed = router.route({"model": MODEL_NAME, "prompt": TEXTS[0]}).tokens
    batch, again = (Asked(http, "completions", prompt=TEXTS[:2]) for _ in range(2))
    assert router.route({"model": MODEL_NAME, "prompt": TEXTS[0]}).tokens == guessed
    alone, other = (Asked(http, "completions", prompt=text) for text in TEXTS[:2])
    assert len(batch.reply["choices"]) == len(again.reply["choices"]) == 2
    assert again.endpoint == alone.endpoint == batch.endpoint
    assert alone.cached_tokens == alone.prompt_tokens - 1
    # The engine counts the first prompt of a list and no other: not to be learned from.
    assert batch.prompt_tokens == alone.prompt_tokens
    assert again.cached_tokens == alone.prompt_tokens - 1
    assert other.prompt_tokens > 100
    assert sum(used(router).values()) == 4


def test_lists_of_ids(router: Router, http: httpx.Client) -> None:
    batch = [token_ids(http, router, text)[:40] for text in TEXTS[:2]]
    first, again = (Asked(http, "completions", prompt=batch) for _ in range(2))
    assert again.endpoint == first.endpoint
    assert again.cached_tokens == 39
    assert [choice["index"] for choice in again.reply["choices"]] == [0, 1]


def test_a_streamed_completion_reports_its_cache(router: Router) -> None:
    with OpenAI(api_key="-") as plain, router.wrap(plain) as client:
        for _ in range(2):
            with client.completions.create(
                model=MODEL_NAME, prompt=TEXTS[0], max_tokens=2, stream=True
            ) as stream:
                assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert list(used(router).values()) == [2]
    assert router.stats().cached_tokens > 100


# -- /v1/responses ---------------------------------------------------------------------------------


def test_responses_that_are_sent_back_as_input_continue(router: Router) -> None:
    homes = set()
    with OpenAI(api_key="-") as plain, router.wrap(plain) as client:
        for text in TEXTS[:2]:
            said: list[Any] = [{"role": "user", "content": "Who are you?"}]
            before = 0
            for turn in range(3):
                raw = client.responses.with_raw_response.create(
                    model=MODEL_NAME, instructions=text, input=said, max_output_tokens=4
                )
                response = raw.parse()
                assert response.usage is not None
                assert response.usage.input_tokens_details.cached_tokens >= before
                before = response.usage.input_tokens - 1
                homes.add((text, endpoint_of(raw.http_response.extensions)))
                said += [item.model_dump(exclude_none=True) for item in response.output]
                said.append({"role": "user", "content": f"And then, after number {turn}?"})
    assert len(homes) == 2  # each of the two chains stayed where it began
    assert sum(used(router).values()) == 6


def test_previous_response_id_is_refused_by_the_endpoint_that_answered(
    router: Router, http: httpx.Client, direct: httpx.Client
) -> None:
    """llama.cpp keeps no responses; its refusal comes from where the response was made."""
    bodies = [{"model": MODEL_NAME, "input": f"What is {n} and {n}?"} for n in range(16)]
    for body in bodies[:4]:
        first = http.post("responses", json=body | {"max_output_tokens": 1})
    answered, response_id = endpoint_of(first.extensions), first.json()["id"]
    before = used(router)[answered]
    unrelated = [body for body in bodies[4:] if router.route(body).endpoint.id != answered]
    assert unrelated  # some that would go elsewhere, were it not for what they continue
    for body in unrelated:
        sent = body | {"previous_response_id": response_id}
        refused = http.post("responses", json=sent)
        decision = refused.extensions["prefixroute"]
        assert (decision.endpoint.id, decision.reason) == (answered, Reason.PINNED)
        own = direct.post(f"{decision.endpoint.url}/responses", json=sent)
        assert refused.status_code == own.status_code == 400
        assert refused.content == own.content
        assert refused.headers.raw == own.headers.raw
        assert "previous_response_id" in refused.json()["error"]["message"]
    assert used(router)[answered] == before + len(unrelated)


def test_a_response_id_that_nobody_here_has_seen(router: Router) -> None:
    with (
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
        pytest.raises(BadRequestError, match="does not support 'previous_response_id'"),
    ):
        client.responses.create(
            model=MODEL_NAME, input="Hello", previous_response_id="resp_elsewhere"
        )
    assert list(used(router).values()) == [1]


def test_a_stored_response_is_looked_for_everywhere(
    router: Router, http: httpx.Client, direct: httpx.Client, replicas: LlamaReplicas
) -> None:
    answer = http.get("responses/resp_elsewhere")
    own = direct.get(f"{replicas.urls[0]}/responses/resp_elsewhere")
    assert (answer.status_code, answer.content) == (own.status_code, own.content)
    assert answer.status_code == 404
    assert list(used(router).values()) == [1, 1, 1]


# -- /v1/messages ----------------------------------------------------------------------------------


def test_messages_with_tools(router: Router) -> None:
    tools: Any = [
        {
            "name": "find_book",
            "description": "Finds the shelf of a book.",
            "input_schema": {
                "type": "object",
                "properties": {"title": {"type": "string"}},
                "required": ["title"],
            },
        }
    ]
    asked: list[Any] = [{"role": "user", "content": "Where is Emma?"}]
    called = {"type": "tool_use", "id": "toolu_1", "name": "find_book", "input": {"title": "Emma"}}
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Shelf 4"}
    continued = [
        *asked,
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, called]},
        {"role": "user", "content": [found]},
    ]
    usages = []
    with Anthropic(api_key="-") as plain, router.wrap(plain) as client:
        for messages in (asked, continued):
            reply = client.messages.create(
                model=MODEL_NAME, system=TEXTS[0], tools=tools, messages=messages, max_tokens=4
            )
            usages.append(reply.usage)
        with client.messages.stream(
            model=MODEL_NAME, system=TEXTS[0], tools=tools, messages=continued, max_tokens=4
        ) as stream:
            usages.append(stream.get_final_message().usage)
    first, second, third = usages
    assert (second.cache_read_input_tokens or 0) >= first.input_tokens
    assert third.input_tokens == 1  # all but the last token, which is always computed
    assert list(used(router).values()) == [3]
    stats = router.stats()
    cached = sum(usage.cache_read_input_tokens or 0 for usage in usages)
    assert stats.cached_tokens == cached
    assert stats.prompt_tokens == cached + sum(usage.input_tokens for usage in usages)


# -- what has no prompt ----------------------------------------------------------------------------


def test_requests_without_a_prompt_are_spread(router: Router, http: httpx.Client) -> None:
    root = router.root_url
    assert http.get("models").json()["data"][0]["id"] == MODEL_NAME
    assert http.get(f"{root}/health").json() == {"status": "ok"}
    assert http.get("health").json() == {"status": "ok"}
    assert http.get(f"{root}/props").json()["total_slots"] == 6
    assert token_ids(http, router, "Hello there")
    with OpenAI(api_key="-") as plain, router.wrap(plain) as client:
        assert [model.id for model in client.models.list()] == [MODEL_NAME]
    assert Counter(used(router).values()) == {2: 3}


def test_embeddings_go_to_who_has_that_model(replicas: LlamaReplicas, tmp_path: Path) -> None:
    embedder = LlamaReplica(tmp_path, slots=1, extra=("--embeddings", "--pooling", "mean"))
    embedder.start()
    try:
        embedder.wait_ready()
        chats = [Endpoint(url, models=(MODEL_NAME,)) for url in replicas.urls]
        with (
            Router([*chats, Endpoint(embedder.url, id="embedder", models=("embed",))]) as router,
            OpenAI(api_key="-") as plain,
            router.wrap(plain) as client,
        ):
            for _ in range(4):
                made = client.embeddings.create(model="embed", input=["Hello", "Good evening"])
                assert [len(one.embedding) for one in made.data] == [576, 576]
            client.chat.completions.create(
                model=MODEL_NAME, messages=[{"role": "user", "content": "Hello"}], max_tokens=1
            )
        requests = used(router)
        assert requests.pop("embedder") == 4
        assert list(requests.values()) == [1]
    finally:
        embedder.kill()
