"""Real streams that are asked for their usage: what comes of it, and what the caller sees."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from prefixroute import Router
from tests.engines.llama import MODEL_NAME, LlamaReplicas

pytestmark = pytest.mark.engine

MESSAGES: Any = [
    {"role": "system", "content": "You are a careful assistant of a small library. " * 6},
    {"role": "user", "content": "Who are you?"},
]


def test_hidden_usage_is_learned() -> None:
    with (
        LlamaReplicas(1) as replicas,
        Router(list(replicas.urls), inject_usage=True) as router,
        OpenAI(api_key="-") as plain,
        router.wrap(plain) as client,
    ):
        for _ in range(2):
            stream = client.chat.completions.create(
                model=MODEL_NAME, messages=MESSAGES, max_tokens=4, stream=True
            )
            chunks = list(stream)
            assert chunks
            assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        stats = router.stats()
    assert stats.in_flight == 0
    assert stats.prompt_tokens > 100
    assert stats.cached_tokens > 60
