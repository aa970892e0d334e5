"""Against a real engine: prompts are as long as it says, and what it will find is foreseen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from prefixroute import Nested, Router
from prefixroute.core.events import Event, RequestDone
from prefixroute.tokenizers import EngineTokenizer, HuggingFaceTokenizer, Tokenizer
from tests.core.bodies import TOOL, chat, user
from tests.engines.chat import direct_client
from tests.engines.llama import LlamaReplicas
from tests.engines.texts import system_prompts, user_message
from tests.tokenizers.models import needs_transformers

pytestmark = [pytest.mark.engine, needs_transformers, pytest.mark.timeout(300)]

BLOCK = 16
"""A block of vLLM's; llama.cpp's cache is exact to the token."""

TEXTS = [
    "Hello!",
    "  spaced  ",
    "a\n\nb\n",
    "12345 67,8",
    "😀 über 今日は",
    ".",
    "<|im_end|> x",
    "im",
    "code:\n    def f(x):\n        return x\n",
    "assistant",
]


@pytest.fixture(scope="module", params=["transformers", "engine"])
def tokenizer(request: Any, smollm: Path, replicas: LlamaReplicas) -> Iterator[Tokenizer]:
    if request.param == "engine":
        with EngineTokenizer(replicas.urls[0], timeout_s=5.0) as asking:
            yield asking
    else:
        yield HuggingFaceTokenizer(smollm)


def ask(replicas: LlamaReplicas, path: str, body: dict[str, Any]) -> int:
    """Return how long the engine says that a prompt is."""
    with direct_client() as client:
        reply = client.post(f"{replicas.urls[0]}{path}", json={**body, "max_tokens": 1}, timeout=60)
    reply.raise_for_status()
    return int(reply.json()["usage"]["prompt_tokens"])


def test_chats_are_as_long_as_the_engine_says(
    tokenizer: Tokenizer, replicas: LlamaReplicas
) -> None:
    rng = random.Random(0)
    router = Router([replicas.urls[0]], tokenizer=tokenizer)
    systems = [*system_prompts(rng, 2), *TEXTS]
    for _ in range(25):
        turns = [{"role": "system", "content": rng.choice(systems)}][: rng.randrange(2)]
        for number in range(rng.choice([1, 3, 5])):
            role = ("user", "assistant")[number % 2]
            turns.append({"role": role, "content": rng.choice(TEXTS)})
        body = chat(*turns, **({"tools": [TOOL]} if rng.randrange(3) == 0 else {}))
        assert router.read(body).size == ask(replicas, "/chat/completions", body), body


def test_texts_are_as_long_as_the_engine_says(
    tokenizer: Tokenizer, replicas: LlamaReplicas
) -> None:
    router = Router([replicas.urls[0]], tokenizer=tokenizer)
    for text in TEXTS:
        assert router.read({"prompt": text}).size == ask(replicas, "/completions", {"prompt": text})


class Watch:
    """Notes what was foreseen and what was reported."""

    def __init__(self) -> None:
        self.done: list[RequestDone] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestDone):
            self.done.append(event)


@pytest.mark.parametrize("reply_tokens", [4, 32])
def test_what_the_engine_will_find_is_foreseen_to_the_block(
    tokenizer: Tokenizer, replicas: LlamaReplicas, reply_tokens: int
) -> None:
    """Conversations of several assistants by turns, whose replies are shorter or longer."""
    replicas.clear()
    rng, watch = random.Random(1), Watch()
    chats: list[list[Any]] = [
        [{"role": "system", "content": text}] for text in system_prompts(rng, 3)
    ]
    with (
        Router(
            list(replicas.urls),
            placement=Nested(),
            seed=0,
            peers=1,
            tokenizer=tokenizer,
            observers=[watch],
        ) as router,
        httpx.Client(base_url=router.base_url, transport=router.transport()) as client,
    ):
        for _ in range(3):
            for turns in chats:
                turns.append(user(user_message(rng)))
                body = {"messages": turns, "max_tokens": reply_tokens, "temperature": 0}
                reply = client.post("/chat/completions", json=body, timeout=60)
                reply.raise_for_status()
                turns.append(reply.json()["choices"][0]["message"])
    errors = [e.expected_cached_tokens - (e.cached_tokens or 0) for e in watch.done]
    assert len(errors) == 9
    assert max(abs(error) for error in errors) <= BLOCK
    assert sum((event.cached_tokens or 0) > 100 for event in watch.done) >= 6
