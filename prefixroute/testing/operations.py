"""What an engine answers besides generations: metrics, models, tokens, embeddings, load."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import shake_128

from prefixroute.testing.dialects.common import count_field, dumps, model_name
from prefixroute.testing.engine import Admission, EngineStats, RenderedPrompt
from prefixroute.testing.model import EngineModel
from prefixroute.testing.prompts import (
    chat_prompt,
    completion_prompts,
    messages_prompt,
    prompt_salt,
)

__all__ = [
    "count_tokens_document",
    "embedding_prompts",
    "embeddings_document",
    "load_header",
    "metrics_text",
    "models_document",
    "tokenize_document",
]

_DIMENSIONS = 8


def metrics_text(stats: EngineStats, model: EngineModel) -> bytes:
    """`/metrics` in Prometheus' text format, under vLLM's names."""
    labels = f'{{engine="0",model_name={json.dumps(model.names[0])}}}'
    rows = [
        ("num_requests_running", "gauge", "Requests being computed.", stats.running),
        ("num_requests_waiting", "gauge", "Requests in the queue.", stats.waiting),
        ("kv_cache_usage_perc", "gauge", "KV cache in use, 1 is all.", stats.kv_usage),
        ("prefix_cache_queries_total", "counter", "Tokens looked up.", stats.prompt_tokens),
        ("prefix_cache_hits_total", "counter", "Tokens found.", stats.cached_tokens),
        ("prompt_tokens_total", "counter", "Prompt tokens.", stats.prompt_tokens),
        ("generation_tokens_total", "counter", "Output tokens.", stats.completion_tokens),
    ]
    lines = []
    for name, kind, text, value in rows:
        lines.append(f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\n")
        lines.append(f"vllm:{name}{labels} {float(value)}\n")
    return "".join(lines).encode()


def load_header(stats: EngineStats, metrics_format: str) -> tuple[tuple[str, str], ...]:
    """The response header that answers `endpoint-load-metrics-format` (ORCA), or none.

    Args:
        stats: The load.
        metrics_format: What the request asked for: TEXT or JSON; anything else is ignored.
    """
    metrics = {
        "kv_cache_usage_perc": stats.kv_usage,
        "num_requests_waiting": float(stats.waiting),
    }
    match metrics_format.upper():
        case "TEXT":
            pairs = (f"named_metrics.{name}={value}" for name, value in metrics.items())
            text = "TEXT " + ", ".join(pairs)
        case "JSON":
            text = "JSON " + json.dumps({"named_metrics": metrics})
        case _:
            return ()
    return (("endpoint-load-metrics", text),)


def models_document(model: EngineModel, created: int) -> bytes:
    """`/v1/models`."""
    models = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "prefixroute",
            "max_model_len": model.context_tokens,
        }
        for name in model.names
    ]
    return dumps({"object": "list", "data": models}).encode()


def tokenize_document(body: Mapping[str, object], model: EngineModel) -> bytes:
    """`/tokenize` of a prompt or of chat messages: ids that `/v1/completions` takes.

    Raises:
        RequestError: There is neither.
    """
    if "messages" in body:
        text = chat_prompt(body).text
    else:
        text = completion_prompts(body.get("prompt"), b"", model.bytes_per_token)[0].text
    size = model.bytes_per_token
    tokens = [
        int.from_bytes(text[start : start + size], "little") for start in range(0, len(text), size)
    ]
    fields = {"count": len(tokens), "max_model_len": model.context_tokens, "tokens": tokens}
    return dumps(fields).encode()


def count_tokens_document(body: Mapping[str, object], model: EngineModel) -> bytes:
    """Anthropic's `/v1/messages/count_tokens`.

    Raises:
        RequestError: There are no messages.
    """
    return dumps({"input_tokens": model.tokens_of(messages_prompt(body).text)}).encode()


def embedding_prompts(body: Mapping[str, object], model: EngineModel) -> list[RenderedPrompt]:
    """The inputs of `/v1/embeddings`.

    Raises:
        RequestError: There are none.
    """
    model_name(body, model)
    return completion_prompts(body.get("input"), prompt_salt(body), model.bytes_per_token)


def embeddings_document(
    body: Mapping[str, object],
    prompts: Sequence[RenderedPrompt],
    admissions: Sequence[Admission],
    model: EngineModel,
) -> bytes:
    """`/v1/embeddings`: vectors that depend on the input alone, between -1 and 1."""
    dimensions = count_field(body, "dimensions") or _DIMENSIONS
    data = []
    for index, prompt in enumerate(prompts):
        raw = shake_128(prompt.text).digest(dimensions)
        vector = [(byte - 127.5) / 127.5 for byte in raw]
        packed = struct.pack(f"<{dimensions}f", *vector)
        value = (
            base64.b64encode(packed).decode() if body.get("encoding_format") == "base64" else vector
        )
        data.append({"object": "embedding", "index": index, "embedding": value})
    tokens = sum(admission.prompt_tokens for admission in admissions)
    reply = {
        "object": "list",
        "data": data,
        "model": model_name(body, model),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return dumps(reply).encode()
